package browser

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

var siteDir = flag.String("site", "../../bin/docs", "the site of the documents")

// Each page of the site fits a desk, a phone and 320 pixels (WCAG 2.2, "reflow"), in light and dark, and the console gets nothing.
func TestSite(t *testing.T) {
	dir, err := filepath.Abs(*siteDir)
	if err != nil {
		t.Fatal(err)
	}
	var pages []string
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(name, ".html") && !strings.HasPrefix(name, "playground/") {
			pages = append(pages, name)
		}
		return err
	})
	if err != nil || len(pages) < 30 {
		t.Fatalf("the site has %d pages, %v; run make docs", len(pages), err)
	}
	for _, width := range []int64{1280, 390, 320} {
		for _, scheme := range []string{"light", "dark"} {
			t.Run(fmt.Sprint(width, scheme), func(t *testing.T) {
				b := start(t, width, scheme)
				for _, name := range pages {
					run(b, chromedp.Navigate("file://"+filepath.Join(dir, name)))
					if wide := value[int64](b, "document.documentElement.scrollWidth"); wide > width {
						t.Errorf("%s is %d pixels wide", name, wide)
					}
					if title := value[string](b, "document.querySelector('main h1').textContent"); title == "" {
						t.Errorf("%s has no title", name)
					}
				}
			})
		}
	}
}

// What readers look for, in their words, is among the first sections found: with words that say nothing, other forms of a word, and a typo.
func TestSiteFinds(t *testing.T) {
	dir, err := filepath.Abs(*siteDir)
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, 1280, "light")
	run(b, chromedp.Navigate("file://"+filepath.Join(dir, "index.html")))
	run(b, chromedp.Focus(chromedp.CSS("[role=search] input")))
	run(b, chromedp.KeyEvent("x"))
	b.until("window.searchIndex !== undefined")
	for query, want := range map[string]string{
		"how to uninstall":                      "operating.html#upgrade-roll-back-uninstall",
		"exit code":                             "reference/exit-codes.html",
		"exclude namespace":                     "how-to/leave-out.html",
		"why is my pod pending":                 "troubleshooting.html",
		"karpenter":                             "karpenter.html",
		"how do I divide pods over zones":       "how-to/multi-zone.html",
		"topology spread constraints":           "design/comparison.html",
		"what happens when the webhook is down": "operating.html#what-happens-while-stowage-is-down",
		"price of a VM":                         "how-to/vm-types.html",
		"supported kubernetes versions":         "support.html",
		"maxSpill":                              "spill.html",
	} {
		found := value[[]string](b, fmt.Sprintf("search(window.searchIndex, %q).found.slice(0, 3).map((s) => s.at)", query))
		if !slices.ContainsFunc(found, func(at string) bool { return strings.HasPrefix(at, want) }) {
			t.Errorf("%q finds %q, want %q among them", query, found, want)
		}
	}
	for typo, word := range map[string]string{"depoly": "deploy", "karpentr": "karpenter", "weigth": "weight", "evicton": "eviction"} {
		if same := value[bool](b, fmt.Sprintf("JSON.stringify(search(window.searchIndex, %q)) === JSON.stringify(search(window.searchIndex, %q))", typo, word)); !same {
			t.Errorf("%q does not find what %q finds", typo, word)
		}
	}
}

// A reader finds a section by its words, follows it, and goes on to the next page.
func TestSiteSearch(t *testing.T) {
	dir, err := filepath.Abs(*siteDir)
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, 1280, "light")
	run(b, chromedp.Navigate("file://"+filepath.Join(dir, "how-to", "impact.html")))
	run(b, chromedp.Focus(chromedp.CSS("[role=search] input")))
	for _, key := range "maxSpill" {
		run(b, chromedp.KeyEvent(string(key)))
	}
	b.until("document.querySelectorAll('[role=search] li').length > 0")
	if first := value[string](b, "document.querySelector('[role=search] li').textContent"); !strings.Contains(first, "maxSpill") {
		t.Errorf("the first section found is %q", first)
	}
	run(b, chromedp.KeyEvent("\r"))
	b.until("document.querySelector('h1') !== null && !location.pathname.endsWith('impact.html') && document.readyState === 'complete'")
	if next := value[string](b, "document.querySelector('a[rel=next]')?.textContent ?? ''"); next == "" {
		t.Error("the page has no next one")
	}
	if copies := value[int64](b, "document.querySelectorAll('button.copy').length"); copies == 0 {
		t.Error("no block of the page can be copied")
	}
	run(b, chromedp.Click(chromedp.CSS("a[href$='playground/index.html']")))
	b.until("document.body?.dataset.ready === 'true'")
}
