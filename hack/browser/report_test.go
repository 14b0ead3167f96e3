package browser

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// The page of `-o html` has the table, the picture and no request; a chosen head sorts the rows.
func TestReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.html")
	out, err := exec.CommandContext(t.Context(), *command, "preview", "../../config/samples", "../../hack/nodes/sizes.yaml", "-o", "html").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, out, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, width := range []int64{1280, 390} {
		for _, scheme := range []string{"light", "dark"} {
			t.Run(fmt.Sprint(width, scheme), func(t *testing.T) {
				b := start(t, width, scheme)
				run(b, chromedp.Navigate("file://"+file))
				if wide := value[int64](b, "document.documentElement.scrollWidth"); wide > width {
					t.Errorf("the page is %d pixels wide", wide)
				}
				if ground := value[string](b, "getComputedStyle(document.querySelector('svg .ground')).fill"); (ground == "rgb(255, 255, 255)") != (scheme == "light") {
					t.Errorf("in %s, the picture is on %s", scheme, ground)
				}
				if about := value[string](b, "document.querySelector('.about').textContent"); !strings.Contains(about, "Commandstowage preview ../../config/samples") {
					t.Errorf("the page says of itself %q", about)
				}
				if prose := value[int64](b, "[...document.querySelectorAll('td')].filter((c) => getComputedStyle(c).textAlign === 'right' && /[a-z] [a-z]/.test(c.textContent)).length"); prose > 0 {
					t.Errorf("%d cells of prose are aligned as numbers", prose)
				}
				pods := func() string {
					return strings.Join(value[[]string](b, "[...document.querySelectorAll('tbody tr')].map((r) => r.cells[1].textContent)"), " ")
				}
				b.do("document.querySelectorAll('th button')[1].click()")
				up := pods()
				b.do("document.querySelectorAll('th button')[1].click()")
				if down := pods(); up == down || !strings.HasPrefix(up, "1 ") || strings.HasPrefix(down, "1 ") {
					t.Errorf("sorted by pods, the rows are %s, and then %s", up, down)
				}
				if requests := value[int64](b, "performance.getEntriesByType('resource').length"); requests > 0 || value[int64](b, "document.querySelectorAll('svg').length") == 0 {
					t.Errorf("the page makes %d requests, or has no picture", requests)
				}
			})
		}
	}
}
