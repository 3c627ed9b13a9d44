package lint

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/spell"
	"github.com/cnibox/cnibox/spec"
)

// keys are the members that an object may have. They come from the structs into which it is
// decoded, which may be those of the runtime, the plugin and its IPAM plugin. The zero value has
// none.
type keys struct {
	fields [][]field
	hidden []string                  // which no struct may have
	inner  []reflect.Type            // the types of the elements of a list's "plugins"
	other  map[string][]reflect.Type // the types of these members, whatever the structs have
}

// A field is a key of a struct.
type field struct {
	name   string
	typ    reflect.Type
	plugin string // value of the tag of that name: see [applet.Applet]
}

// free are objects in which others than the plugins may look for any key.
var free = [...]string{"args", "runtimeConfig", "prevResult", "capabilities"}

// raw is the type of a value that is decoded later, or by another plugin.
func raw() reflect.Type { return reflect.TypeFor[json.RawMessage]() }

func (c *checker) keysOf(structs ...reflect.Type) (k keys) {
	for _, t := range structs {
		k.fields = append(k.fields, c.fieldsOf(t))
	}
	return k
}

// fieldsOf returns the keys of a struct, including those of embedded structs. The key of a field
// without a tag is the name of the field.
func (c *checker) fieldsOf(t reflect.Type) (all []field) {
	if known, ok := c.fields[t]; ok {
		return known
	}
	all = make([]field, 0, t.NumField())
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
			all = append(all, c.fieldsOf(f.Type)...)
		case f.IsExported():
			all = append(all, field{cmp.Or(name, f.Name), f.Type, f.Tag.Get("plugin")})
		}
	}
	c.fields[t] = all
	return all
}

// types returns the types into which the value of a key is decoded; the case of letters is ignored.
func (k keys) types(name string) (types []reflect.Type) {
	for _, hidden := range k.hidden {
		if strings.EqualFold(hidden, name) {
			return nil
		}
	}
	for key, types := range k.other {
		if strings.EqualFold(key, name) {
			return types
		}
	}
	for _, fields := range k.fields {
		for i := range fields {
			if len(fields[i].name) == len(name) && strings.EqualFold(fields[i].name, name) {
				types = append(types, fields[i].typ)
			}
		}
	}
	return types
}

