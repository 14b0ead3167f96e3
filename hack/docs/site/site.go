// Package site makes the site of the documents from their Markdown. The pages have no front matter, so that GitHub shows them as they are.
// The title of a page is its first heading.
//
// The site works in any directory of a server, and from files: all links are relative.
package site

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	extast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// Source is where the parts of the site are.
type Source struct {
	Docs       string // the directory of the pages, with pictures and an icon
	Assets     string // the directory of style.css and site.js
	Template   string // of a page
	Navigation string // a file: titles, and below them the names of pages, indented

	Version  string   // of Stowage, that the pages describe; empty if they do not say so
	Versions []string // all that the site has, each in a directory of its name beside this one
}

// group is a part of the navigation.
type group struct {
	title string
	pages []string
}

// page is a document.
type page struct {
	name     string // in the navigation: spread, migrate, how-to/impact
	file     string // below docs: spread.md, migrate/README.md
	out      string // below the site: spread.html, migrate/index.html
	title    string
	about    string // its first sentences
	content  string
	contents []heading
	sections []section
}

// heading is an entry of the contents of a page.
type heading struct {
	Level    int
	ID, Text string
}

// section is an entry of the search: its address, the title of its page, its heading, and its text.
type section struct {
	At      string `json:"at"`
	Page    string `json:"page"`
	Heading string `json:"heading"`
	Text    string `json:"text"`
}

// Build writes the site into a directory. It reports every page that is not in the navigation, and every name in the navigation that is
// no page.
func Build(from Source, out string) error {
	groups, err := readNavigation(from.Navigation)
	if err != nil {
		return err
	}
	pages, err := readPages(from.Docs)
	if err != nil {
		return err
	}
	var order []*page // of the navigation, for the links to the next one
	var errs []error
	for _, g := range groups {
		for _, name := range g.pages {
			if p := pages[name]; p != nil {
				order = append(order, p)
			} else {
				errs = append(errs, fmt.Errorf("%s names %q, which is no page of %s", from.Navigation, name, from.Docs))
			}
		}
	}
	for name, p := range pages {
		if name != "" && !slices.Contains(order, p) {
			errs = append(errs, fmt.Errorf("%s does not name %q", from.Navigation, name))
		}
	}
	for _, p := range pages {
		if err := p.convert(from.Docs, pages); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return write(from, out, groups, pages, order)
}

func readNavigation(file string) (groups []group, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, " \n")
		name := strings.TrimLeft(line, " ")
		switch {
		case name == "":
		case name == line:
			groups = append(groups, group{title: name})
		case len(groups) == 0:
			return nil, fmt.Errorf("%s: %q stands below no title", file, name)
		default:
			last := &groups[len(groups)-1]
			last.pages = append(last.pages, name)
		}
	}
	return groups, nil
}

// readPages returns the pages by their names. That of the first page is empty.
func readPages(docs string) (map[string]*page, error) {
	pages := map[string]*page{}
	err := fs.WalkDir(os.DirFS(docs), ".", func(file string, d fs.DirEntry, err error) error {
		stem, isPage := strings.CutSuffix(file, ".md")
		if err != nil || d.IsDir() || !isPage {
			return err
		}
		p := &page{name: stem, file: file, out: stem + ".html"}
		if dir, base := path.Split(stem); base == "README" {
			p.name, p.out = strings.TrimSuffix(dir, "/"), dir+"index.html"
		}
		pages[p.name] = p
		return nil
	})
	return pages, err
}

// markdown is that of GitHub, without HTML.
var markdown = goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()),
	goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(codeRenderer{}, 100))))

// ids names headings as GitHub does.
type ids map[string]int

var dropped = regexp.MustCompile(`[^\p{L}\p{N}\-_ ]`)

// Generate implements parser.IDs.
func (i ids) Generate(value []byte, _ ast.NodeKind) []byte {
	id := strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(string(value)), ""), " ", "-")
	n := i[id]
	i[id]++
	if n > 0 {
		id = fmt.Sprintf("%s-%d", id, n)
	}
	return []byte(id)
}

// Put implements parser.IDs.
func (ids) Put([]byte) {}

// convert makes the content of a page.
func (p *page) convert(docs string, pages map[string]*page) error {
	source, err := os.ReadFile(filepath.Join(docs, filepath.FromSlash(p.file)))
	if err != nil {
		return err
	}
	root := markdown.Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(ids{}))))
	var errs []error
	err = ast.Walk(root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			id, _ := n.AttributeString("id")
			name, _ := id.([]byte)
			if h := (heading{n.Level, string(name), plain(n, source)}); n.Level == 1 && p.title == "" {
				p.title = h.Text
			} else if n.Level > 1 && n.Level <= 3 {
				p.contents = append(p.contents, h)
			}
		case *ast.Link:
			to, err := p.link(string(n.Destination), pages)
			if err != nil {
				errs = append(errs, err)
			}
			n.Destination = []byte(to)
		case *ast.Paragraph:
			if onlyLinks(n, source) {
				n.SetAttributeString("class", []byte("buttons"))
			}
		case *extast.Table:
			labelCells(n, source)
		case *ast.HTMLBlock:
			if line := n.Lines().At(0); !bytes.HasPrefix(bytes.TrimSpace(line.Value(source)), []byte("<!--")) {
				errs = append(errs, fmt.Errorf("%s: it has HTML, which the site leaves out: %s", p.file, line.Value(source)))
			}
		case *ast.RawHTML:
			errs = append(errs, fmt.Errorf("%s: it has HTML, which the site leaves out", p.file))
		}
		return ast.WalkContinue, nil
	})
	if p.title == "" {
		errs = append(errs, fmt.Errorf("%s has no heading of the first level", p.file))
	}
	var content bytes.Buffer
	if err := errors.Join(append(errs, err, markdown.Renderer().Render(&content, source, root))...); err != nil {
		return err
	}
	p.content = content.String()
	p.sections, p.about = p.split(root, source), describe(root, source)
	return nil
}

