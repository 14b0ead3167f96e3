package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

var (
	file       = flag.String("page", "../../bin/playground/index.html", "the page")
	command    = flag.String("stowage", "../../bin/stowage", "the command that the page is compared with")
	screenshot = flag.String("screenshot", "", "where a picture of the page is written")
)

// ready is how long the page may take until its first result.
const ready = 30 * time.Second

// tab is a page in a browser of its own, with what went wrong in it.
type tab struct {
	context.Context
	t *testing.T

	mu    sync.Mutex
	wrong []string
}

// open opens the page with a width and a color scheme, and returns how long it took until the first result.
func open(t *testing.T, address string, width int64, scheme string) (*tab, time.Duration) {
	t.Helper()
	b := start(t, width, scheme)
	began := time.Now()
	run(b, chromedp.Navigate(address))
	b.until("document.body.dataset.ready === 'true'")
	return b, time.Since(began)
}

// start starts a browser with a width and a color scheme. At the end, its console must have got nothing.
func start(t *testing.T, width int64, scheme string) *tab {
	t.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.NoSandbox, chromedp.Flag("disable-component-update", true), chromedp.UserDataDir(t.TempDir()))
	allocator, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	b := &tab{Context: ctx, t: t}
	// What the console gets, from before the page is there.
	run(b, func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		hear(b, ctx, target, runtime.ExceptionThrown, func(e runtime.EventExceptionThrown) string { return fmt.Sprint(e.ExceptionDetails) })
		hear(b, ctx, target, log.EntryAdded, func(e log.EventEntryAdded) string { return e.Entry.Text })
		hear(b, ctx, target, runtime.ConsoleAPICalled, func(e runtime.EventConsoleAPICalled) string { return "console." + string(e.Type) })
		for _, call := range []func() error{
			func() error { _, err := cdp.Call(ctx, target, runtime.Enable, cdp.Empty{}); return err },
			func() error { _, err := cdp.Call(ctx, target, log.Enable, cdp.Empty{}); return err },
			func() error {
				_, err := cdp.Call(ctx, target, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 900, DeviceScaleFactor: 1, Mobile: width < 500})
				return err
			},
			func() error {
				_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
				return err
			},
		} {
			if err := call(); err != nil {
				return chromedp.Void{}, err
			}
		}
		return chromedp.Void{}, nil
	})
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.wrong) > 0 {
			t.Errorf("the console has %s", strings.Join(b.wrong, "\n"))
		}
	})
	return b
}

// hear notes each event of a kind.
func hear[E any](b *tab, ctx context.Context, target *chromedp.Target, kind cdp.Event[E], text func(E) string) {
	events := cdp.Events(ctx, target, kind)
	go func() {
		for e, err := range events {
			if err != nil {
				return // the browser ends
			}
			b.mu.Lock()
			b.wrong = append(b.wrong, text(e))
			b.mu.Unlock()
		}
	}()
}

