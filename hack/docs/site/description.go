package site

import (
	"strings"

	"github.com/yuin/goldmark/ast"
)

// describedBy is how many bytes of a page a search engine shows.
const describedBy = 160

// describe returns the first sentences of a page, as many as a search engine shows, and at least a part of the first one.
func describe(root ast.Node, source []byte) string {
	for n := root.FirstChild(); n != nil; n = n.NextSibling() {
		p, ok := n.(*ast.Paragraph)
		if !ok || onlyLinks(p, source) {
			continue
		}
		text := plain(p, source)
		if text == "" {
			continue
		}
		if len(text) <= describedBy {
			return text
		}
		if end := strings.LastIndex(text[:describedBy], ". "); end > 0 {
			return text[:end+1]
		}
		return text[:strings.LastIndexByte(text[:describedBy], ' ')] + " …"
	}
	return ""
}

// onlyLinks reports whether a paragraph has several links, and between them nothing but dots: style.css shows them as buttons.
func onlyLinks(p *ast.Paragraph, source []byte) bool {
	links := 0
	for n := p.FirstChild(); n != nil; n = n.NextSibling() {
		switch {
		case n.Kind() == ast.KindLink:
			links++
		case strings.Trim(plain(n, source), " ·") != "":
			return false
		}
	}
	return links > 1
}
