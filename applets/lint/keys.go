package lint

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"cnibox/chain"
	"cnibox/spec"
)

// keys are the members that an object may have, and what each is decoded into, which may be
// several structs: of the runtime, of the plugin and of its IPAM plugin.
type keys map[string][]reflect.Type

// free are objects in which others than the plugins may look for what they like.
var free = [...]string{"args", "runtimeConfig", "prevResult", "capabilities"}

// raw is what is decoded later on, or by another plugin.
var raw = reflect.TypeFor[json.RawMessage]()

// documentKeys are those of a list.
func documentKeys() keys { return fields(reflect.TypeFor[chain.Document]()) }

// fields returns the keys of structs, embedded ones included. A field without a tag has its
// own name.
func fields(structs ...reflect.Type) keys {
	all := keys{}
	for _, t := range structs {
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous && name == "" || !f.IsExported() {
				continue
			}
			name = cmp.Or(name, f.Name)
			all[name] = append(all[name], f.Type)
		}
	}
	return all
}

// read reports whether an object of the type is read by its members, and how: the struct, if
// there is one, inside of pointers.
func read(t reflect.Type) (reflect.Type, bool) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	p := reflect.PointerTo(t)
	own := p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	return t, t.Kind() == reflect.Struct && !own
}

// pluginKeys compares a plugin's configuration with what is decoded of it.
func (c *checker) pluginKeys(p *chain.Plugin) {
	known := c.keysOf(p.Type, p.IPAM)
	var conf struct {
		IPAM map[string]json.RawMessage
	}
	if _, ok := known["ipam"]; ok && p.IPAM == "" && json.Unmarshal(p.Conf(), &conf) == nil && len(conf.IPAM) > 0 {
		known["ipam"] = []reflect.Type{raw}
		if !slices.ContainsFunc(c.delegated(p.Type), func(d delegate) bool { return d.key == "ipam" }) {
			c.add(p.From.File, join(p.From.Key, "ipam"), `"ipam" has no "type": nothing reads it`)
		}
	}
	for _, d := range c.delegated(p.Type) {
		known[d.key] = c.delegateTypes(d.named(p.Conf()))
	}
	c.object(p.From.File, p.From.Key, p.Conf(), known)
}

// keysOf returns the keys of a plugin with an IPAM plugin.
func (c *checker) keysOf(plugin, ipam string) keys {
	known := fields(c.structs(plugin, ipam)...)
	verbs, _ := c.Applets.Plugin(plugin)
	if !verbs.MAC && len(known["mac"]) == 1 { // that of spec.Common
		delete(known, "mac")
	}
	if _, ours := c.Applets.Plugin(ipam); ipam != "" && !ours {
		known["ipam"] = []reflect.Type{raw} // an external plugin's
	}
	if verbs.Chained {
		delete(known, "ipam")
	}
	return known
}

// structs returns what the configuration of plugins is decoded into.
func (c *checker) structs(plugins ...string) []reflect.Type {
	all := []reflect.Type{reflect.TypeFor[spec.Common](), reflect.TypeFor[chain.Member]()}
	for _, plugin := range plugins {
		if conf := c.conf(plugin); conf != nil {
			all = append(all, conf)
		}
	}
	return all
}

// conf returns the struct with the keys of a plugin of this program; nil: it has none.
func (c *checker) conf(plugin string) reflect.Type {
	a, ok := c.Applets.Lookup(plugin)
	if !ok || a.Conf == nil {
		return nil
	}
	return reflect.TypeOf(a.Conf)
}

// A delegate is a key whose value is the configuration of another plugin, by default of this
// one.
type delegate struct{ key, plugin string }

// delegated returns those of a plugin.
func (c *checker) delegated(plugin string) (all []delegate) {
	conf := c.conf(plugin)
	if conf == nil {
		return nil
	}
	for i := range conf.NumField() {
		f := conf.Field(i)
		if of, ok := f.Tag.Lookup("plugin"); ok {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			all = append(all, delegate{name, of})
		}
	}
	return all
}

// named returns the plugin that a configuration names for the delegate.
func (d delegate) named(conf json.RawMessage) string {
	members, _ := spec.Members(conf)
	var given struct{ Type string }
	json.Unmarshal(members[d.key], &given) // what is wrong with it, the plugin says
	return cmp.Or(given.Type, d.plugin)
}

