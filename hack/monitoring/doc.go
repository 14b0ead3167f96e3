// Package monitoring checks the alerts and the dashboard in config/monitoring with
// Prometheus's own parser. It is a module of its own, because that parser brings much of
// Prometheus with it.
package monitoring
