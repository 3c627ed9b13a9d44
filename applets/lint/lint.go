// Package lint finds what is wrong, or not meant, in network configurations: what ADD would
// refuse, and what it would silently ignore. It knows no key and no rule of a plugin: keys are
// those of the structs that plugins decode ([applet.Applet.Conf]), rules those that they check
// before they open anything ([spec.Verbs.Validate]).
//
// Begin reading at [Linter.Files]. keys.go compares members with structs, chain.go looks at what
// plugins are to each other, networks.go at what networks are; position.go finds the place of a
// message in the file.
package lint

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"cnibox/applets/applet"
	"cnibox/chain"
	"cnibox/internal/disk"
	"cnibox/internal/schema"
	"cnibox/spec"
)

// A Finding is one mistake, at its place.
type Finding struct {
	File    string `json:"file"`
	Line    int    `json:"line"`   // from 1; 0: the file could not be read
	Column  int    `json:"column"` // of the key, in bytes from 1
	Key     string `json:"key"`    // as plugins[0].ipam.subnet; empty: the document
	Message string `json:"message"`
}

// String is the finding as compilers print it.
func (f *Finding) String() string {
	if f.Line == 0 {
		return f.File + ": " + f.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", f.File, f.Line, f.Column, f.Message)
}

// A Linter has what a configuration is compared with.
type Linter struct {
	Applets applet.Table
	Path    []string    // where external plugins are; empty: not known
	Routes  []HostRoute // of the host; nil: not known
}

// builtIn finds the plugins of this program alone. An external one of the same name has the same
// keys, as far as it is the reference's.
type builtIn struct{ applet.Table }

func (b builtIn) Find(plugin string) (*spec.Verbs, error) {
	if verbs, ok := b.Plugin(plugin); ok {
		return &verbs, nil
	}
	return nil, nil
}

func (b builtIn) Invoke(context.Context, string, *spec.Request) (*spec.Result, error) {
	return nil, errors.New("a linter runs no plugin")
}

// A problem is a finding whose place is not known yet.
type problem struct {
	file, key string
	value     string // in what the key has; empty: the key's own
	name      bool   // it is about the name of the key
	offset    int    // of what is no JSON; 0: see key
	text      string
}

// Files lints files, and of directories the configurations in them. Networks are compared with
// one another. The error is of a file or a directory that cannot be read.
func (l *Linter) Files(paths ...string) ([]*Finding, error) {
	c := &checker{Linter: l, docs: map[string]*document{}, fields: map[reflect.Type][]field{}}
	var networks []*network
	for _, path := range paths {
		files, err := configurations(path)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			n, err := c.file(file)
			if err != nil {
				return nil, err
			}
			if n != nil {
				networks = append(networks, n)
			}
		}
	}
	c.compare(networks)
	return c.findings(), nil
}

// List lints the plugins of a network that is loaded, for the verbs that run them: unknown keys,
// capabilities that nothing reads, and the order. What ADD would refuse is left out, since they
// report it themselves.
func (l *Linter) List(list *chain.List) []*Finding {
	c := &checker{Linter: l, docs: map[string]*document{}, fields: map[reflect.Type][]field{}, quick: true, source: list.From}
	c.list(list)
	if len(c.problems) == 0 {
		return nil
	}
	return c.findings()
}

// Repeated returns the members of a JSON document whose name their object has had before.
func Repeated(file string, doc []byte) []*Finding { return newDocument(doc).repeated(file) }

// configurations returns the files of a directory that are configurations, or the file itself.
func configurations(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".conflist" || ext == ".conf" || ext == ".json") {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	return files, nil
}

// A checker gathers the problems of one call.
type checker struct {
	*Linter
	quick    bool // of a list that is about to be run
	problems []problem
	docs     map[string]*document
	source   chain.Source             // what is loaded already; that of Files is in docs
	fields   map[reflect.Type][]field // of the structs that were looked at
}

// add notes a problem of a file at a key.
func (c *checker) add(file, key, format string, args ...any) {
	c.problems = append(c.problems, problem{file: file, key: key, text: fmt.Sprintf(format, args...)})
}

