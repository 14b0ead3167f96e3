package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// What the documents say is tested has a test of that name, and their links lead somewhere.
func TestDocumentsNameWhatExists(t *testing.T) {
	const root = "../.."
	var tests, pages []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "bin" || d.Name() == ".git"):
			return filepath.SkipDir
		case strings.HasSuffix(path, "_test.go"):
			tests = append(tests, path)
		case strings.HasSuffix(path, ".md"):
			pages = append(pages, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	exists := map[string]bool{}
	for _, path := range tests {
		for _, m := range regexp.MustCompile(`(?m)^func (\w+)\(`).FindAllStringSubmatch(read(t, path), -1) {
			exists[m[1]] = true
		}
	}
	named, links := 0, 0
	code := regexp.MustCompile("`[^`\\n]*`") // a regular expression can look like a link
	for _, page := range pages {
		text := read(t, page)
		for _, m := range regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w+)").FindAllStringSubmatch(text, -1) {
			if named++; !exists[m[1]] {
				t.Errorf("%s: there is no test %s", page, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`).FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			links++
			target := page
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(page), m[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if m[2] != "" && !slices.Contains(anchors(read(t, target)), m[2]) {
				t.Errorf("%s: %s has no heading #%s", page, target, m[2])
			}
		}
	}
	if named < 20 || links < 20 {
		t.Errorf("only %d tests and %d links were looked at", named, links)
	}
}

// anchors returns the names by which links reach the headings of a page, as GitHub makes them.
func anchors(page string) (out []string) {
	dropped := regexp.MustCompile(`[^\p{L}\p{N}\-_ ]`)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		out = append(out, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return out
}

// Each policy that a page shows is a part of an example or a sample, and those are tested by TestSamples.
func TestDocumentsShowTestedPolicies(t *testing.T) {
	var tested []map[string]any
	cases := read(t, "../../docs/examples/stowage-test.yaml") + read(t, "../../config/samples/tests/stowage-test.yaml")
	for _, pattern := range []string{"../../docs/examples/*.yaml", "../../config/samples/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if name := filepath.Base(file); !strings.Contains(cases, name) && name != "kustomization.yaml" && name != "stowage-test.yaml" && name != "peer-pods-cm.yaml" {
				t.Errorf("%s is in no test file", file)
			}
			for document := range strings.SplitSeq(read(t, file), "\n---\n") {
				var object map[string]any
				if err := yaml.Unmarshal([]byte(document), &object); err != nil {
					t.Fatalf("%s: %v", file, err)
				}
				tested = append(tested, object)
			}
		}
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	guides, err := filepath.Glob("../../docs/how-to/*.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	// A block in a fence, or indented by four spaces.
	block := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$|((?:^    [^\n]*\n|^\n)+)")
	for _, page := range append(pages, guides...) {
		for _, m := range block.FindAllStringSubmatch(read(t, page), -1) {
			var policy map[string]any
			if err := yaml.Unmarshal([]byte(m[1]+m[2]), &policy); err != nil {
				continue // not YAML
			}
			strategy := policy["CustomPodScheduleStrategy"] != nil
			if strategy {
				policy = map[string]any{"metadata": map[string]any{"annotations": policy}}
			}
			part := policy["pools"] != nil // of a policy
			if part {
				policy = map[string]any{"spec": policy}
			}
			version, _ := policy["apiVersion"].(string)
			foreign := slices.ContainsFunc([]string{"eksctl.io/", "karpenter.k8s.aws/", "rbac.authorization.k8s.io/"}, func(group string) bool { return strings.HasPrefix(version, group) })
			if !strategy && !part && policy["metadata"] == nil || foreign {
				continue // the settings of something else
			}
			if shown++; !slices.ContainsFunc(tested, func(object map[string]any) bool { return within(policy, object) }) {
				t.Errorf("%s shows a policy that is in no example:\n%s", page, m[0])
			}
		}
	}
	if shown < 10 {
		t.Errorf("only %d policies were found", shown)
	}
}

// within reports whether all of a is in b. Lists have equally many entries.
func within(a, b any) bool {
	if list, ok := a.([]any); ok {
		others, ok := b.([]any)
		return ok && slices.EqualFunc(list, others, within)
	}
	x, ok := a.(map[string]any)
	if !ok {
		return reflect.DeepEqual(a, b)
	}
	y, ok := b.(map[string]any)
	if !ok {
		return false
	}
	for key, value := range x {
		if !within(value, y[key]) {
			return false
		}
	}
	return true
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
