package controlplane

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strconv"
	"sync"
)

// reserved holds the ports that this process has been given, and what keeps other
// processes from being given them.
var reserved = struct {
	sync.Mutex
	ports map[int]net.Listener
}{ports: map[int]net.Listener{}}

// freePort returns a loopback port that nobody uses and that no other cluster on
// this machine will be given. It lies below the ports that kernels hand out to
// outgoing connections, which could otherwise take it before we do.
func freePort() (int, error) {
	reserved.Lock()
	defer reserved.Unlock()
	for range 200 {
		port := 20000 + rand.IntN(12000)
		if _, taken := reserved.ports[port]; taken {
			continue
		}
		claim, err := claimPort(port)
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			if claim != nil {
				_ = claim.Close()
			}
			continue
		}
		_ = l.Close()
		reserved.ports[port] = claim
		return port, nil
	}
	return 0, errors.New("no free port on loopback")
}

// claimPort keeps a port from the clusters of other processes until this one ends. It
// does so by a socket in Linux's abstract namespace (unix(7)), which is no file and
// cannot be left behind. Elsewhere there is no claim.
func claimPort(port int) (net.Listener, error) {
	if runtime.GOOS != "linux" {
		return nil, nil
	}
	return net.Listen("unix", fmt.Sprintf("@stowage-port-%d", port))
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
