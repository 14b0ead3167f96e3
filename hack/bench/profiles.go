package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// profile takes CPU profiles of the API server and of Stowage's replicas, for as long as the last burst of the case took. The function
// that it returns waits for them, and writes them. `go tool pprof` adds up several files.
func (b *bench) profile(ctx context.Context, bc benchCase) (wait func() error) {
	last := b.last[bc.name]
	if b.options.profiles == "" || last == 0 {
		return func() error { return nil }
	}
	seconds := strconv.Itoa(max(1, int(last.Round(time.Second).Seconds())))
	takes := map[string]func() ([]byte, error){"kube-apiserver": func() ([]byte, error) {
		return b.Clientset.Discovery().RESTClient().Get().AbsPath("/debug/pprof/profile").Param("seconds", seconds).DoRaw(ctx)
	}}
	for i, r := range b.Processes() {
		takes[fmt.Sprintf("stowage-%d", i)] = func() ([]byte, error) { return get(ctx, r.ProfilesURL+"/profile?seconds="+seconds) }
	}
	var all errgroup.Group
	for name, take := range takes {
		all.Go(func() error {
			data, err := take()
			if err != nil {
				return fmt.Errorf("profile of %s: %w", name, err)
			}
			file := strings.ReplaceAll(fmt.Sprintf("%s-%s-%d.pprof", name, bc.name, b.serial), " ", "-")
			return os.WriteFile(filepath.Join(b.options.profiles, file), data, 0o644)
		})
	}
	return all.Wait
}

// get returns what is at an address.
func get(ctx context.Context, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP %s", resp.Status)
	}
	return io.ReadAll(resp.Body)
}
