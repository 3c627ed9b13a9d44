package spec

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// maxDepth is how deep JSON may be nested. Real configurations need ten
// levels; the bound keeps indented output from growing with the square of it.
// encoding/json itself takes 10,000.
const maxDepth = 100

// A Member is one member of a JSON object: its name without escapes, and its
// value as written.
//
// Objects are kept as lists of members where order, duplicates or large numbers
// matter, which a map or a struct would lose.
type Member struct {
	Name  string
	Value json.RawMessage

	text []byte // key, colon and value as written; nil if it was made here
}

// Members returns the members of a JSON object in their order, duplicates
// included. Values are parts of obj and must not be changed. The error tells
// what is not JSON, is not an object or is nested too deep.
//
// What it returns has been checked as a whole, so the functions below need no bounds
// and no errors: each relies on valid JSON.
func Members(obj []byte) ([]Member, error) {
	if !json.Valid(obj) {
		var raw json.RawMessage
		return nil, json.Unmarshal(obj, &raw) // only this one says why
	}
	if i := space(obj, 0); obj[i] != '{' {
		return nil, fmt.Errorf("%s where an object is due", kindOf(obj[i]))
	}
	if depth(obj) > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d levels", maxDepth)
	}
	return split(obj), nil
}

// split is [Members] for bytes that are known to be a JSON object.
// It makes no copy. Twelve members is what a plugin's configuration has.
func split(obj []byte) []Member {
	ms := make([]Member, 0, 12)
	i := space(obj, 0) + 1
	for {
		start := space(obj, i)
		if obj[start] == '}' {
			return ms
		}
		end := value(obj, start)
		key := obj[start:end]
		from := space(obj, space(obj, end)+1) // after the colon
		// Cut, not decoded: nobody may look at most of them.
		i = value(obj, from)
		ms = append(ms, Member{unquote(key), obj[from:i], obj[start:i]})
		if i = space(obj, i); obj[i] == ',' {
			i++
		}
	}
}

// elements returns the values of bytes that are known to be a JSON array.
// An empty array has none, and null elements are among them as null.
func elements(list []byte) []json.RawMessage {
	var es []json.RawMessage
	i := space(list, 0) + 1
	for {
		start := space(list, i)
		if list[start] == ']' {
			return es
		}
		i = value(list, start)
		es = append(es, list[start:i])
		if i = space(list, i); list[i] == ',' {
			i++
		}
	}
}

// space returns the index of the first byte from i on that is no white space.
func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// value returns the index after the value that begins at i of valid JSON. It
// does not recurse, so that depth costs nothing.
// A colon or comma before the value is passed over.
func value(b []byte, i int) int {
	open := 0
	for ; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = closing(b, i)
		case '{', '[':
			open++
			continue
		case '}', ']':
			open--
		case ' ', '\n', '\t', '\r', ',', ':':
			continue
		default:
			i = literal(b, i)
		}
		if open == 0 {
			return i + 1
		}
	}
	return i
}

// closing returns the index of the quote that ends the string begun at i.
func closing(b []byte, i int) int {
	for i++; b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i
}

// literal returns the index of the last byte of the number or word begun at i.
func literal(b []byte, i int) int {
	for i+1 < len(b) && strings.IndexByte(" \n\t\r,:]}", b[i+1]) < 0 {
		i++
	}
	return i
}

// depth returns how deep valid JSON is nested.
func depth(b []byte) int {
	open, deepest := 0, 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = closing(b, i)
		case '{', '[':
			open++
			deepest = max(deepest, open)
		case '}', ']':
			open--
		}
	}
	return deepest
}

// unquote reads a JSON string; most are plain ASCII and need no decoder.
// Invalid UTF-8 becomes U+FFFD, as in encoding/json.
func unquote(quoted []byte) string {
	for _, c := range quoted {
		if c == '\\' || c >= 0x80 {
			var s string
			json.Unmarshal(quoted, &s) // valid already
			return s
		}
	}
	return string(quoted[1 : len(quoted)-1])
}

// pick returns the values of the given keys, in any case of letters; the last
// of a repeated key counts, as in encoding/json. Absent and null are nil.
//
// The order of the result is that of keys. [Members] and this replace a struct per
// shape, and cost no reflection at each start of a plugin.
func pick(ms []Member, keys ...string) []json.RawMessage {
	vals := make([]json.RawMessage, len(keys))
	for _, m := range ms {
		if i := index(keys, m.Name); i >= 0 {
			vals[i] = m.Value
		}
	}
	for i, v := range vals {
		if string(v) == "null" {
			vals[i] = nil
		}
	}
	return vals
}

