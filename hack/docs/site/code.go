package site

import (
	"bytes"

	"github.com/alecthomas/chroma/v2/formatters/html"
	"github.com/alecthomas/chroma/v2/lexers"
	"github.com/alecthomas/chroma/v2/styles"
	"github.com/yuin/goldmark/ast"
	extast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/util"
)

// codeRenderer gives the words of a block of code the classes that style.css has colors for. A block without a language keeps one color.
type codeRenderer struct{}

// RegisterFuncs implements renderer.NodeRenderer.
func (codeRenderer) RegisterFuncs(to renderer.NodeRendererFuncRegisterer) {
	to.Register(ast.KindFencedCodeBlock, renderCode)
}

var codeFormatter = html.New(html.WithClasses(true), html.PreventSurroundingPre(true))

func renderCode(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	language := string(n.(*ast.FencedCodeBlock).Language(source))
	var code bytes.Buffer
	for i := range n.Lines().Len() {
		line := n.Lines().At(i)
		code.Write(line.Value(source))
	}
	_, _ = w.WriteString(`<pre><code class="language-` + string(util.EscapeHTML([]byte(language))) + `">`)
	if lexer := lexers.Get(language); lexer != nil {
		tokens, err := lexer.Tokenise(nil, code.String())
		if err != nil {
			return ast.WalkStop, err
		}
		if err := codeFormatter.Format(w, styles.Fallback, tokens); err != nil {
			return ast.WalkStop, err
		}
	} else {
		_, _ = w.Write(util.EscapeHTML(code.Bytes()))
	}
	_, _ = w.WriteString("</code></pre>\n")
	return ast.WalkSkipChildren, nil
}

// labelCells gives each cell of a table the heading of its column: on a narrow screen, style.css shows a row as a list.
func labelCells(table *extast.Table, source []byte) {
	var labels []string
	for row := table.FirstChild(); row != nil; row = row.NextSibling() {
		_, isHeader := row.(*extast.TableHeader)
		i := 0
		for cell := row.FirstChild(); cell != nil; cell = cell.NextSibling() {
			if isHeader {
				labels = append(labels, plain(cell, source))
			} else if i < len(labels) && labels[i] != "" {
				cell.SetAttributeString("data-label", []byte(labels[i]))
			}
			i++
		}
	}
}
