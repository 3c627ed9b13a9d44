// Package lint finds mistakes in network configurations: what ADD would refuse, and what it would
// silently ignore. Its keys are those of the structs that plugins decode ([applet.Applet.Conf]),
// and its rules are the checks that plugins make before they open anything ([spec.Plugin.Validate]).
// Only networks.go reads a few keys itself.
//
// Begin reading at [Linter.Files]. keys.go compares members with structs, chain.go compares the
// plugins of a list, networks.go compares networks, and position.go finds the position of a message
// in a file.
package lint

import (
	"bytes"
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

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

// A Severity is what a finding means for attachments.
type Severity uint8

// The severities, the gravest first.
const (
	Fault Severity = iota // something is broken for a container, or the next ADD or DEL will fail
	Risk                  // it will be, under a condition that is not met yet
	Hint                  // nothing is, but it could be better, or is meant to be so
)

// String returns "fault", "risk" or "hint".
func (s Severity) String() string { return [...]string{"fault", "risk", "hint"}[s] }

// MarshalText is String for JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// A Finding is one mistake, with its position.
type Finding struct {
	Severity Severity `json:"severity"` // [Fault]: ADD refuses the configuration
	File     string   `json:"file"`
	Line     int      `json:"line"`   // from 1; 0: see Unread
	Column   int      `json:"column"` // of the key, in bytes from 1
	Key      string   `json:"key"`    // as plugins[0].ipam.subnet; empty: the document
	Message  string   `json:"message"`
	Unread   error    `json:"-"` // why the file could not be read
}

// String formats the finding as compilers do.
func (f *Finding) String() string { return f.Place() + ": " + f.Message }

// Place formats the position of the finding as compilers do.
func (f *Finding) Place() string {
	if f.Line == 0 {
		return f.File
	}
	return fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Column)
}

// A Linter has the facts with which a configuration is compared.
type Linter struct {
	Applets applet.Table
	Path    []string      // directories of external plugins; empty: not known
	Routes  []HostRoute   // of the host; nil: not known
	Others  []*chain.List // the networks with which each is compared, itself included

	HasLink  func(name string) bool // whether the host has a link; nil: not known
	Attached []Attached             // what has addresses of networks; nil: not known

	others []*otherNetwork // of Others, from the first call of List on
}

// builtIn finds only the built-in plugins. An external plugin with the name of one has the same
// keys, if it is the reference's.
type builtIn struct{ applet.Table }

func (b builtIn) Find(plugin string) (*spec.Plugin, error) { return b.Known(plugin), nil }

func (b builtIn) Known(plugin string) *spec.Plugin {
	if verbs, ok := b.Plugin(plugin); ok {
		return &verbs
	}
	return nil
}

func (b builtIn) Invoke(context.Context, string, *spec.Request) (*spec.Result, error) {
	return nil, errors.New("a linter runs no plugin")
}

// A problem is a finding whose position is not known yet.
type problem struct {
	severity  Severity
	file, key string
	value     string // a value within that of the key; empty: the whole value of the key
	name      bool   // the problem is the name of the key
	offset    int    // where the document is not JSON; 0: see key
	text      string
	at        *place // the position, if known; nil: see key
	unread    error
	more      bool // stands for all further problems
}

// Files lints files, and the configurations in directories. It also compares the networks with one
// another. The error is that of a path that does not exist, or of a directory that cannot be read.
func (l *Linter) Files(paths ...string) ([]*Finding, error) {
	c := &checker{Linter: l, docs: map[string]*document{}, fields: map[reflect.Type][]field{}}
	var networks []*network
	for _, path := range paths {
		files, others, err := configurations(path)
		if err != nil {
			return nil, err
		}
		for _, file := range others {
			c.unused(file)
		}
		for _, file := range files {
			if c.docs[file] != nil {
				continue // the file was named before
			}
			if n := c.file(file); n != nil {
				networks = append(networks, n)
			}
		}
	}
	for i, n := range networks {
		c.compare(n, networks[:i])
		c.attached(n)
	}
	return c.findings(), nil
}

// List lints a loaded network, for the verbs that run its plugins: unknown keys, capabilities that
// no plugin reads, the order, and conflicts with routes and other networks, if those are known. It
// omits what ADD would refuse, since the verbs report that.
func (l *Linter) List(list *chain.List) []*Finding {
	c := &checker{Linter: l, docs: map[string]*document{}, fields: map[reflect.Type][]field{}, quick: true}
	n := c.list(list)
	if len(l.Others)+len(l.Routes) > 0 {
		c.compareWithOthers(n)
	}
	if len(c.problems) == 0 {
		return nil
	}
	return c.findings()
}

// compareWithOthers compares a network with those that were not linted.
func (c *checker) compareWithOthers(n *network) {
	for file := range c.docs {
		c.doc(file)
	}
	c.validate(n)
	if len(c.others) < len(c.Others) {
		for _, l := range c.Others {
			c.others = append(c.others, newOtherNetwork(l))
		}
	}
	var networks []*network
	for _, o := range c.others {
		if o.list.Name == n.list.Name || !o.mayOverlap(n) { // one of the same name has been reported
			continue
		}
		if o.members == nil {
			o.network = *c.network(o.list)
			c.validate(&o.network)
		}
		networks = append(networks, &o.network)
	}
	c.compare(n, networks)
}