// addError notes an error, which may have the key that it is about, of what is at one of the
// keys within. Without, it is about otherwise.
func (c *checker) addError(file string, err error, otherwise string, within ...string) {
	text, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "invalid network config: "), "; see "+file)
	p := problem{file: file, key: otherwise, text: strings.Join(strings.Fields(text), " ")}
	var keyed *spec.KeyError
	if errors.As(err, &keyed) {
		p.key = join(within[0], keyed.Key)
		for _, key := range within {
			if at, ok := c.doc(file).lookup(join(key, keyed.Key)); ok {
				p.key = at.key
				break
			}
		}
	}
	c.problems = append(c.problems, p)
}

// doc returns a file that was read before, as it is now.
func (c *checker) doc(file string) *document {
	if c.docs[file] == nil {
		raw := c.source.Doc
		if file != c.source.File {
			raw, _ = disk.Read(file, 0, spec.MaxConf) // the reader has reported the error
		}
		c.docs[file] = newDocument(raw)
	}
	return c.docs[file]
}

// file lints one file; nil: it is no network.
func (c *checker) file(file string) (*network, error) {
	doc, err := disk.Read(file, 0, spec.MaxConf)
	if err != nil {
		return nil, err
	}
	c.docs[file] = newDocument(doc)
	if isResult(doc) {
		for _, p := range schema.CheckResult(doc) {
			c.add(file, p.Path, "%s", p)
		}
		return nil, nil
	}
	if isSingle(doc) && filepath.Ext(file) == ".conflist" {
		c.add(file, "type", "the configuration of one plugin belongs in a file that ends in .conf, or in the list %q", "plugins")
		return nil, nil
	}
	l, err := chain.LoadFile(file)
	if err != nil {
		c.unreadable(file, err)
		return nil, nil
	}
	return c.list(l), nil
}

// isResult reports whether a document is what a plugin prints, and no configuration.
func isResult(doc []byte) bool {
	return (has(doc, "interfaces") || has(doc, "ips")) && !has(doc, "plugins") && !has(doc, "type")
}

// isSingle reports whether a document is the configuration of one plugin.
func isSingle(doc []byte) bool { return has(doc, "type") && !has(doc, "plugins") }

// has reports whether a document is an object with a member.
func has(doc []byte, name string) bool {
	members, err := spec.Members(doc)
	return err == nil && members[name] != nil
}

// unreadable notes why a list could not be loaded.
func (c *checker) unreadable(file string, err error) {
	var of *chain.SourceError
	if !errors.As(err, &of) {
		c.add(file, "", "%v", err)
		return
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		offset, reason := newDocument(of.Doc).mistake(syntax)
		c.problems = append(c.problems, problem{file: of.File, offset: offset, text: reason})
		return
	}
	c.addError(of.File, of.Err, "", "")
}

// list lints a list and its plugins.
func (c *checker) list(l *chain.List) *network {
	n := &network{list: l, file: l.File}
	if !c.quick && len(l.Plugins) > 0 && (l.Plugins[0].From.Key != "" || l.Plugins[0].From.File != l.File) { // else it has the keys of its plugin
		c.object(l.File, "", l.Doc(), c.keysOf(reflect.TypeFor[chain.Document]()))
	}
	before := len(c.problems)
	if !c.quick {
		c.schema(l, nil)
		if _, err := l.Supported(); err != nil {
			c.addError(l.File, err, "cniVersion", "")
		}
	}
	sound := len(c.problems) == before // name and version, which are the plugins' too
	for i := range l.Plugins {
		n.members = append(n.members, c.plugin(l, &l.Plugins[i], sound))
	}
	c.order(n.members)
	return n
}

// A member is a plugin of a list as lint knows it.
type member struct {
	*chain.Plugin
	verbs     *spec.Verbs // nil: an external plugin
	resources spec.Resources
}