// delegateTypes returns what the configuration of a delegate is decoded into. That of an IPAM
// plugin is what is its "ipam" elsewhere.
func (c *checker) delegateTypes(plugin string) []reflect.Type {
	verbs, ok := c.Applets.Plugin(plugin)
	switch {
	case !ok:
		return []reflect.Type{raw}
	case verbs.IPAM:
		return fields(c.structs(plugin)...)["ipam"]
	}
	return c.structs(plugin)
}

// object compares the members of an object with keys, and what they are with types.
func (c *checker) object(file, path string, doc json.RawMessage, known keys) {
	members, err := spec.Members(doc)
	if err != nil {
		return // whoever decodes it says that it is no object
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		types, ok := known.find(name)
		if !ok {
			if !strings.HasPrefix(name, "_") && !strings.HasPrefix(name, "//") { // as people write comments
				c.problems = append(c.problems, problem{file: file, key: join(path, name), name: true, text: fmt.Sprintf("unknown key %q%s", name, known.suggest(name))})
			}
			continue
		}
		c.value(file, join(path, name), members[name], types)
	}
}

// value compares a value with the types that it is decoded into.
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
		case inner != raw && !c.quick:
			if err := spec.Unmarshal(relative(path), doc, reflect.New(inner).Interface()); err != nil {
				c.add(file, path, "%v", err)
				return
			}
		}
	}
	if len(structs) > 0 {
		c.members(file, path, doc, structs)
	}
	if len(lists) > 0 {
		var elements []json.RawMessage
		json.Unmarshal(doc, &elements) // is an array
		for i, e := range elements {
			c.value(file, fmt.Sprintf("%s[%d]", path, i), e, lists)
		}
	}
}

// members is object for structs; those of free objects are compared as far as they are known.
func (c *checker) members(file, path string, doc json.RawMessage, structs []reflect.Type) {
	known := fields(structs...)
	if !isFree(path) {
		c.object(file, path, doc, known)
		return
	}
	members, err := spec.Members(doc)
	if err != nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if types, ok := known.find(name); ok {
			c.value(file, join(path, name), members[name], types)
		}
	}
}

// isFree reports whether a key is one of the free objects, or in one.
func isFree(path string) bool {
	return slices.ContainsFunc(strings.Split(relative(path), "."), func(part string) bool { return slices.Contains(free[:], part) })
}

// relative is a key as the plugin's own configuration has it.
func relative(path string) string {
	if strings.HasPrefix(path, "plugins[") {
		_, path, _ = strings.Cut(path, ".")
	}
	return path
}

// typesOf are the types of a value: those of routes and dns, which plugins leave to the reader of
// results, take the place of JSON.
func typesOf(path string, types []reflect.Type) []reflect.Type {
	if slices.ContainsFunc(types, func(t reflect.Type) bool { return t != raw }) {
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

// find returns the types of a key, in any case of letters.
func (k keys) find(name string) ([]reflect.Type, bool) {
	if types, ok := k[name]; ok {
		return types, true
	}
	for key, types := range k {
		if strings.EqualFold(key, name) {
			return types, true
		}
	}
	return nil, false
}

// suggest is what was meant, as the rest of a sentence; empty: nothing is alike.
func (k keys) suggest(name string) string {
	if near := nearest(name, slices.Sorted(maps.Keys(k))); near != "" {
		return fmt.Sprintf(": did you mean %q?", near)
	}
	for _, key := range slices.Sorted(maps.Keys(k)) {
		for _, t := range k[key] {
			if inner, ok := read(t); ok {
				if _, ok := fields(inner).find(name); ok {
					return fmt.Sprintf(": it belongs in %q", key)
				}
			}
		}
	}
	return ""
}

// nearest returns the name that most of a misspelled one agrees with; empty: none does.
func nearest(name string, names []string) (near string) {
	least := 1 + min(2, len(name)/3)
	for _, other := range names {
		if len(name) > 3 && len(other) > len(name) && strings.EqualFold(other[:len(name)], name) {
			return other
		}
		if d := distance(strings.ToLower(name), strings.ToLower(other)); d < least {
			near, least = other, d
		}
	}
	return near
}

// distance is the number of letters to insert, delete, replace or exchange with the next one.
func distance(a, b string) int {
	before, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next := make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next[j] = min(row[j]+1, next[j-1]+1, row[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
