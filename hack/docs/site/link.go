package site

import (
	"fmt"
	"net/url"
	"path"
	"strings"
)

// schemas is the directory of the JSON schemas of our kinds, in docs and in the site. Editors and kubeconform read them there.
const schemas = "reference/schemas"

// repository is where files lead that are no pages.
const repository = "https://github.com/stowage-dev/stowage"

// link returns where a link of a page leads in the site. Links of the pages are paths of files. Those to other files than pages lead to
// the repository.
func (p *page) link(to string, pages map[string]*page) (string, error) {
	u, err := url.Parse(to)
	if err != nil || u.IsAbs() || u.Path == "" {
		return to, err
	}
	file := path.Join(path.Dir(p.file), u.Path)
	if file == "playground/page.html" { // in the repository, it is the page without its program
		return relative(p.out, "playground/index.html"), nil
	}
	for _, other := range pages {
		if other.file == file {
			u.Path = relative(p.out, other.out)
			return u.String(), nil
		}
	}
	if strings.HasPrefix(file, schemas+"/") && strings.HasSuffix(file, ".json") {
		return relative(p.out, file), nil
	}
	if strings.HasSuffix(file, ".md") && !strings.HasPrefix(file, "../") {
		return to, fmt.Errorf("%s: no page %q", p.file, to)
	}
	return repository + "/blob/main/" + path.Join("docs", file), nil
}

// relative returns the path of one file of the site from another one.
func relative(from, to string) string {
	return strings.Repeat("../", strings.Count(from, "/")) + to
}
