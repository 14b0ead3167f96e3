package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// mutant is a file with one change.
type mutant struct {
	// name is the file, the function, the change, and its number among the same changes of that function. It holds when other
	// functions change.
	name   string
	file   string
	source []byte
}

// swaps are the operators that stand for each other.
var swaps = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR, token.EQL: token.NEQ, token.NEQ: token.EQL,
	token.LAND: token.LOR, token.LOR: token.LAND, token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL, token.REM: token.MUL,
	token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN, token.INC: token.DEC, token.DEC: token.INC,
}

// mutantsOf returns all mutants of a package's files.
func mutantsOf(pkg string) ([]mutant, error) {
	files, err := filepath.Glob(filepath.Join(pkg, "*.go"))
	if err != nil {
		return nil, err
	}
	var out []mutant
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		some, err := mutate(file, source)
		if err != nil {
			return nil, err
		}
		out = append(out, some...)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no statement to change", pkg)
	}
	return out, nil
}

// mutate returns the mutants of one file.
func mutate(file string, source []byte) ([]mutant, error) {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var out []mutant
	for _, decl := range parsed.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil || f.Name.Name == "String" { // texts for people decide nothing
			continue
		}
		numbers := map[string]int{}
		change := func(from, to token.Pos, text, what string) {
			numbers[what]++
			begin, end := fset.Position(from).Offset, fset.Position(to).Offset
			out = append(out, mutant{
				name: fmt.Sprintf("%s %s: %s #%d", file, nameOf(f), what, numbers[what]),
				file: file, source: slices.Concat(source[:begin], []byte(text), source[end:]),
			})
		}
		swap := func(at token.Pos, from token.Token) {
			if to, ok := swaps[from]; ok {
				change(at, at+token.Pos(len(from.String())), to.String(), from.String()+" to "+to.String())
			}
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				if !isText(n.X) && !isText(n.Y) {
					swap(n.OpPos, n.Op)
				}
			case *ast.AssignStmt:
				if swap(n.TokPos, n.Tok); n.Tok == token.ASSIGN {
					change(n.Pos(), n.End(), blank(n), "assignment removed")
				}
			case *ast.IncDecStmt:
				swap(n.TokPos, n.Tok)
			case *ast.ExprStmt:
				change(n.Pos(), n.End(), "", "call removed")
			default:
				mutateLeaf(n, change)
			}
			return true
		})
	}
	return out, nil
}

// mutateLeaf changes negations, constants and continue.
func mutateLeaf(n ast.Node, change func(from, to token.Pos, text, what string)) {
	switch n := n.(type) {
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			change(n.OpPos, n.OpPos+1, "", "! removed")
		}
	case *ast.Ident:
		if n.Name == "true" || n.Name == "false" {
			to := strconv.FormatBool(n.Name == "false")
			change(n.Pos(), n.End(), to, n.Name+" to "+to)
		}
	case *ast.BasicLit:
		if value, err := strconv.ParseInt(n.Value, 0, 64); n.Kind == token.INT && err == nil {
			change(n.Pos(), n.End(), strconv.FormatInt(value+1, 10), n.Value+" plus 1")
		}
	case *ast.BranchStmt:
		if n.Tok == token.CONTINUE && n.Label == nil {
			change(n.Pos(), n.End(), "break", "continue to break")
		}
	}
}

// isText reports whether an expression is a string, to which nothing but another one can be added.
func isText(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && lit.Kind == token.STRING
}

// blank is a statement that uses what an assignment uses, and assigns nothing. Otherwise a variable might be left unused.
func blank(n *ast.AssignStmt) string {
	for _, x := range n.Lhs {
		if _, ok := x.(*ast.Ident); !ok {
			return ""
		}
	}
	var names []string
	for _, x := range n.Lhs {
		if name := x.(*ast.Ident).Name; name != "_" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return strings.Repeat("_, ", len(names)-1) + "_ = " + strings.Join(names, ", ")
}

// nameOf is a function's name, with that of its receiver.
func nameOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	return fmt.Sprintf("%s.%s", of.(*ast.Ident).Name, f.Name.Name)
}