// run runs an action.
func run[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	out, err := chromedp.Run(b, action)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// value evaluates an expression.
func value[T any](b *tab, expression string) T {
	b.t.Helper()
	return run(b, chromedp.Evaluate[T](expression))
}

// do runs a script.
func (b *tab) do(script string) {
	b.t.Helper()
	value[chromedp.Void](b, script)
}

// act runs a script that has the page decide, and waits for the decisions.
func (b *tab) act(script string) {
	b.t.Helper()
	b.do(script)
	b.until("document.body.dataset.shown === String(serial) && document.body.dataset.busy === 'false'")
}

// until waits until an expression is true.
func (b *tab) until(expression string) {
	b.t.Helper()
	for end := time.Now().Add(ready); ; time.Sleep(20 * time.Millisecond) {
		is, err := chromedp.Run(b, chromedp.Evaluate[bool]("Boolean("+expression+")")) // there is an error while one page follows another
		if err == nil && is {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("%s is not so after %s: %v", expression, ready, err)
		}
	}
}

func address(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(*file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v; run make playground", err)
	}
	return "file://" + path
}

// Each example has a result and fits the page, on a desk and on a phone, in light and dark.
func TestExamples(t *testing.T) {
	for _, width := range []int64{1280, 390} {
		for _, scheme := range []string{"light", "dark"} {
			t.Run(fmt.Sprint(width, scheme), func(t *testing.T) {
				b, took := open(t, address(t), width, scheme)
				t.Logf("the first result after %.1f s", took.Seconds())
				names := value[[]string](b, "examples.map((e) => e.name)")
				if len(names) < 6 {
					t.Fatalf("the examples are %q", names)
				}
				for i, name := range names {
					b.act(fmt.Sprintf("$('examples').value = %d; $('examples').onchange()", i))
					if text := value[string](b, "$('errors').textContent + $('warnings').textContent"); text != "" || value[bool](b, "$('results').hidden") {
						t.Errorf("example %s: %s", name, text)
					}
					if table := value[string](b, "$('table').textContent"); !strings.Contains(table, "WORKLOAD") {
						t.Errorf("example %s has the table %q", name, table)
					}
					if wide := value[int64](b, "document.documentElement.scrollWidth"); wide > width {
						t.Errorf("example %s is %d pixels wide", name, wide)
					}
				}
				if ground := value[string](b, "getComputedStyle(document.body).backgroundColor"); (ground == "rgb(255, 255, 255)") != (scheme == "light") {
					t.Errorf("in %s, the page is %s", scheme, ground)
				}
			})
		}
	}
}

// What a reader does: another replica count, an outage, an error and its line, and a link that brings all of it back.
func TestReader(t *testing.T) {
	b, _ := open(t, address(t), 1280, "light")
	b.act("$('examples').value = 1; $('examples').onchange()")
	pool := func(name string) string {
		return value[string](b, fmt.Sprintf("($('table').textContent.split('\\n').find((l) => l.includes(' %s (')) ?? '- - -').split(/\\s+/)[2]", name))
	}
	if got := pool("on-demand") + " " + pool("spot"); got != "6 24" {
		t.Errorf("30 pods are divided %s", got)
	}
	b.act("$('replicas').value = 50; $('replicas').oninput()")
	if got := pool("on-demand") + " " + pool("spot"); got != "10 40" {
		t.Errorf("50 pods are divided %s", got)
	}
	// By keyboard alone: from the slider over its number and its button to the switch of the second pool.
	run(b, chromedp.Focus(chromedp.CSS("#own")))
	for _, key := range []string{"\t", "\t", " "} {
		run(b, chromedp.KeyEvent(key))
	}
	b.until("'spot' in state.exhausted && document.body.dataset.shown === String(serial)")
	if got := pool("on-demand"); got != "50" {
		t.Errorf("without spot, %s pods are on demand", got)
	}
	run(b, chromedp.Click(chromedp.CSS("#link")))
	b.until("location.hash.length > 10")
	link := value[string](b, "location.href")

	b.do("$('manifests').value = state.manifests.replace('weight: 80', 'weight: many'); $('manifests').oninput()")
	b.until("$('errors').children.length > 0")
	if text := value[string](b, "$('errors').textContent"); !strings.HasPrefix(text, "Line 20SpreadPolicy web: ") || !strings.Contains(text, "spec.pools[1].weight") {
		t.Errorf("the error is %q", text)
	}
	if bad := value[string](b, "document.querySelector('#gutter .bad').textContent"); bad != "20\n" {
		t.Errorf("line %q is marked", bad)
	}

	again, _ := open(t, link, 390, "dark")
	if got := value[string](again, "JSON.stringify([state.replicas, state.exhausted])"); got != `[50,{"spot":0}]` {
		t.Errorf("the link brings back %s", got)
	}
	if *screenshot != "" {
		again.act("state.exhausted.spot = 10; state.replicas = 30; decide(); $('link').onclick()")
		again.until("location.href !== '" + link + "'")
		shot(t, value[string](again, "location.href"))
	}
}

// While very many pods are decided, the page answers, says so, and ends that when it is asked to. The next decisions are those of the next state.
func TestCancel(t *testing.T) {
	b, _ := open(t, address(t), 1280, "light")
	b.act("$('examples').value = 1; $('examples').onchange()")
	before := value[string](b, "$('table').textContent")
	b.do("$('manifests').value = state.manifests.replace(/replicas: \\d+/, 'replicas: 100000'); $('manifests').oninput()")
	b.until("!$('cancel').hidden")
	began := time.Now()
	if text := value[string](b, "$('state').textContent"); !strings.HasPrefix(text, "Deciding, for ") {
		t.Errorf("the page says %q", text)
	}
	run(b, chromedp.Click(chromedp.CSS("#cancel")))
	b.until("$('cancel').hidden && document.body.dataset.busy === 'false'")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s to cancel", took)
	}
	if text, table := value[string](b, "$('state').textContent"), value[string](b, "$('table').textContent"); !strings.Contains(text, "cancelled") || table != before {
		t.Errorf("after that, the page says %q and has the table\n%s", text, table)
	}
	b.act("setReplicas(10)")
	if table := value[string](b, "$('table').textContent"); !strings.Contains(table, "10 pods, ") {
		t.Errorf("the next decisions are\n%s", table)
	}
	// A newer state does not wait for one that takes long.
	b.do("state.replicas = null; decide()")
	b.until("!$('cancel').hidden")
	b.act("setReplicas(20)")
	if table := value[string](b, "$('table').textContent"); !strings.Contains(table, "20 pods, ") {
		t.Errorf("the newest decisions are\n%s", table)
	}
}

// shot writes a picture of the page.
func shot(t *testing.T, link string) {
	t.Helper()
	b, _ := open(t, link, 1200, "light")
	png := run(b, chromedp.CaptureScreenshot())
	if err := os.WriteFile(*screenshot, png, 0o644); err != nil {
		t.Fatal(err)
	}
}

// In the browser, the program prints what the command prints, for all examples, samples and golden files.
func TestSameAsTheCommand(t *testing.T) {
	b, _ := open(t, address(t), 1280, "light")
	count := 0
	for _, pattern := range []string{"docs/examples/*.yaml", "docs/playground/examples/*.yaml", "config/samples/*.yaml", "config/samples/*/*.yaml", "internal/cli/testdata/preview/*.yaml", "internal/cli/testdata/preview/*.json"} {
		files, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), *command, "preview", "-")
			cmd.Stdin = bytes.NewReader(data)
			want, err := cmd.Output()
			if exit := (&exec.ExitError{}); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			in, err := json.Marshal(map[string]any{"manifests": string(data)})
			if err != nil {
				t.Fatal(err)
			}
			call, err := json.Marshal(string(in))
			if err != nil {
				t.Fatal(err)
			}
			b.do(fmt.Sprintf("globalThis.answer = null; ask(JSON.parse(%s)).then((out) => { answer = out; })", call))
			b.until("answer !== null")
			if got := value[string](b, "answer.table"); got != string(want) {
				t.Errorf("%s: the page prints\n%s, and the command\n%s", name, got, want)
			}
			count++
		}
	}
	if count < 30 {
		t.Errorf("only %d files were compared", count)
	}
}
