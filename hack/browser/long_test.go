package browser

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// longestTask is for how many milliseconds the page may leave its reader without an answer. On an idle machine of two cores, the longest task
// of these tests takes 50 to 140.
const longestTask = 200

// The page answers its reader while it shows what becomes of 10,000 pods, however these are given, and shows all of it.
func TestManyPods(t *testing.T) {
	deployment := func(i, replicas int) string {
		return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: web-%[1]d}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: web-%[1]d}}
  template:
    metadata: {labels: {app: web-%[1]d}, annotations: {custom-pod-schedule-strategy: "type=default,base=1:type=spot,weight=1"}}
    spec: {containers: [{name: app, image: nginx}]}
---
`, i, replicas)
	}
	pod := func(i int, of string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: web-%d}\nspec: {%s: [{name: app, image: nginx}]}\n---\n", i, of)
	}
	repeat := func(n int, text func(i int) string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(text(i))
		}
		return b.String()
	}
	cases := map[string]struct {
		manifests                string
		rows, pictures, problems int // at least
	}{
		"one Deployment":      {manifests: deployment(0, 10_000), rows: 2, pictures: 1},
		"1,000 Deployments":   {manifests: repeat(1000, func(i int) string { return deployment(i, 10) }), rows: 2000, pictures: 50},
		"10,000 pods":         {manifests: repeat(10_000, func(i int) string { return pod(i, "containers") }), rows: 10_000},
		"10,000 pods, no one": {manifests: repeat(10_000, func(i int) string { return pod(i, "container") }), problems: 10_000},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b, _ := open(t, address(t), 1280, "light")
			text, err := json.Marshal(tc.manifests)
			if err != nil {
				t.Fatal(err)
			}
			b.do("globalThis.tasks = []; globalThis.observer = new PerformanceObserver((list) => tasks.push(...list.getEntries().map((e) => e.duration))); observer.observe({ type: 'longtask', buffered: true })")
			// The step that was asked for has ended, and so has what the browser does about it.
			settled := "document.body.dataset.shown === String(serial) && document.body.dataset.busy === 'false'"
			rest := func() {
				run(b, chromedp.Evaluate[chromedp.Void]("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 200)))", chromedp.EvalAwaitPromise))
			}
			b.do("globalThis.before = serial; $('manifests').value = " + string(text) + "; $('manifests').oninput()")
			b.until("serial > before && " + settled)
			rest()
			for _, script := range []string{
				"window.scrollTo(0, document.body.scrollHeight / 2)", "window.scrollTo(0, document.body.scrollHeight)",
				"while (!$('part').hidden && !$('later').disabled) $('later').onclick()", "$('manifests').scrollTop = $('manifests').scrollHeight", "$('manifests').value += ' '; $('manifests').oninput()", "$('growth').open = true", "$('diffs').lastElementChild?.click()",
			} {
				b.do(script)
				rest()
			}
			b.do("tasks.push(...observer.takeRecords().map((e) => e.duration))")
			tasks := append(value[[]float64](b, "tasks"), 0)
			t.Logf("the longest task takes %.0f ms; those over 50 ms: %v", slices.Max(tasks), tasks[:len(tasks)-1])
			if longest := slices.Max(tasks); longest > longestTask {
				t.Errorf("a task takes %.0f ms; %d are allowed", longest, longestTask)
			}
			if got := value[int](b, "$('errors').children.length + $('warnings').children.length"); got < tc.problems {
				t.Errorf("the page shows %d problems, want %d", got, tc.problems)
			}
			if lines := value[string](b, "$('numbers').textContent"); !strings.HasSuffix(lines, fmt.Sprintf("\n%d\n", strings.Count(tc.manifests, "\n")+1)) {
				t.Errorf("at the end of the manifests, the lines are %q", lines)
			}
			if tc.problems > 0 {
				return
			}
			if got := value[int](b, "$('table').textContent.split('\\n').length"); got < tc.rows || !value[bool](b, "$('table').textContent === last.table && $('plot').textContent === last.plot") {
				t.Errorf("the page shows %d rows, or not all that the program prints", got)
			}
			if got := value[int](b, "document.querySelectorAll('#picture svg').length"); got != tc.pictures {
				t.Errorf("the page has %d pictures, want %d", got, tc.pictures)
			}
		})
	}
}

// Of very long manifests the editor has a part: what is changed there is changed in the whole, and each line can be reached.
func TestLongManifests(t *testing.T) {
	b, _ := open(t, address(t), 1280, "light")
	is := func(expression string) {
		t.Helper()
		if !value[bool](b, expression) {
			t.Errorf("%s is not so; the editor has %s", expression, value[string](b, "JSON.stringify([part.first, $('manifests').value.slice(0, 40), $('partText').textContent])"))
		}
	}
	b.act("$('examples').value = 1; $('examples').onchange()")
	is("$('part').getClientRects().length === 0 && $('manifests').value === state.manifests")
	// Comments are pasted after the example.
	b.do("globalThis.was = state.manifests; globalThis.comments = Array.from({ length: 30000 }, (_, i) => '# ' + i).join('\\n')")
	b.act("$('manifests').setSelectionRange(was.length, was.length); globalThis.data = new DataTransfer(); data.setData('text/plain', comments); $('manifests').dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, cancelable: true }))")
	is("state.manifests === was + comments && $('table').textContent.includes('30 pods')")
	is("$('part').getClientRects().length > 0 && $('earlier').disabled && $('manifests').value.startsWith(was) && countLines($('manifests').value) === 5001")
	run(b, chromedp.Click(chromedp.CSS("#later")))
	run(b, chromedp.Click(chromedp.CSS("#later")))
	is("part.first === 5000 && $('manifests').value.startsWith('# ' + (5001 - countLines(was)) + '\\n')")
	b.do("$('manifests').value = $('manifests').value.replace('# 7000\\n', '# another\\n'); $('manifests').oninput()")
	is("state.manifests === was + comments.replace('# 7000\\n', '# another\\n')")
	b.do("goTo(30000)")
	is("$('later').disabled && part.before + $('manifests').value + part.after === state.manifests")
	if marked := value[string](b, "$('manifests').value.slice($('manifests').selectionStart, $('manifests').selectionEnd)"); marked != value[string](b, "state.manifests.split('\\n')[29999]") {
		t.Errorf("line 30000 is %q", marked)
	}
	// An error is marked in its line, and its button leads there.
	b.do("goTo(1); $('manifests').value = $('manifests').value.replace('weight: 80', 'weight: many'); $('manifests').oninput()")
	b.until("$('errors').children.length > 0")
	b.do("goTo(20000); document.querySelector('#errors button').click()")
	b.until("document.querySelector('#numbers .bad')?.textContent === '20\\n'")
	is("part.first === 0 && $('manifests').value.slice($('manifests').selectionStart).includes('many')")
}
