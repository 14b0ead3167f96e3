//go:build !linux

package controlplane

import "syscall"

// dieWithParent can only keep the terminal's signals from the child here: other
// systems have no parent-death signal, so a killed parent leaves children behind.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
