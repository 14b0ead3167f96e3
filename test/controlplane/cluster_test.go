package controlplane

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An etcd that ends, as on a full disk, is the cause that is told. kube-apiserver would wait for it, and end later.
func TestEtcdEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := func(name, script string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c := &Cluster{cfg: Config{Dir: dir, Root: dir}, Logs: filepath.Join(dir, "logs"), Kubeconfig: filepath.Join(dir, "kubeconfig")}
	t.Cleanup(c.Stop)
	err := c.start(t.Context(), Binaries{
		Etcd: program("etcd", "echo no space left on device; exit 1"), APIServer: program("kube-apiserver", "exec sleep 60"), KwokStages: dir,
	})
	if err == nil || !strings.Contains(err.Error(), "etcd ended") || !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("the error is %v", err)
	}
}
