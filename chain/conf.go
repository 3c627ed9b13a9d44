package chain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/cnibox/cnibox/spec"
)

// A List is a network configuration list, from [Load], [LoadFile], [Parse] or [ParseSingle].
//
// All other members of the documents are passed to the plugins unchanged: unlike in the reference,
// large integers keep their last digits.
type List struct {
	Name       string
	CNIVersion string // as written; chosen from cniVersions if those are given
	// Each of the three may also be a string, "true" or "false".
	DisableCheck bool // CHECK succeeds and runs nothing
	DisableGC    bool // GC succeeds and runs nothing
	OnlyInlined  bool // loadOnlyInlinedPlugins: ignore the drop-in directory
	Plugins      []Plugin
	File         string   // source file; empty: none
	Ignored      []string // later files of the same name that [Load] found

	// Folds are the plugins of the type [FoldType], which Plugins has the members of.
	Folds []Plugin

	doc     []byte // unchanged; a single configuration is wrapped
	From    Source
	dropped bool // plugins of the drop-in directory were appended
}

// A Plugin is one configuration of a list. ADD runs them in the order of the list, DEL in reverse.
type Plugin struct {
	Type         string
	Capabilities map[string]bool // the ones that it wants in runtimeConfig
	IPAM         string          // ipam.type: the IPAM plugin; empty: none
	disableCheck bool            // args.cni.disable-check
	conf         json.RawMessage // unchanged
	From         Source
}

// A Source is the file and key that configure a list or a plugin.
type Source struct {
	File string // empty: no file
	Doc  []byte // the content of the file; it must not be changed
	Key  string // of the plugin in the file, such as plugins[0]; empty: the whole file
}

// place returns the file, and the line and the column of an error if they are known.
func (s Source) place(err error) string {
	if line, column, found := spec.Place(s.Doc, s.Key, err); found && s.File != "" {
		return fmt.Sprintf("%s:%d:%d", s.File, line, column)
	}
	return s.File
}

// A SourceError is an error about a file, with file, line and column in its text.
type SourceError struct {
	Source
	Err error
}

func (e *SourceError) Error() string { return e.place(e.Err) + ": " + e.Err.Error() }

// Unwrap returns the error without the place.
func (e *SourceError) Unwrap() error { return e.Err }

// within adds the source to an error of parsing it.
func (s Source) within(err error) error { return &SourceError{s, err} }

// withPlace adds the place of the key to an error of a plugin.
func (s Source) withPlace(err error) error {
	if place := s.place(err); place != s.File {
		return spec.AsError(err).WithDetails("see %s", place)
	}
	return err
}

// Conf returns the configuration unchanged. The caller must not change it.
func (p *Plugin) Conf() json.RawMessage { return p.conf }

// Document has the keys of a list.
type Document struct {
	Name                   json.RawMessage `json:"name"`
	CNIVersion             json.RawMessage `json:"cniVersion"`
	CNIVersions            json.RawMessage `json:"cniVersions"`
	Plugins                json.RawMessage `json:"plugins"`
	DisableCheck           flag            `json:"disableCheck"`
	DisableGC              flag            `json:"disableGC"`
	LoadOnlyInlinedPlugins flag            `json:"loadOnlyInlinedPlugins"`
}

// Member has the keys of a plugin's configuration that the runtime reads.
type Member struct {
	Capabilities map[string]bool `json:"capabilities"`
	IPAM         struct {
		Type string `json:"type"`
	} `json:"ipam"`
}

// Parse parses a list. Errors have code 6 (not JSON) or 7. It checks only the common keys of the
// plugins' configurations.
//
// A list without plugins is not an error here, since its drop-in directory may have some: see
// [Load]. The name is checked where it becomes a path or part of a request.
func Parse(doc []byte) (*List, error) {
	var w Document
	if err := json.Unmarshal(doc, &w); err != nil {
		return nil, decodeError("", doc, &w, err)
	}
	l := &List{
		DisableCheck: bool(w.DisableCheck), DisableGC: bool(w.DisableGC),
		OnlyInlined: bool(w.LoadOnlyInlinedPlugins), doc: doc,
	}
	var err error
	if l.Name, err = text("name", w.Name, true); err != nil {
		return nil, err
	}
	if l.CNIVersion, err = text("cniVersion", w.CNIVersion, false); err != nil {
		return nil, err
	}
	if w.CNIVersions != nil {
		if l.CNIVersion, err = negotiate(l.CNIVersion, w.CNIVersions); err != nil {
			return nil, err
		}
	}
	if w.Plugins == nil {
		if l.OnlyInlined {
			return nil, spec.Errorf(spec.CodeConfig, `"plugins" is missing, and "loadOnlyInlinedPlugins" leaves no other source`).AtKey("")
		}
		return l, nil
	}
	return l, l.parsePlugins(w.Plugins)
}