// Repeated finds the keys that an object of a JSON document has twice.
func (l *Linter) Repeated(file string, doc []byte) []*Finding {
	c := &checker{Linter: l, docs: map[string]*document{}}
	c.locate(file, doc)
	return c.findings()
}

// configurations returns the files of a directory whose names are those of configurations, and the
// others without hidden ones; or the file itself.
func configurations(path string) (files, others []string, err error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{filepath.Clean(path)}, nil, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		file := filepath.Join(path, e.Name())
		switch ext := filepath.Ext(e.Name()); {
		case e.IsDir():
		case ext == ".conflist" || ext == ".conf" || ext == ".json":
			files = append(files, file)
		case e.Name()[0] != '.' && !isBackup(entries, e.Name()):
			others = append(others, file)
		}
	}
	return files, others, nil
}

// isBackup reports whether a file is the one that `cnibox fold --in-place` leaves of another.
func isBackup(entries []os.DirEntry, name string) bool {
	of, ok := strings.CutSuffix(name, ".bak")
	return ok && slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == of })
}

// unused notes a file that seems to be a configuration but does not have the name of one. Beside
// configurations there may be kubeconfigs, locks and texts.
func (c *checker) unused(file string) {
	doc, err := chain.ReadFile(file)
	if err != nil || !bytes.HasPrefix(bytes.TrimSpace(doc), []byte("{")) {
		return
	}
	c.note(problem{severity: Hint, file: file, text: "nothing reads this file: the name of a list must end in .conflist, that of the configuration of one plugin in .conf or .json"})
	c.docs[file] = &document{raw: doc}
}

// A checker collects the problems of one call.
type checker struct {
	*Linter
	quick    bool // for a list that is about to be run
	problems []problem
	docs     map[string]*document
	fields   map[reflect.Type][]field // of the structs seen so far
}

// mostFindings is how many problems of a file are noted at most: the position of each is looked up
// in the file.
const mostFindings = 20

// add notes something that ADD refuses in a file, at a key.
func (c *checker) add(file, key, format string, args ...any) {
	c.addAs(Fault, file, key, format, args...)
}

// addAs notes a problem of a file at a key.
func (c *checker) addAs(severity Severity, file, key, format string, args ...any) {
	if !c.full(file) {
		c.note(problem{severity: severity, file: file, key: key, text: fmt.Sprintf(format, args...)})
	}
}

// full reports whether no more problems of a file are noted.
func (c *checker) full(file string) bool {
	d := c.docs[file]
	return d != nil && d.problems > mostFindings
}

// note notes a problem. For the first one above the maximum it notes that there are more.
func (c *checker) note(p problem) {
	if d := c.docs[p.file]; d != nil {
		switch d.problems++; {
		case d.problems > mostFindings+1:
			return
		case d.problems > mostFindings:
			p = problem{severity: Risk, file: p.file, more: true, text: fmt.Sprintf("there is more: these are the first %d", mostFindings)}
		}
	}
	c.problems = append(c.problems, p)
}

// addError notes an error about the object of a key. The error may name a key in that object; if not, it is about
// otherwise.
func (c *checker) addError(file string, err error, otherwise, within string) {
	if c.full(file) {
		return
	}
	text, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "invalid network config: "), "; see "+file)
	p := problem{file: file, key: otherwise, text: strings.Join(strings.Fields(text), " ")}
	if path, keyed := spec.KeyOf(err); keyed != nil {
		p.key = spec.JoinKeys(within, path)
	}
	c.note(p)
}

// locate notes a file. It finds repeated keys at once; if c is quick, doc finds them.
func (c *checker) locate(file string, raw []byte) {
	if c.docs[file] == nil {
		c.docs[file] = &document{raw: raw}
		if !c.quick {
			c.doc(file)
		}
	}
}

// doc returns a file. The first call for the file notes its repeated keys.
func (c *checker) doc(file string) *document {
	d := c.docs[file]
	if !d.read {
		for _, p := range d.twice() {
			p.file = file
			c.note(p)
		}
	}
	return d
}

// file lints one file; nil: not a network.
func (c *checker) file(file string) *network {
	doc, err := chain.ReadFile(file)
	c.locate(file, doc)
	if err != nil {
		text := strings.TrimPrefix(err.Error(), file+" ")
		var path *os.PathError
		if errors.As(err, &path) {
			text = path.Err.Error()
		}
		c.note(problem{file: file, text: text, unread: err})
		return nil
	}
	members, _ := spec.Members(doc) // LoadFile reports what is not an object
	has := func(names ...string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return members[name] != nil })
	}
	if has("interfaces", "ips") && !has("plugins", "type") { // the output of a plugin, not a configuration
		res, err := spec.ParseResult(doc, spec.Newest)
		if err == nil {
			err = res.CheckGateways()
		}
		if _, keyed := spec.KeyOf(err); keyed != nil {
			err = keyed
		}
		if err != nil {
			c.addError(file, err, "", "")
		}
		return nil
	}
	if has("type") && !has("plugins") && filepath.Ext(file) == ".conflist" {
		c.add(file, "type", "the configuration of one plugin belongs in a file that ends in .conf, or in the list %q", "plugins")
		return nil
	}
	l, err := chain.LoadFile(file)
	if err != nil {
		c.notLoaded(file, err)
		return nil
	}
	return c.list(l)
}

