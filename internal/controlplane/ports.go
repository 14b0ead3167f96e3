package controlplane

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// portLocks holds the lock files of the ports that this process has taken. The
// kernel releases a lock when its holder ends, however it ends.
var portLocks []*os.File

// freePort returns a loopback port that nobody uses and that no other cluster on
// this machine will be given. It lies below the ports that kernels hand out to
// outgoing connections, which could otherwise take it before we do.
func freePort() (int, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("stowage-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	for range 200 {
		port := 20000 + rand.IntN(12000)
		lock, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(port)), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return 0, err
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			_ = lock.Close()
			continue
		}
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			_ = lock.Close()
			continue
		}
		_ = l.Close()
		portLocks = append(portLocks, lock) // keeps the file, and so the lock, open
		return port, nil
	}
	return 0, fmt.Errorf("no free port on loopback")
}

func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		var err error
		if ports[i], err = freePort(); err != nil {
			return nil, err
		}
	}
	return ports, nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
