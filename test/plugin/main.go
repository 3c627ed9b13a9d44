// Command plugin adds the files of a new plugin to a tree: the plugin, its lines in the table of
// applets, its entry for the tests over all plugins, and its example. The result builds and passes
// these tests: a link that drops what is sent to it or, with -chained, a plugin that sets the MTU
// of the interface. It is a start for the real plugin.
package main

import (
	"bytes"
	"embed"
	"errors"
	"flag"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
)

//go:embed templates
var files embed.FS

var templates = template.Must(template.ParseFS(files, "templates/*.tmpl"))

// A plugin is the data of the templates.
type plugin struct {
	Name    string // as in "type"
	Package string // its Go package: without hyphens
	DataDir string
	Subnet  string // of its example, unused by others
}

func main() {
	name := flag.String("name", "", "`NAME` of the plugin, as in \"type\"")
	chained := flag.Bool("chained", false, "it works on the interface of a plugin before it")
	flag.Parse()
	if err := write(flag.Arg(0), *name, *chained); err != nil {
		fmt.Fprintln(os.Stderr, "plugin:", err)
		os.Exit(1)
	}
	fmt.Println("Then write the table and the rows: go generate ./applets/builtin && go test -run Places -update .")
}

// write adds the files and lines to the tree at root, and prints each. It changes nothing if a file
// exists.
func write(root, name string, chained bool) error {
	if !regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`).MatchString(name) {
		return fmt.Errorf("-name %q: small letters and digits, parts joined by hyphens", name)
	}
	p := plugin{Name: name, Package: strings.ReplaceAll(name, "-", ""), DataDir: "/run/cnibox/" + name}
	kind := "interface"
	if chained {
		kind = "chained"
	}
	subnet, err := freeSubnet(root)
	if err != nil {
		return err
	}
	p.Subnet = subnet
	places := map[string]string{
		"applets/" + p.Package + "/" + p.Package + ".go": kind + ".go.tmpl",
		"examples/" + name + ".conflist":                 kind + ".conflist.tmpl",
	}
	for place := range places {
		if _, err := os.Lstat(filepath.Join(root, place)); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s is there already", place)
		}
	}
	for place, source := range places {
		text, err := p.text(source)
		if err == nil && strings.HasSuffix(place, ".go") {
			text, err = format.Source(text)
		}
		if err == nil {
			err = create(filepath.Join(root, place), text)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
		fmt.Println(place)
	}
	return p.enter(root, kind)
}

// text executes a template.
func (p plugin) text(source string) ([]byte, error) {
	var b bytes.Buffer
	err := templates.ExecuteTemplate(&b, source, p)
	return b.Bytes(), err
}

// create writes a file, and creates its directory.
func create(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// enter adds the plugin's lines to the table and to the tests over all plugins.
func (p plugin) enter(root, kind string) error {
	entry, err := p.text(kind + ".entry.tmpl")
	if err != nil {
		return err
	}
	for _, place := range []struct {
		file, from, line string
		before           func(line string) bool // matches the first line after the new one
	}{
		{"testdata/applets.golden", "bandwidth", p.Name + "\n", func(line string) bool { return line == "" || line > p.Name }},
		{"applets/applettest/plugins.go", "var Plugins =", string(entry), func(line string) bool { return line == "}" }},
	} {
		path := filepath.Join(root, place.file)
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		lines := strings.SplitAfter(string(b), "\n")
		in, at := false, -1
		for i, line := range lines {
			if in && place.before(strings.TrimRight(line, "\n")) {
				at = i
				break
			}
			in = in || strings.HasPrefix(line, place.from)
		}
		if at < 0 {
			return fmt.Errorf("%s has no %q", place.file, place.from)
		}
		text := strings.Join(lines[:at], "") + place.line + strings.Join(lines[at:], "")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
		fmt.Println(place.file)
	}
	return nil
}

// freeSubnet returns a subnet that no example has.
func freeSubnet(root string) (string, error) {
	all, err := filepath.Glob(filepath.Join(root, "examples/*.conflist"))
	if err != nil || len(all) == 0 {
		return "", fmt.Errorf("no examples in %s: give the root of the tree", root)
	}
	var used strings.Builder
	for _, path := range all {
		b, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		used.Write(b)
	}
	for n := 100; n < 256; n++ {
		if !strings.Contains(used.String(), fmt.Sprintf("10.%d.", n)) {
			return fmt.Sprintf("10.%d.0.0/24", n), nil
		}
	}
	return "", errors.New("the examples have all of 10.100.0.0 to 10.255.0.0")
}
