package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"

	"github.com/yuin/goldmark"
	mdast "github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	extast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
)

// readMarkdown returns the paragraphs and list items of a page. A cell of a table is a phrase, and no rule of
// sentences is for it.
func readMarkdown(data []byte) ([]block, error) {
	var out []block
	doc := goldmark.New(goldmark.WithExtensions(extension.Table)).Parser().Parse(text.NewReader(data))
	err := mdast.Walk(doc, func(n mdast.Node, entering bool) (mdast.WalkStatus, error) {
		if !entering {
			return mdast.WalkContinue, nil
		}
		switch n.Kind() {
		case extast.KindTable, mdast.KindHTMLBlock, mdast.KindCodeBlock, mdast.KindFencedCodeBlock:
			return mdast.WalkSkipChildren, nil
		case mdast.KindParagraph, mdast.KindTextBlock, mdast.KindHeading:
			if n.Lines().Len() > 0 {
				out = append(out, block{line: 1 + bytes.Count(data[:n.Lines().At(0).Start], []byte("\n")), text: inline(n, data)})
			}
			return mdast.WalkSkipChildren, nil
		}
		return mdast.WalkContinue, nil
	})
	return out, err
}

// inline returns the text of a block, with code as one word and links as their texts.
func inline(n mdast.Node, data []byte) string {
	var b strings.Builder
	_ = mdast.Walk(n, func(n mdast.Node, entering bool) (mdast.WalkStatus, error) {
		switch n := n.(type) {
		case *mdast.CodeSpan, *mdast.AutoLink, *mdast.RawHTML:
			if entering {
				b.WriteString("`code`")
			}
			return mdast.WalkSkipChildren, nil
		case *mdast.Text:
			if entering {
				b.Write(n.Segment.Value(data))
				if n.SoftLineBreak() || n.HardLineBreak() {
					b.WriteByte(' ')
				}
			}
		}
		return mdast.WalkContinue, nil
	})
	return b.String()
}

// readComments returns the comments of a YAML file; consecutive lines are one.
func readComments(data []byte) ([]block, error) {
	var out []block
	last := -2
	for i, line := range strings.Split(string(data), "\n") {
		_, comment, found := strings.Cut(strings.TrimSpace(line), "# ")
		if !found || !strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		comment = strings.TrimPrefix(comment, "-- ")
		if i == last+1 && !strings.HasPrefix(comment, "@") {
			out[len(out)-1].text += " " + comment
		} else {
			out = append(out, block{line: i + 1, text: comment})
		}
		last = i
	}
	return out, nil
}

var description = regexp.MustCompile(`^(\s*)(?:- )?description: ?(.*)$`)

// readDescriptions returns the descriptions of a CustomResourceDefinition, as controller-gen writes them.
func readDescriptions(data []byte) ([]block, error) {
	var out []block
	lines := strings.Split(string(data), "\n")
	for i := 0; i < len(lines); i++ {
		m := description.FindStringSubmatch(lines[i])
		if m == nil {
			continue
		}
		b := block{line: i + 1, text: strings.TrimLeft(m[2], "|>- ")}
		for i+1 < len(lines) && strings.HasPrefix(lines[i+1], m[1]+"  ") {
			i++
			b.text += " " + strings.TrimSpace(lines[i])
		}
		if !strings.Contains(b.text, "observedGeneration represents") { // of Kubernetes, not ours
			out = append(out, b)
		}
	}
	return out, nil
}

// minTextWords is how many words a text of a program must have to be prose.
const minTextWords = 6

// readGo returns the comments and the texts of a Go file.
func readGo(data []byte) ([]block, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", data, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var out []block
	for _, group := range file.Comments {
		for _, paragraph := range strings.Split(group.Text(), "\n\n") {
			var lines []string
			for _, line := range strings.Split(paragraph, "\n") {
				if strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "+") || strings.HasPrefix(line, "# ") {
					continue // an example, a marker or a heading
				}
				lines = append(lines, line)
			}
			if text := strings.TrimSpace(strings.Join(lines, " ")); text != "" {
				out = append(out, block{line: files.Position(group.Pos()).Line, text: text})
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec, *ast.Field:
			return false
		case *ast.BasicLit:
			if n.Kind != token.STRING {
				return false
			}
			literal, err := strconv.Unquote(n.Value)
			if err != nil || len(strings.Fields(literal)) < minTextWords || strings.ContainsAny(literal, "{}\\^$|") {
				return false
			}
			for _, paragraph := range strings.Split(literal, "\n\n") {
				if strings.HasPrefix(paragraph, "  ") {
					continue // examples of a command
				}
				// In a message a semicolon stands where a page begins a sentence.
				for _, part := range strings.Split(paragraph, "; ") {
					out = append(out, block{line: files.Position(n.Pos()).Line, text: strings.Join(strings.Fields(part), " ")})
				}
			}
		}
		return true
	})
	return out, nil
}
