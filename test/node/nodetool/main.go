// Command nodetool is what a node of the tests is made of: its first process, and the programs of its containers.
//
//	nodetool init CONFIG      the first process of a node: mounts, then programs as its standard input asks
//	nodetool pause            the container that holds a pod's namespaces
//	nodetool hold BYTES       a container that uses so much memory
package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
)

func main() {
	if err := run(append(os.Args[1:], "", "")); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch args[0] {
	case "init":
		return initialize(args[1])
	case "pause":
		wait()
	case "hold":
		bytes, err := strconv.Atoi(args[1])
		if err != nil {
			return fmt.Errorf("BYTES is %q; it must be a number", args[1])
		}
		held := make([]byte, bytes)
		for i := 0; i < bytes; i += os.Getpagesize() {
			held[i] = 1
		}
		wait()
		runtime.KeepAlive(held)
	default:
		return fmt.Errorf("there is no command %q; it is init, pause or hold", args[0])
	}
	return nil
}

// wait returns when the process is asked to end. As the first process of a container it has children to bury.
func wait() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
