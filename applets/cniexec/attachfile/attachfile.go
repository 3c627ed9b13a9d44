// Package attachfile reads the files of up and down: namespaces, and what they are attached to.
package attachfile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/memory"
	"github.com/cnibox/cnibox/spec"
)

// A File has named namespaces and their attachments.
type File struct {
	chain.Source
	Namespaces map[string][]Link

	networks []json.RawMessage
}

// A Link is one attachment of a namespace. All members except the network may be omitted.
type Link struct {
	Network string   `json:"network"`
	IfName  string   `json:"ifname"` // empty: eth0, eth1 and so on, by the position in the list
	IPs     []string `json:"ips"`    // in the syntax of --ip
	MAC     string   `json:"mac"`
	Ports   []string `json:"ports"` // in the syntax of --publish
}

// Read reads and checks a file, "-" is stdin, and nothing else. Errors have code 7.
func Read(file string, stdin io.Reader) (*File, error) {
	var doc []byte
	var err error
	if file == "-" {
		file = "stdin"
		doc, err = io.ReadAll(io.LimitReader(stdin, record.MaxSize))
	} else {
		doc, err = disk.Read(file, 0, record.MaxSize)
	}
	if err != nil {
		return nil, spec.Errorf(spec.CodeConfig, "%w", err)
	}
	memory.For(len(doc))
	f := &File{Source: chain.Source{File: file, Doc: doc}}
	if err := f.decode(); err != nil {
		return nil, spec.Errorf(spec.CodeConfig, "%w", err)
	}
	return f, nil
}

// Names returns those of the namespaces, sorted.
func (f *File) Names() []string { return slices.Sorted(maps.Keys(f.Namespaces)) }

// Lists returns the networks that the file has in addition to those of --conf-dir; with an error those before
// the invalid one.
func (f *File) Lists() (lists []*chain.List, err error) {
	known := map[string]bool{}
	for i, doc := range f.networks {
		key := fmt.Sprintf("networks[%d]", i)
		l, err := chain.Parse(doc)
		if err == nil && (known[l.Name] || len(l.Plugins) == 0) {
			err = spec.Errorf(spec.CodeConfig, "%q is listed twice, or has no plugins", l.Name)
		}
		if err != nil {
			return lists, f.at(key, err)
		}
		l.File, l.From = f.File, chain.Source{File: f.File, Doc: f.Doc, Key: key}
		for i := range l.Plugins {
			from := &l.Plugins[i].From
			from.File, from.Doc, from.Key = f.File, f.Doc, key+"."+from.Key
		}
		known[l.Name] = true
		lists = append(lists, l)
	}
	return lists, nil
}

// at adds to an error its key in the file and the position of that. The key is that of a part of
// the file, followed by the key that the error has.
func (f *File) at(key string, err error) error {
	from := f.Source
	from.Key = key
	if _, of := spec.KeyOf(err); of == nil {
		err = spec.AtKey("", err)
	}
	if key != "" {
		err = fmt.Errorf("%s: %w", key, err)
	}
	return &chain.SourceError{Source: from, Err: err}
}

// AtLink adds to an error the key of a link and its position in the file. The keys of the error are those
// of the link's network. An error in another file has a position already.
func (f *File) AtLink(key string, err error) error {
	if of := new(chain.SourceError); errors.As(err, &of) {
		return fmt.Errorf("%s: %s: %w", f.File, key, err)
	}
	return f.at(key, spec.AtKey("", err))
}

// mostLinks is the maximum number of networks, of namespaces and of links in a file.
const mostLinks = 4000

// decode reads the document, and names the links of namespaces.
func (f *File) decode() error {
	var top struct {
		Networks   []json.RawMessage            `json:"networks"`
		Namespaces map[string][]json.RawMessage `json:"namespaces"`
	}
	if err := unmarshalKnown(f.Doc, &top); err != nil {
		return f.at("", err)
	}
	if top.Namespaces == nil {
		return f.at("", errors.New(`"namespaces" is missing: an object with a list of {"network": NAME} for each name`))
	}
	links := 0
	for _, of := range top.Namespaces {
		links += len(of)
	}
	if n := max(len(top.Namespaces), links, len(top.Networks)); n > mostLinks {
		return f.at("namespaces", fmt.Errorf("%d namespaces with %d links, and %d networks: a file may have %d of each: use several", len(top.Namespaces), links, len(top.Networks), mostLinks))
	}
	f.networks, f.Namespaces = top.Networks, make(map[string][]Link)
	for _, name := range slices.Sorted(maps.Keys(top.Namespaces)) {
		if err := sandbox.CheckNetNSName(name); err != nil {
			return f.at("namespaces", err)
		}
		links := make([]Link, len(top.Namespaces[name]))
		used := make(map[string]bool)
		for i, doc := range top.Namespaces[name] {
			l := &links[i]
			err := unmarshalKnown(doc, l)
			if l.IfName = cmp.Or(l.IfName, fmt.Sprintf("eth%d", i)); err == nil {
				err = l.check()
			}
			if err == nil && used[l.IfName] {
				err = fmt.Errorf("interface %q is used twice", l.IfName)
			}
			if err != nil {
				return f.at(Key(name, i), err)
			}
			used[l.IfName] = true
		}
		f.Namespaces[name] = links
	}
	return nil
}

// Key is the key of a link in a file.
func Key(name string, i int) string { return fmt.Sprintf("namespaces.%s[%d]", name, i) }

// unmarshalKnown decodes an object. An unknown key is an error.
func unmarshalKnown(doc []byte, into any) error {
	err := json.Unmarshal(doc, into)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return spec.NotJSON(doc, err)
	case err != nil:
		return spec.Explain(doc, into, err)
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		key, _ := strconv.Unquote(strings.TrimPrefix(err.Error(), "json: unknown field "))
		return spec.KeyErrorf(key, "unknown key %q", key)
	}
	return nil
}

// check checks what depends on the file alone.
func (l *Link) check() error {
	if l.Network == "" {
		return errors.New(`"network" is missing`)
	}
	if spec.CheckIfName(l.IfName) != nil {
		return spec.KeyErrorf("ifname", "%q is not a valid interface name", l.IfName)
	}
	return nil
}