// plugin lints one plugin of a list, of which name and version are sound or not.
func (c *checker) plugin(l *chain.List, p *chain.Plugin, sound bool) *member {
	m := &member{Plugin: p}
	if m.verbs, _ = (builtIn{c.Applets}).Find(p.Type); m.verbs != nil {
		c.pluginKeys(p, m.verbs)
		c.capabilities(p)
	}
	if c.quick {
		return m // ADD and STATUS report all else
	}
	c.missing(p, p.Type, "type")
	if p.IPAM != "" && m.verbs != nil {
		c.missing(p, p.IPAM, "ipam.type")
	}
	c.schema(l, p)
	if m.verbs != nil && sound {
		m.resources = c.validate(l, p)
		c.routes(m)
	}
	return m
}

// validate runs the plugin's own check. Ranges may come from the runtime, if it is asked to send them.
func (c *checker) validate(l *chain.List, p *chain.Plugin) spec.Resources {
	verb := spec.Add
	if p.Capabilities["ipRanges"] {
		verb = spec.Status
	}
	runner := chain.Runner{Invoker: builtIn{c.Applets}, Warn: func(string, ...any) {}} // ADD warns
	r, err := runner.Request(verb, l, p, chain.Target{ContainerID: "lint", IfName: "eth0", NetNS: "/run/netns/lint"})
	var resources spec.Resources
	key := join(p.From.Key, "type")
	if err == nil {
		if resources, err = r.Validate(p.Type); err != nil && p.IPAM != "" {
			if _, of := r.Validate(p.IPAM); of != nil {
				key = join(p.From.Key, "ipam")
			}
		}
	}
	if err != nil {
		within := []string{p.From.Key, join(p.From.Key, "ipam")}
		for _, d := range c.delegated(p.Type) {
			within = append(within, join(p.From.Key, d.name))
		}
		c.addError(p.From.File, err, key, within...)
	}
	return resources
}

// schema compares a plugin's configuration with the JSON schema, or, without a plugin, the name
// and the version of a list. A missing version is the first one. What is in the "ipam" of an
// external plugin is not known.
func (c *checker) schema(l *chain.List, p *chain.Plugin) {
	set := map[string]any{"cniVersion": cmp.Or(l.CNIVersion, "0.1.0"), "name": l.Name}
	conf := []byte(`{"type":"list"}`)
	if p != nil {
		conf = p.Conf()
	}
	conf, err := spec.Merge(conf, set)
	if err != nil {
		return // it is an object, or it was not loaded
	}
	for _, problem := range schema.CheckConf(conf) {
		switch ofList := problem.Path == "name" || problem.Path == "cniVersion"; {
		case ofList && p == nil:
			c.add(l.File, problem.Path, "%s", problem)
		case ofList || p == nil || strings.HasPrefix(problem.Path, "ipam.") && !c.known(p):
		case problem.Path == "ipam" && strings.Contains(problem.Text, `"type" is missing`):
			// The plugin says whether it has to be there.
		default:
			c.add(p.From.File, join(p.From.Key, problem.Path), "%s", problem)
		}
	}
}

// known reports whether a plugin and its IPAM plugin are of this program.
func (c *checker) known(p *chain.Plugin) bool {
	return c.isOurs(p.Type) && c.isOurs(p.IPAM)
}

// findings finds the place of each problem, in the order of files and lines. Of several at one
// place the first stays: the plugin, the schema and the struct say the same in other words.
func (c *checker) findings() []*Finding {
	var all []*Finding
	add := func(f *Finding) {
		if !slices.ContainsFunc(all, func(o *Finding) bool { return o.File == f.File && o.Line == f.Line && o.Column == f.Column }) {
			all = append(all, f)
		}
	}
	for _, p := range c.problems {
		at := c.doc(p.file).nearest(p.key)
		switch {
		case p.offset > 0:
			at = place{value: p.offset}
		case p.name:
			at.value = at.name
		case p.value != "":
			at = c.doc(p.file).has(p.key, p.value)
		}
		add(c.doc(p.file).finding(p.file, at.key, at.value, p.text))
	}
	for file, doc := range c.docs {
		for _, f := range doc.repeated(file) {
			add(f)
		}
	}
	slices.SortFunc(all, func(a, b *Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return all
}
