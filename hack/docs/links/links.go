// Package links finds the links of a built site that lead nowhere.
package links

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/net/html"
)

// page is what a page of the site has.
type page struct {
	ids   map[string]bool // of elements
	links []string        // of the attributes href and src
}

// Check reads the site in dir. It returns one line for each link to a page, a file or an element that does not exist,
// and for each page that the page index.html does not link to. Links to other sites, and out of dir, are not followed.
func Check(dir string) (problems []string, err error) {
	pages := map[string]page{}
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(file) != ".html" {
			return err
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		pages[filepath.ToSlash(name)], err = read(file)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(pages) == 0 {
		return nil, fmt.Errorf("%s has no page", dir)
	}
	linked := map[string]bool{"index.html": true}
	for name, p := range pages {
		for _, link := range p.links {
			target, fragment, ok := resolve(name, link)
			if !ok || strings.HasPrefix(target, "../") { // the site of another version stands beside this one
				continue
			}
			if name == "index.html" {
				linked[target] = true
			}
			to, isPage := pages[target]
			if !isPage {
				if info, err := os.Stat(filepath.Join(dir, filepath.FromSlash(target))); err != nil || info.IsDir() {
					problems = append(problems, fmt.Sprintf("%s: the link %s leads to no file", name, link))
				}
				continue
			}
			if fragment != "" && !to.ids[fragment] {
				problems = append(problems, fmt.Sprintf("%s: the link %s leads to no heading", name, link))
			}
		}
	}
	for name := range pages {
		if !linked[name] {
			problems = append(problems, fmt.Sprintf("%s: no link on the first page leads here", name))
		}
	}
	slices.Sort(problems)
	return problems, nil
}

// resolve returns the file of the site that a link of a page leads to. It returns false for links to other sites.
func resolve(from, link string) (file, fragment string, ok bool) {
	u, err := url.Parse(link)
	if err != nil {
		return link, "", true
	}
	if u.IsAbs() || u.Host != "" {
		return "", "", false
	}
	if u.Path == "" {
		return from, u.Fragment, true
	}
	file = path.Join(path.Dir(from), u.Path)
	if strings.HasPrefix(u.Path, "/") {
		file = strings.TrimPrefix(path.Clean(u.Path), "/")
	}
	if strings.HasSuffix(u.Path, "/") || path.Ext(file) == "" {
		file = path.Join(file, "index.html")
	}
	return file, u.Fragment, true
}

// read returns what a file has.
func read(file string) (page, error) {
	f, err := os.Open(file)
	if err != nil {
		return page{}, err
	}
	defer f.Close()
	root, err := html.Parse(f)
	if err != nil {
		return page{}, fmt.Errorf("%s: %w", file, err)
	}
	p := page{ids: map[string]bool{}}
	for node := range root.Descendants() {
		for _, a := range node.Attr {
			switch a.Key {
			case "id":
				p.ids[a.Val] = true
			case "href", "src":
				p.links = append(p.links, a.Val)
			}
		}
	}
	return p, nil
}