// rest returns the members that [pick] with the same keys passes over.
// Nil if there are none. Of repeated ones the last counts.
func rest(ms []Member, keys ...string) members {
	var extra members
	for _, m := range ms {
		if index(keys, m.Name) >= 0 {
			continue
		}
		if extra == nil {
			extra = members{}
		}
		extra[m.Name] = m.Value
	}
	return extra
}

// index returns the place of a key in keys in any case of letters, or -1.
// Folding is that of encoding/json, where K is also the Kelvin sign; the lists are a
// few keys long, so no map pays.
func index(keys []string, key string) int {
	for i, k := range keys {
		if strings.EqualFold(k, key) {
			return i
		}
	}
	return -1
}

// Unmarshal decodes the value of a key. The error names the key, as it is written, whose
// value has the wrong type; it has no code yet, which depends on where the value came from.
func Unmarshal(key string, b []byte, into any) error {
	if err := json.Unmarshal(b, into); err != nil {
		return explain(key, b, reflect.TypeOf(into).Elem(), err)
	}
	return nil
}

// Explain says in the words of JSON why a document could not be decoded into a struct,
// given the error of that: the key as it is written, and what is due there.
func Explain(doc []byte, into any, err error) error {
	if _, notObject := Members(doc); notObject != nil {
		return notObject
	}
	return explain("", doc, reflect.TypeOf(into).Elem(), err)
}

// explain finds the innermost value that cannot be decoded into its type: the error of
// encoding/json names Go's types and fields, of which who wrote the document knows nothing,
// and has no key at all where a method of the value's type has refused it.
func explain(path string, raw []byte, t reflect.Type, err error) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for _, in := range inner(raw, t) {
		if err := json.Unmarshal(in.raw, reflect.New(in.t).Interface()); err != nil {
			return explain(strings.TrimPrefix(path+in.name, "."), in.raw, in.t, err)
		}
	}
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
	case t == reflect.TypeFor[netip.Addr]():
		return fmt.Errorf("%q: %s is not an IP address", path, raw)
	case t == reflect.TypeFor[netip.Prefix]():
		return fmt.Errorf("%q: %s is not an IP address with a prefix length", path, raw)
	default:
		return fmt.Errorf("%q: %w", path, err)
	}
	if path == "" { // of a key that is there again, with a value that fits
		path = wrong.Field
	}
	return fmt.Errorf("%q is %s where %s is due", path, article(wrong.Value), wanted(wrong.Type))
}

// A part is a member of an object, or an element of an array, and the type it is decoded into.
type part struct {
	name string // with what joins it to the path: .key or [0]
	raw  json.RawMessage
	t    reflect.Type
}

// inner returns the parts of a value, of which a type that decodes itself has none.
func inner(raw []byte, t reflect.Type) (parts []part) {
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	var members map[string]json.RawMessage
	var list []json.RawMessage
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		json.Unmarshal(raw, &members) // another type has no members
	case reflect.Slice, reflect.Array:
		json.Unmarshal(raw, &list)
	}
	for _, key := range slices.Sorted(maps.Keys(members)) {
		if of := memberType(t, key); of != nil {
			parts = append(parts, part{"." + key, members[key], of})
		}
	}
	for i, e := range list {
		parts = append(parts, part{at("", i), e, t.Elem()})
	}
	return parts
}

// memberType returns what the value of a key is decoded into; nil: nothing.
func memberType(t reflect.Type, key string) reflect.Type {
	if t.Kind() == reflect.Map {
		return t.Elem()
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && !f.Anonymous {
			name = f.Name
		}
		if strings.EqualFold(name, key) {
			return f.Type
		}
	}
	return nil
}

// kindOf names the JSON type of a value by its first byte.
func kindOf(c byte) string {
	switch c {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a bool"
	case 'n':
		return "null"
	}
	return "a number"
}

// article puts "a" or "an" before what encoding/json found.
func article(found string) string {
	if strings.HasPrefix(found, "array") || strings.HasPrefix(found, "object") {
		return "an " + found
	}
	return "a " + found
}

// wanted names the JSON type that a Go type is read from.
func wanted(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return "a string"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "a bool"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "an integer"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "an integer of 0 or more"
	}
	return "a " + t.String()
}