// split returns the sections of a page for the search.
func (p *page) split(root ast.Node, source []byte) (out []section) {
	for n := root.FirstChild(); n != nil; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok && h.Level <= 3 {
			s := section{At: p.out, Page: p.title}
			if h.Level > 1 {
				id, _ := h.AttributeString("id")
				name, _ := id.([]byte)
				s.Heading = plain(h, source)
				s.At += "#" + string(name)
			}
			out = append(out, s)
		} else if len(out) > 0 {
			last := &out[len(out)-1]
			last.Text = strings.TrimSpace(last.Text + " " + strings.Join(strings.Fields(plain(n, source)), " "))
		}
	}
	return out
}

// plain is the text of a node.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Text:
			if entering {
				b.Write(n.Segment.Value(source))
				if n.SoftLineBreak() || n.HardLineBreak() {
					b.WriteByte(' ')
				}
			}
		case *ast.CodeBlock, *ast.FencedCodeBlock:
			if entering {
				for i := range n.Lines().Len() {
					line := n.Lines().At(i)
					b.Write(line.Value(source))
				}
			}
		default:
			if !entering && n.Type() == ast.TypeBlock {
				b.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})
	return strings.TrimSpace(b.String())
}

// link to a page in a template.
type pageLink struct {
	Title, Href string
	Here        bool
}

// write writes the pages, and what stands beside them.
func write(from Source, out string, groups []group, pages map[string]*page, order []*page) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, dir := range []string{"pictures", schemas} {
		if err := os.CopyFS(filepath.Join(out, filepath.FromSlash(dir)), os.DirFS(filepath.Join(from.Docs, filepath.FromSlash(dir)))); err != nil {
			return err
		}
	}
	var sections []section
	for _, p := range order { // without the first page, which only says where all is
		sections = append(sections, p.sections...)
	}
	index, err := json.Marshal(sections)
	if err != nil {
		return err
	}
	// The index is a script, because a page that was opened from a file may not fetch one.
	files := map[string][]byte{"search.js": append(append([]byte("window.searchIndex = "), index...), ";\n"...)}
	for name, file := range map[string]string{"style.css": filepath.Join(from.Assets, "style.css"), "site.js": filepath.Join(from.Assets, "site.js"), "icon.svg": filepath.Join(from.Docs, "icon.svg")} {
		if files[name], err = os.ReadFile(file); err != nil {
			return err
		}
	}
	named := map[string]string{} // with a part of their hash, so that a browser keeps none that has changed
	for name, data := range files {
		named[name] = name
		if name != "icon.svg" {
			sum := sha256.Sum256(data)
			named[name] = strings.TrimSuffix(name, path.Ext(name)) + "." + hex.EncodeToString(sum[:6]) + path.Ext(name)
		}
		if err := os.WriteFile(filepath.Join(out, named[name]), data, 0o644); err != nil {
			return err
		}
	}
	layout, err := template.ParseFiles(from.Template)
	if err != nil {
		return err
	}
	for _, p := range pages {
		if err := p.write(from, layout, out, named, groups, pages, order); err != nil {
			return err
		}
	}
	return nil
}

// write writes a page.
func (p *page) write(from Source, layout *template.Template, out string, named map[string]string, groups []group, pages map[string]*page, order []*page) error {
	type navigation struct {
		Title string
		Pages []pageLink
	}
	to := func(other *page) *pageLink {
		return &pageLink{other.title, relative(p.out, other.out), other == p}
	}
	data := struct {
		Title, About                                 string
		Root, Style, Script, Index, Repository, File string
		Version                                      string
		Versions                                     []pageLink
		Home                                         bool
		Navigation                                   []navigation
		Contents                                     []heading
		Content                                      template.HTML
		Previous, Next                               *pageLink
	}{
		Title: p.title, About: p.about, Version: from.Version, Root: strings.Repeat("../", strings.Count(p.out, "/")), Style: named["style.css"], Script: named["site.js"], Index: named["search.js"],
		Repository: repository, File: p.file, Home: p.name == "", Content: template.HTML(p.content), //nolint:gosec // it is made of our own pages, without HTML
	}
	for _, version := range from.Versions {
		data.Versions = append(data.Versions, pageLink{version, data.Root + "../" + version + "/index.html", version == from.Version})
	}
	if len(p.contents) > 1 {
		data.Contents = p.contents
	}
	for _, g := range groups {
		n := navigation{Title: g.title}
		for _, name := range g.pages {
			n.Pages = append(n.Pages, *to(pages[name]))
		}
		data.Navigation = append(data.Navigation, n)
	}
	if at := slices.Index(order, p); at >= 0 {
		if at > 0 {
			data.Previous = to(order[at-1])
		}
		if at+1 < len(order) {
			data.Next = to(order[at+1])
		}
	}
	var b bytes.Buffer
	if err := layout.Execute(&b, data); err != nil {
		return err
	}
	file := filepath.Join(out, filepath.FromSlash(p.out))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}
