package controlplane

import "syscall"

// dieWithParent makes the kernel end the child when we end, however we end.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
