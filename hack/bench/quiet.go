package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// How long and how far the machine must be idle before a burst, and how long a burst waits for that.
const (
	quietSample = 500 * time.Millisecond
	quietShare  = 0.85
	quietLimit  = time.Minute
)

// quiet waits until the machine is idle: controllers clean up after a burst for seconds, which would slow the next
// one. After a minute it goes on, for some machines are never idle. It needs Linux and does nothing elsewhere.
func quiet(ctx context.Context) error {
	if runtime.GOOS != "linux" {
		return nil
	}
	idle, total, err := processorTime()
	if err != nil {
		return err
	}
	streak := 0
	err = wait.PollUntilContextTimeout(ctx, quietSample, quietLimit, false, func(context.Context) (bool, error) {
		i, t, err := processorTime()
		if err != nil {
			return false, err
		}
		streak++
		if float64(i-idle) < quietShare*float64(t-total) {
			streak = 0
		}
		idle, total = i, t
		return streak == 2, nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		fmt.Println("the machine is busy with something else: the next burst is not comparable")
		return nil
	}
	return err
}

// processorTime returns the idle time and all time of the processors since the start of the machine, in ticks. See
// proc_stat(5).
func processorTime() (idle, total int64, err error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	var user, nice, system, iowait, irq, softirq, steal int64
	if _, err := fmt.Sscanf(string(line), "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal); err != nil {
		return 0, 0, fmt.Errorf("/proc/stat: %w", err)
	}
	idle += iowait
	return idle, user + nice + system + idle + irq + softirq + steal, nil
}
