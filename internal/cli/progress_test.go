package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// lines are what was written, for a reader at the same time.
type lines struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.String()
}

func TestProgress(t *testing.T) {
	out := &lines{}
	waitFor := func(text string) {
		t.Helper()
		for !strings.Contains(out.String(), text) {
			select {
			case <-t.Context().Done():
				t.Fatalf("%q does not come; there is\n%s", text, out)
			case <-time.After(time.Millisecond):
			}
		}
	}
	var pods atomic.Int64
	stop := progress(out, time.Millisecond, func() string { return fmt.Sprintf("%d pods so far", pods.Load()) })
	waitFor("0 pods so far\n")
	pods.Add(2)
	waitFor("2 pods so far\n")
	stop()
	at := out.String()
	<-time.After(5 * time.Millisecond)
	if out.String() != at {
		t.Error("it goes on after its end")
	}
}

// Who ends the command is told that, and nothing is printed of what was decided.
func TestEndedBySignal(t *testing.T) {
	dir := t.TempDir()
	test := filepath.Join(dir, "web-stowage-test.yaml")
	for name, text := range map[string]string{
		test:                           "apiVersion: cli.stowage.dev/v1alpha1\nkind: PolicyTest\nfiles: [pod.yaml]\ncases: [{name: one, expect: {}}]\n",
		filepath.Join(dir, "pod.yaml"): "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{"preview", filepath.Join(dir, "pod.yaml")}, {"preview", filepath.Join(dir, "pod.yaml"), "-o", "yaml"}, {"test", test}} {
		var out, errs bytes.Buffer
		code := Main(ctx, args, Streams{In: strings.NewReader(""), Out: &out, Err: &errs, LookupEnv: func(string) (string, bool) { return "", false }, Environ: func() []string { return nil }})
		if code != 1 || out.Len() > 0 || errs.String() != "Error: ended by a signal\n" {
			t.Errorf("%s: status %d, output %q, errors %q", args[0], code, out.String(), errs.String())
		}
	}
}
