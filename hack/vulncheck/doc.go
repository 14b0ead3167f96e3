// Package vulncheck pins govulncheck in a module of its own: its dependencies are not those of
// the other tools.
package vulncheck
