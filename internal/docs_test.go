package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Every label and annotation is in the reference.
func TestLabelsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/labels.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range []string{"../api/stowage/v1alpha1/names.go", "../api/flexdaemonsets/v1alpha1/types.go"} {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			name := spec.Names[0].Name
			value, ok := spec.Values[0].(*ast.BasicLit)
			if !ok || !strings.HasSuffix(name, "Annotation") && !strings.HasSuffix(name, "Label") && name != "ModeKey" && name != "MutatedByKey" {
				return true
			}
			found++
			if key, err := strconv.Unquote(value.Value); err != nil || !strings.Contains(string(page), "`"+key+"`") {
				t.Errorf("docs/labels.md does not have %s (%s)", value.Value, name)
			}
			return true
		})
	}
	if found < 15 {
		t.Errorf("only %d labels and annotations were found", found)
	}
}

// Every page is in the navigation of the site, and the navigation has no other. `make docs` says so, too.
func TestPagesAreInTheNavigation(t *testing.T) {
	navigation, err := os.ReadFile("../hack/docs/navigation.txt")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for line := range strings.Lines(string(navigation)) {
		if page, ok := strings.CutPrefix(line, "  "); ok {
			named[strings.TrimSpace(page)] = true
		}
	}
	err = fs.WalkDir(os.DirFS("../docs"), ".", func(file string, _ fs.DirEntry, err error) error {
		name, isPage := strings.CutSuffix(file, ".md")
		name = strings.TrimSuffix(name, "/README")
		if err != nil || !isPage || name == "README" {
			return err
		}
		if !named[name] {
			t.Errorf("hack/docs/navigation.txt does not name %q", name)
		}
		delete(named, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range named {
		t.Errorf("hack/docs/navigation.txt names %q, which is no page of docs/", name)
	}
}