// names returns all keys, sorted.
func (k keys) names() (names []string) {
	for _, fields := range k.fields {
		for _, f := range fields {
			if !slices.Contains(k.hidden, f.name) {
				names = append(names, f.name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// read reports whether an object of the type is decoded by its members. It returns the struct, if
// there is one, without pointers.
func read(t reflect.Type) (reflect.Type, bool) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	p := reflect.PointerTo(t)
	own := p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	return t, t.Kind() == reflect.Struct && !own
}

// pluginKeys compares a plugin's configuration with the keys that are decoded.
func (c *checker) pluginKeys(p *chain.Plugin, builtIn *spec.Plugin) {
	members, err := spec.Members(p.Conf())
	if err != nil {
		return // it was not loaded
	}
	known := c.keysOf(c.structs(p.Type, p.IPAM)...)
	if !builtIn.MAC && len(known.types("mac")) == 1 { // that of spec.Common
		known.hidden = append(known.hidden, "mac")
	}
	switch {
	case p.Type == chain.FoldType: // its members have them
		known.hidden = append(known.hidden, "ipam", "dns")
	case builtIn.Chained:
		known.hidden = append(known.hidden, "ipam")
	}
	known.other = make(map[string][]reflect.Type)
	if !c.isOurs(p.IPAM) {
		known.other["ipam"] = []reflect.Type{raw()}
	}
	for _, d := range c.delegated(p.Type) {
		known.other[d.name] = c.delegateTypes(d.named(members))
	}
	if ipam := members["ipam"]; p.IPAM == "" && ipam != nil && known.other["ipam"] == nil && !builtIn.Chained {
		if inner, err := spec.Members(ipam); err == nil && len(inner) > 0 {
			c.addAs(Risk, p.From.File, spec.JoinKeys(p.From.Key, "ipam"), `"ipam" has no "type": nothing reads it`)
			known.other["ipam"] = []reflect.Type{raw()}
		}
	}
	c.members(p.From.File, p.From.Key, members, known)
}

// isOurs reports whether a plugin is built in, or the name is empty.
func (c *checker) isOurs(plugin string) bool {
	if plugin == "" {
		return true
	}
	_, ok := c.Applets.Plugin(plugin)
	return ok
}

// structs returns the types into which the configurations of plugins are decoded.
func (c *checker) structs(plugins ...string) []reflect.Type {
	all := []reflect.Type{reflect.TypeFor[spec.Common](), reflect.TypeFor[chain.Member]()}
	for _, plugin := range plugins {
		if conf := c.conf(plugin); conf != nil {
			all = append(all, conf)
		}
	}
	return all
}

// conf returns the struct with the keys of a built-in plugin; nil: it has none.
func (c *checker) conf(plugin string) reflect.Type {
	if plugin == "" {
		return nil
	}
	a, ok := c.Applets.Lookup(plugin)
	if !ok || a.Conf == nil {
		return nil
	}
	return reflect.TypeOf(a.Conf)
}

// delegated returns the keys of a plugin whose value is the configuration of another plugin.
func (c *checker) delegated(plugin string) (all []field) {
	conf := c.conf(plugin)
	if conf == nil {
		return nil
	}
	for _, f := range c.fieldsOf(conf) {
		if f.plugin != "" {
			all = append(all, f)
		}
	}
	return all
}

// named returns the plugin that a configuration names as a delegate.
func (f field) named(members map[string]json.RawMessage) string {
	var given struct{ Type string }
	json.Unmarshal(members[f.name], &given) // the plugin reports errors
	return cmp.Or(given.Type, f.plugin)
}

// delegateTypes returns the types into which the configuration of a delegate is decoded. An IPAM
// plugin decodes here what is in the "ipam" of other configurations.
func (c *checker) delegateTypes(plugin string) []reflect.Type {
	builtIn, ok := c.Applets.Plugin(plugin)
	switch {
	case !ok:
		return []reflect.Type{raw()}
	case builtIn.IPAM:
		return c.keysOf(c.structs(plugin)...).types("ipam")
	}
	return c.structs(plugin)
}

// object compares the members of an object with keys, and their values with types.
func (c *checker) object(file, path string, doc json.RawMessage, known keys) {
	if members, err := spec.Members(doc); err == nil { // decoding reports the error
		c.members(file, path, members, known)
	}
}

// members is object after decoding. In free objects it ignores unknown keys.
func (c *checker) members(file, path string, members map[string]json.RawMessage, known keys) {
	for name, doc := range members {
		if c.full(file) {
			return
		}
		switch types := known.types(name); {
		case len(types) > 0:
			c.value(file, spec.JoinKeys(path, name), doc, types)
		case isFree(path), strings.HasPrefix(name, "_"), strings.HasPrefix(name, "//"): // written as comments
		default:
			c.note(problem{
				severity: Risk, file: file, key: spec.JoinKeys(path, name), name: true,
				text: fmt.Sprintf("unknown key %q%s", name, c.suggest(name, known)),
			})
		}
	}
}

// mostElements is how many elements of a list are checked at most. Plugins accept fewer.
const mostElements = 10_000

// value compares a value with the types into which it is decoded.
func (c *checker) value(file, path string, doc json.RawMessage, types []reflect.Type) {
	if string(doc) == "null" {
		return
	}
	var structs, lists []reflect.Type
	for _, t := range typesOf(path, types) {
		inner, members := read(t)
		switch {
		case members && doc[0] == '{':
			structs = append(structs, inner)
		case inner.Kind() == reflect.Slice && inner.Elem().Kind() != reflect.Uint8 && doc[0] == '[' && !reflect.PointerTo(inner).Implements(reflect.TypeFor[json.Unmarshaler]()):
			lists = append(lists, inner.Elem())
		case inner != raw() && !c.quick:
			if err := spec.Unmarshal(relative(path), doc, reflect.New(inner).Interface()); err != nil {
				c.add(file, path, "%v", err)
				return
			}
		}
	}
	if len(structs) > 0 {
		c.object(file, path, doc, c.keysOf(structs...))
	}
	if len(lists) > 0 {
		var elements []json.RawMessage
		json.Unmarshal(doc, &elements) // it is an array
		for i, e := range elements[:min(len(elements), mostElements)] {
			c.value(file, fmt.Sprintf("%s[%d]", path, i), e, lists)
		}
	}
}

// isFree reports whether a key is, or is in, one of the free objects.
func isFree(path string) bool {
	path = relative(path)
	for _, name := range free {
		if i := strings.Index(path, name); i >= 0 && (i == 0 || path[i-1] == '.') {
			return true
		}
	}
	return false
}

// relative returns a key as it is in the plugin's own configuration.
func relative(path string) string {
	for strings.HasPrefix(path, "plugins[") {
		_, path, _ = strings.Cut(path, ".")
	}
	return path
}

// typesOf returns the types of a value. Plugins leave routes and dns as JSON to the reader of
// results; here the types of that reader replace JSON.
func typesOf(path string, types []reflect.Type) []reflect.Type {
	if slices.ContainsFunc(types, func(t reflect.Type) bool { return t != raw() }) {
		return types
	}
	switch relative(path) {
	case "ipam.routes", "routes":
		return []reflect.Type{reflect.TypeFor[[]spec.Route]()}
	case "ipam.dns", "dns":
		return []reflect.Type{reflect.TypeFor[spec.DNS]()}
	}
	return types
}

// suggest returns the nearest known key as the rest of a sentence; empty: none is similar.
func (c *checker) suggest(name string, known keys) string {
	names := known.names()
	if near := spell.Nearest(name, names); near != "" {
		return fmt.Sprintf(": did you mean %q?", near)
	}
	for _, key := range names {
		for _, t := range known.types(key) {
			if inner, ok := read(t); ok && len(c.keysOf(inner).types(name)) > 0 {
				return fmt.Sprintf(": it belongs in %q", key)
			}
		}
	}
	if len(c.keysOf(known.inner...).types(name)) > 0 {
		return `: it belongs in an element of "plugins"`
	}
	return ""
}