// ParseSingle parses a configuration of one plugin as a list of one. Specification 1.0.0 has
// removed such configurations; runtimes still load them.
func ParseSingle(doc []byte) (*List, error) {
	var w struct{ Name, CNIVersion, Plugins json.RawMessage }
	if err := json.Unmarshal(doc, &w); err != nil {
		return nil, decodeError("", doc, &w, err)
	}
	p, err := parsePlugin("", doc)
	if err != nil {
		if w.Plugins != nil {
			err = fmt.Errorf("%w: a list has to be in a file whose name ends in .conflist", err)
		}
		return nil, err
	}
	name, err := text("name", w.Name, true)
	if err != nil {
		return nil, err
	}
	version, err := text("cniVersion", w.CNIVersion, false)
	if err != nil {
		return nil, err
	}
	// Such a file never had a drop-in directory.
	l := &List{Name: name, CNIVersion: version, OnlyInlined: true, doc: wrap(name, version, doc)}
	return l, l.append(p)
}

// wrap makes a list of one plugin for the cache, since other runtimes expect a list there.
func wrap(name, version string, doc json.RawMessage) []byte {
	list, _ := json.Marshal(map[string]any{ // strings and decoded JSON can always be encoded
		"name": name, "cniVersion": version, "loadOnlyInlinedPlugins": true, "plugins": []json.RawMessage{doc},
	})
	return list
}

// MaxPlugins is the limit of plugins in a list. Real lists have ten at most.
const MaxPlugins = 100

