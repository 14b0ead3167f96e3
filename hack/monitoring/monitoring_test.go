package monitoring

import (
	"encoding/json"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

const root = "../../"

// others are the metrics of libraries that are used, with their labels.
var others = map[string][]string{
	"apiserver_admission_webhook_fail_open_count": {"name"},
	"apiserver_admission_webhook_rejection_count": {"name", "error_type"},
	"controller_runtime_webhook_latency_seconds":  {"webhook"},
	"leader_election_master_status":               {"name"},
	"process_resident_memory_bytes":               nil,
}

// attached are the labels that a scrape adds, and that of a histogram's buckets.
var attached = []string{"instance", "job", "le", labels.MetricName}

// documented reads the metrics that there are, with their labels, from their reference.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile(root + "docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\| ([^|]*) \\|").FindAllStringSubmatch(string(page), -1) {
		out[m[1]] = strings.FieldsFunc(m[3], func(r rune) bool { return r == ',' || r == ' ' })
	}
	if len(out) < 10 {
		t.Fatalf("the reference has only %d metrics", len(out))
	}
	return out
}

// check parses a query and returns the metrics that it reads.
func check(t *testing.T, known map[string][]string, query string) (used []string) {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(strings.ReplaceAll(query, "$__rate_interval", "5m"))
	if err != nil {
		t.Errorf("%s: %v", query, err)
		return nil
	}
	allowed := slices.Clone(attached)
	var asked []string
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			name := n.Name
			if _, ok := known[name]; !ok {
				name = regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
			}
			has, ok := known[name]
			if !ok {
				t.Errorf("%s: there is no metric %q", query, n.Name)
			}
			used, allowed = append(used, name), append(allowed, has...)
			for _, m := range n.LabelMatchers {
				if !slices.Contains(attached, m.Name) && !slices.Contains(has, m.Name) {
					t.Errorf("%s: %s has no label %q", query, name, m.Name)
				}
			}
		case *parser.AggregateExpr:
			asked = append(asked, n.Grouping...)
		}
		return nil
	})
	for _, label := range asked {
		if !slices.Contains(allowed, label) {
			t.Errorf("%s: no metric in it has the label %q", query, label)
		}
	}
	return used
}

func known(t *testing.T) map[string][]string {
	all := documented(t)
	for name, has := range others {
		all[name] = has
	}
	return all
}

func TestAlerts(t *testing.T) {
	file, err := os.ReadFile(root + "config/monitoring/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := rulefmt.Parse(file, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	metrics := known(t)
	page, err := os.ReadFile(root + "docs/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			check(t, metrics, r.Expr)
			if !strings.Contains(string(page), "\n## "+r.Alert+"\n") {
				t.Errorf("docs/reasons.md, to which runbook_url leads, does not list the alert %s", r.Alert)
			}
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s lacks a severity, a summary or a description", r.Alert)
			}
		}
	}
}

// Every metric of ours is on the dashboard, and nothing else than there is.
func TestDashboard(t *testing.T) {
	file, err := os.ReadFile(root + "config/monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			ID          int
			Type, Title string
			Description string
			GridPos     struct{ H, W, X, Y int }
			Targets     []struct{ RefID, Expr string }
		}
	}
	if err := json.Unmarshal(file, &dashboard); err != nil {
		t.Fatal(err)
	}
	metrics := known(t)
	shown, ids := map[string]bool{}, map[int]bool{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] {
			t.Errorf("panel %q has the id of another", p.Title)
		}
		ids[p.ID] = true
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q is off the grid", p.Title)
		}
		if p.Type != "row" && (len(p.Targets) == 0 || p.Description == "") {
			t.Errorf("panel %q has no query or no description", p.Title)
		}
		for _, target := range p.Targets {
			for _, name := range check(t, metrics, target.Expr) {
				shown[name] = true
			}
		}
	}
	for name := range documented(t) {
		if !shown[name] {
			t.Errorf("%s is not on the dashboard", name)
		}
	}
}

// The checks above notice what they are for.
func TestChecksNotice(t *testing.T) {
	for _, query := range []string{
		"sum(rate(stowage_admission_total[5m]))", "sum by (pod) (stowage_claims)", `stowage_claims{phase="x"}`, "sum(",
	} {
		probe := &testing.T{}
		check(probe, known(t), query)
		if !probe.Failed() {
			t.Errorf("nothing is wrong with %s", query)
		}
	}
}
