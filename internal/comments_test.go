package internal

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// declared are the names that the packages of this repository declare, by the packages' names: types, functions, constants, variables, and the
// methods and fields of types, as in Type.Field. Packages may share a name.
type declared map[string]map[string]bool

func (d declared) add(pkg, name string) {
	if d[pkg] == nil {
		d[pkg] = map[string]bool{}
	}
	d[pkg][name] = true
}

func (d declared) file(f *ast.File) {
	pkg := f.Name.Name
	d.add(pkg, "")
	for _, decl := range f.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			name := decl.Name.Name
			if decl.Recv != nil {
				of := decl.Recv.List[0].Type
				if star, ok := of.(*ast.StarExpr); ok {
					of = star.X
				}
				if generic, ok := of.(*ast.IndexExpr); ok {
					of = generic.X
				}
				if of, ok := of.(*ast.Ident); ok {
					name = of.Name + "." + name
				}
			}
			d.add(pkg, name)
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						d.add(pkg, name.Name)
					}
				case *ast.TypeSpec:
					d.add(pkg, spec.Name.Name)
					d.members(pkg, spec)
				}
			}
		}
	}
}

// members adds the fields of a struct and the methods of an interface.
func (d declared) members(pkg string, spec *ast.TypeSpec) {
	var fields *ast.FieldList
	switch of := spec.Type.(type) {
	case *ast.StructType:
		fields = of.Fields
	case *ast.InterfaceType:
		fields = of.Methods
	default:
		return
	}
	for _, field := range fields.List {
		for _, name := range field.Names {
			d.add(pkg, spec.Name.Name+"."+name.Name)
		}
		if len(field.Names) == 0 { // embedded
			d.add(pkg, spec.Name.Name+".*")
		}
	}
}

// has reports whether a package has a name. Members of a type that embeds another one are not looked up.
func (d declared) has(pkg, name string) bool {
	of, _, member := strings.Cut(name, ".")
	return d[pkg][name] || member && d[pkg][of+".*"]
}

// A link is what Go's documentation shows as one: the name of a type, perhaps with a package before it or a method after it. A mention is
// "in package x", or a package at the beginning of a sentence.
var (
	link    = regexp.MustCompile(`\[\*?(?:([a-z][a-z0-9]*)\.)?([A-Z]\w*(?:\.\w+)?)\]`)
	mention = regexp.MustCompile(`(?:(?:\(|\b(?:in|see|by|to|through|from|and|uses|asks) )packages?|(?:^// |\. )Package) ([a-z][a-z0-9]+)`)
)

// What a comment names is there: the packages, and the types, functions and fields in links.
func TestCommentsNameWhatExists(t *testing.T) {
	files, names := map[string]*ast.File{}, declared{}
	fset := token.NewFileSet()
	for _, root := range []string{".", "../cmd", "../api", "../test", "../hack"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			f, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err == nil {
				files[path] = f
				names.file(f)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(files) < 500 {
		t.Fatalf("%d files were read", len(files))
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		f := files[path]
		imported := map[string]bool{} // by other modules
		for _, spec := range f.Imports {
			at := strings.Trim(spec.Path.Value, `"`)
			name := at[strings.LastIndex(at, "/")+1:]
			if spec.Name != nil {
				name = spec.Name.Name
			}
			if imported[name] = true; strings.Contains(at, "stowage") && spec.Name != nil {
				names[name] = names[at[strings.LastIndex(at, "/")+1:]]
			}
		}
		for _, group := range f.Comments {
			for _, c := range group.List {
				at := fset.Position(c.Pos())
				if strings.HasPrefix(c.Text, "// +") { // a marker
					continue
				}
				for _, m := range mention.FindAllStringSubmatch(c.Text, -1) {
					if name := m[1]; names[name] == nil && !imported[name] {
						t.Errorf("%s: there is no package %s", at, name)
					}
				}
				for _, m := range link.FindAllStringSubmatch(c.Text, -1) {
					pkg, name := m[1], m[2]
					switch {
					case pkg == "" && !names.has(f.Name.Name, name) && !names.has(strings.TrimSuffix(f.Name.Name, "_test"), name):
						t.Errorf("%s: %s is not in package %s", at, m[0], f.Name.Name)
					case pkg != "" && names[pkg] != nil && !names.has(pkg, name) && !imported[pkg], pkg != "" && names[pkg] == nil && !imported[pkg]:
						t.Errorf("%s: %s is not there", at, m[0])
					}
				}
			}
		}
	}
}
