package document

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	noWord  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// Each relative link in a page leads to a file, and its fragment to a heading of that.
func TestLinks(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "examples/*.md"} {
		found, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		pages = append(pages, found...)
	}
	for _, page := range pages {
		for _, m := range link.FindAllStringSubmatch(text(t, page), -1) {
			to, fragment, _ := strings.Cut(m[1], "#")
			if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
				continue
			}
			file := page
			if to != "" {
				file = filepath.Join(filepath.Dir(page), to)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			} else if fragment != "" && !anchors(t, file)[fragment] {
				t.Errorf("%s links to %s, and %s has no such heading", page, m[1], file)
			}
		}
	}
}

// text is a page without its blocks of code.
func text(t *testing.T, page string) string {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return fenced.ReplaceAllString(string(b), "")
}

// anchors are the fragments that GitHub gives to the headings of a page.
func anchors(t *testing.T, page string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text(t, page), -1) {
		name := noWord.ReplaceAllString(strings.ToLower(m[1]), "")
		names[strings.ReplaceAll(name, " ", "-")] = true
	}
	return names
}