// parsePlugins reads the member plugins. Errors have code 7.
func (l *List) parsePlugins(raw json.RawMessage) error {
	docs, err := elements("plugins", raw)
	if err != nil {
		return err
	}
	for i, doc := range docs {
		p, err := parsePlugin(spec.ElementKey("plugins", i), doc)
		if err == nil {
			err = l.append(p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// elements returns the elements of a member plugins, whose key is that in the file. Errors have code 7.
func elements(key string, raw json.RawMessage) (docs []json.RawMessage, err error) {
	if err := spec.Unmarshal(key, raw, &docs); err != nil {
		return nil, spec.Errorf(spec.CodeConfig, "%w", err)
	}
	if len(docs) == 0 {
		return nil, spec.Errorf(spec.CodeConfig, `no plugins in list: %q is empty`, key).AtKey(key)
	}
	if len(docs) > MaxPlugins {
		return nil, spec.Errorf(spec.CodeConfig, `%q has %d elements: at most %d are run`, key, len(docs), MaxPlugins).AtKey(key)
	}
	return docs, nil
}

// append adds a plugin to the list, or if it is a folded list, the plugins of that. Errors have code 7.
func (l *List) append(p Plugin) error {
	if p.Type != FoldType {
		l.Plugins = append(l.Plugins, p)
		return nil
	}
	members, err := p.members()
	l.Plugins, l.Folds = append(l.Plugins, members...), append(l.Folds, p)
	return err
}

// parsePlugin checks the keys of a plugin that the specification defines; key is that of the plugin
// in its list. A wrong type is an error at once, not in the middle of an ADD. Errors have code 6 or
// 7.
func parsePlugin(key string, doc json.RawMessage) (Plugin, error) {
	var w struct {
		Member
		Type       string
		DNS        spec.DNS
		PrevResult map[string]json.RawMessage
		Args       json.RawMessage
	}
	if err := json.Unmarshal(doc, &w); err != nil {
		return Plugin{}, decodeError(key, doc, &w, err)
	}
	if w.Type == "" {
		err := spec.Errorf(spec.CodeConfig, "missing 'type'").AtKey(key)
		if key != "" {
			return Plugin{}, fmt.Errorf("%s: %w", key, err)
		}
		return Plugin{}, err
	}
	if err := spec.CheckType(w.Type); err != nil { // before an ADD writes its intent to the cache
		return Plugin{}, spec.AtKey(spec.JoinKeys(key, "type"), err)
	}
	p := Plugin{Type: w.Type, Capabilities: w.Capabilities, IPAM: w.IPAM.Type, conf: doc, From: Source{Key: key}}
	if w.Args != nil {
		var args struct {
			CNI struct {
				DisableCheck flag `json:"disable-check"`
			}
		}
		// Other members of args, of any type, belong to the plugin.
		if json.Unmarshal(w.Args, &args) == nil {
			p.disableCheck = bool(args.CNI.DisableCheck)
		}
	}
	return p, nil
}

// negotiate chooses the highest version that both the list and this program support. The built-in
// plugins differ only in the oldest supported version, so the highest is the best for them as well.
// Versions above our newest are skipped; if none is left, the literal one stays, and ADD fails with
// code 1 and the supported versions. As in the reference, null in the list or as its value is an
// error.
func negotiate(literal string, raw json.RawMessage) (string, error) {
	var all []*string
	if err := json.Unmarshal(raw, &all); err != nil || all == nil {
		return "", spec.Errorf(spec.CodeConfig, `"cniVersions" %s is not a list of strings`, excerpt(bytes.Trim(raw, `"`))).AtKey("cniVersions")
	}
	if literal != "" {
		all = append(all, &literal)
	}
	chosen, best := literal, spec.Version{}
	for _, s := range all {
		if s == nil {
			return "", spec.Errorf(spec.CodeConfig, `"cniVersions" contains null`).AtKey("cniVersions")
		}
		v, err := spec.ParseVersion(*s)
		if err != nil {
			return "", spec.Errorf(spec.CodeConfig, `"cniVersions": %w`, err).AtKey("cniVersions")
		}
		if spec.Newest.AtLeast(v) && v.AtLeast(best) {
			chosen, best = *s, v
		}
	}
	return chosen, nil
}

// text reads a string member. Null is not a string and does not count as absent.
func text(key string, raw json.RawMessage, required bool) (string, error) {
	if raw == nil {
		if required {
			return "", spec.Errorf(spec.CodeConfig, "%q is missing", key).AtKey("")
		}
		return "", nil
	}
	var s *string
	if err := json.Unmarshal(raw, &s); err != nil || s == nil {
		return "", spec.Errorf(spec.CodeConfig, "%q is %s and must be a string", key, excerpt(raw)).AtKey(key)
	}
	return *s, nil
}

// A flag is a bool or the string of one. libcni reads both forms, in any letter case.
type flag bool

// UnmarshalJSON rejects any other value, including 0 and null.
func (f *flag) UnmarshalJSON(b []byte) error {
	word := bytes.Trim(b, `"`)
	switch s := strings.ToLower(string(word)); s {
	case "true", "false":
		*f = s == "true"
		return nil
	}
	return fmt.Errorf("%s is neither true nor false", excerpt(word))
}

// decodeError gives invalid JSON code 6, and JSON of the wrong type code 7 with the key and the
// expected type; key is that of the document in its file.
func decodeError(key string, doc []byte, into any, err error) error {
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return spec.Errorf(spec.CodeDecode, "%w", spec.NotJSON(doc, err))
	case key == "":
		return spec.Errorf(spec.CodeConfig, "%w", spec.Explain(doc, into, err))
	}
	return spec.Errorf(spec.CodeConfig, "%w", spec.Unmarshal(key, doc, into))
}

// Doc returns the list unchanged; a configuration of one plugin is wrapped. The caller must not
// change it.
func (l *List) Doc() json.RawMessage { return l.doc }

// Effective returns the list with the plugins of its drop-in directory inlined. The cache stores
// it, since a DEL must run those as well; libcni caches the list without them, so its DEL from the
// cache skips them.
func (l *List) Effective() ([]byte, error) {
	if !l.dropped {
		return l.doc, nil
	}
	docs := make([]json.RawMessage, len(l.Plugins))
	for i, p := range l.Plugins {
		docs[i] = p.conf
	}
	return spec.Merge(l.doc, map[string]any{"plugins": docs, "loadOnlyInlinedPlugins": true})
}