// notLoaded notes why a list could not be loaded.
func (c *checker) notLoaded(file string, err error) {
	var source *chain.SourceError
	if !errors.As(err, &source) {
		c.add(file, "", "%v", err)
		return
	}
	c.locate(source.File, source.Doc)
	if syntax := new(json.SyntaxError); errors.As(err, &syntax) {
		offset, _ := spec.Offset(source.Doc, "", err)
		c.note(problem{file: source.File, offset: offset, text: source.Err.Error()})
		return
	}
	c.addError(source.File, source.Err, "", "")
}

// ofRuntimes are the keys that podman and nerdctl write into their lists.
type ofRuntimes struct {
	Args          json.RawMessage `json:"args"`
	NerdctlID     json.RawMessage `json:"nerdctlID"`
	NerdctlLabels json.RawMessage `json:"nerdctlLabels"`
}

// list lints a list and its plugins.
func (c *checker) list(l *chain.List) *network {
	n := c.network(l)
	if !c.quick {
		c.validate(n)
	}
	c.locate(l.File, l.From.Doc)
	if !c.quick && len(l.Plugins) > 0 && (l.Plugins[0].From.Key != "" || l.Plugins[0].From.File != l.File) { // otherwise the list has the keys of its plugin
		known := c.keysOf(reflect.TypeFor[chain.Document](), reflect.TypeFor[ofRuntimes]())
		for _, p := range l.Plugins {
			known.inner = append(known.inner, c.structs(p.Type, p.IPAM)...)
		}
		c.object(l.File, "", l.Doc(), known)
	}
	before := len(c.problems)
	if !c.quick {
		if err := spec.CheckNewNetworkName(l.Name); err != nil {
			c.addError(l.File, err, "name", "")
		}
		if _, err := l.Supported(); err != nil {
			c.addError(l.File, err, "cniVersion", "")
		}
	}
	sound := len(c.problems) == before // name and version are valid; the plugins use them too
	for i := range l.Folds {
		c.fold(l, &l.Folds[i])
	}
	for _, m := range n.members {
		c.plugin(l, m, sound)
	}
	c.order(n.members)
	for _, m := range n.members {
		if m.builtIn != nil && !c.quick {
			c.host(m)
		}
	}
	return n
}

// plugin lints one plugin of a list. sound reports that name and version are valid.
func (c *checker) plugin(l *chain.List, m *member, sound bool) {
	p := m.Plugin
	c.locate(p.From.File, p.From.Doc)
	if m.builtIn != nil {
		c.pluginKeys(p, m.builtIn)
		c.capabilities(p)
	}
	if c.quick {
		return // ADD and STATUS report everything else
	}
	c.missing(p, p.Type, "type")
	if p.IPAM != "" && m.builtIn != nil {
		c.missing(p, p.IPAM, "ipam.type")
	}
	if m.builtIn != nil && sound {
		c.reportInvalid(m)
		c.gateways(m)
	}
}

// reportInvalid notes why the plugin would refuse the configuration.
func (c *checker) reportInvalid(m *member) {
	if m.err == nil {
		return
	}
	key := "type"
	if m.ofIPAM {
		key = "ipam"
	}
	c.addError(m.From.File, m.err, spec.JoinKeys(m.From.Key, key), m.From.Key)
}

// findings finds the position of each problem, sorted by file and line. Of several problems at one
// position it keeps the first of the gravest: plugin and struct report the same mistake in other words.
func (c *checker) findings() []*Finding {
	var all []*Finding
	for i := 0; i < len(c.problems); i++ { // doc may find more
		p := c.problems[i]
		doc := c.doc(p.file)
		var at place
		if p.at != nil {
			at = *p.at
		} else {
			at = doc.nearest(p.key)
		}
		switch {
		case p.offset > 0:
			at = place{value: p.offset}
		case p.name:
			at.value = at.name
		case p.value != "":
			at = doc.has(p.key, p.value)
		}
		f := &Finding{Severity: p.severity, File: p.file, Key: at.key, Message: spec.Shorten(p.text), Unread: p.unread}
		if p.unread == nil && !p.more {
			f.Line, f.Column = spec.Position(doc.raw, at.value)
		}
		all = append(all, f)
	}
	compare := func(a, b *Finding) int { // the note about further problems comes last
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(uint(a.Line-1), uint(b.Line-1)), cmp.Compare(a.Column, b.Column))
	}
	slices.SortStableFunc(all, func(a, b *Finding) int { return cmp.Or(compare(a, b), cmp.Compare(a.Severity, b.Severity)) })
	return slices.CompactFunc(all, func(a, b *Finding) bool { return compare(a, b) == 0 })
}
