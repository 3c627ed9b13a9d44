package spec

import (
	"bytes"
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

// maxDepth is the deepest nesting of JSON. Real configurations need ten levels; without the limit
// indented output grows with the square of the depth. encoding/json itself accepts 10,000.
const maxDepth = 100

// Members returns the members of a JSON object. The error says that obj is not JSON, is not an
// object or is nested too deep.
func Members(obj []byte) (map[string]json.RawMessage, error) {
	var ms map[string]json.RawMessage
	err := unmarshalObject(obj, &ms)
	return ms, err
}

// unmarshalObject decodes a JSON object, with the errors of [Members].
func unmarshalObject(obj []byte, into any) error {
	err := json.Unmarshal(obj, into)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return err
	}
	if first := bytes.TrimLeft(obj, " \t\r\n")[0]; first != '{' {
		return fmt.Errorf("%s where an object is expected", kindOf(first))
	}
	if depth(obj) > maxDepth {
		return fmt.Errorf("nested deeper than %d levels", maxDepth)
	}
	return err
}

// depth returns how deep valid JSON is nested.
func depth(b []byte) int {
	open, deepest := 0, 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			open++
			deepest = max(deepest, open)
		case '}', ']':
			open--
		}
	}
	return deepest
}

// Merge returns the JSON object with the members of set, which replace members of the same name,
// and without the members in remove; both match in any letter case. Unknown members and large
// numbers are kept; the members are sorted. It returns an error if obj is not an object, or if a
// value of set cannot be encoded.
func Merge(obj []byte, set map[string]any, remove ...string) ([]byte, error) {
	ms, err := Members(obj)
	if err != nil {
		return nil, err
	}
	keys := slices.AppendSeq(slices.Clone(remove), maps.Keys(set))
	out := make(map[string]any, len(ms)+len(set))
	for name, value := range ms {
		if !slices.ContainsFunc(keys, func(key string) bool { return strings.EqualFold(key, name) }) {
			out[name] = value
		}
	}
	maps.Copy(out, set)
	return json.Marshal(out)
}

// Unmarshal decodes the value of a key. The error names the key, as written, whose value has the
// wrong type; it has no code yet, since the code depends on the origin of the value.
func Unmarshal(key string, b []byte, into any) error {
	err := json.Unmarshal(b, into)
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntax):
		err = NotJSON(b, err)
		line, column, _ := Place(b, "", err)
		return fmt.Errorf("%q: %w (line %d, column %d)", key, err, line, column)
	}
	return explain(key, b, reflect.TypeOf(into).Elem(), err)
}

// Explain turns the error of decoding a document into a struct into terms of JSON: the key as it is
// written, and the expected type.
func Explain(doc []byte, into any, err error) error {
	if _, notObject := Members(doc); notObject != nil {
		return notObject
	}
	return explain("", doc, reflect.TypeOf(into).Elem(), err)
}

// explain finds the innermost value that cannot be decoded into its type. The error of
// encoding/json names Go's types and fields, and has no key if it comes from a method of the
// value's type.
func explain(path string, raw []byte, t reflect.Type, err error) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for _, inside := range inner(raw, t) {
		if err := json.Unmarshal(inside.raw, reflect.New(inside.t).Interface()); err != nil {
			return explain(strings.TrimPrefix(path+inside.name, "."), inside.raw, inside.t, err)
		}
	}
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
	case t == reflect.TypeFor[netip.Addr]():
		return KeyErrorf(path, "%q: %s is not an IP address", path, raw)
	case t == reflect.TypeFor[netip.Prefix]():
		return KeyErrorf(path, "%q: %s is not %s", path, raw, prefixForm(path))
	default:
		return KeyErrorf(path, "%q: %w", path, err)
	}
	if path == "" { // a repeated key whose other value fits
		path = wrong.Field
	}
	return KeyErrorf(path, "%q is %s where %s is expected", path, article(wrong.Value), wanted(wrong.Type))
}

// prefixForm returns an example value of a key with an address and a prefix length: an interface's
// address has host bits; a network, such as a subnet or the destination of a route, has none.
func prefixForm(key string) string {
	if strings.HasSuffix(key, "subnet") || strings.HasSuffix(key, "dst") {
		return "a network address with a prefix length, as 10.1.0.0/24 or fd00::/64"
	}
	return "an IP address with a prefix length, as 10.1.0.5/24 or fd00::5/64"
}

// A part is a member of an object, or an element of an array, with the type into which it is
// decoded.
type part struct {
	name string // as appended to the path: .key or [0]
	raw  json.RawMessage
	t    reflect.Type
}

// inner returns the parts of a value; a type that decodes itself has none.
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
		if member := memberType(t, key); member != nil {
			parts = append(parts, part{"." + key, members[key], member})
		}
	}
	for i, e := range list {
		parts = append(parts, part{ElementKey("", i), e, t.Elem()})
	}
	return parts
}

// memberType returns the type into which the value of a key is decoded; nil: none.
func memberType(t reflect.Type, key string) reflect.Type {
	if t.Kind() == reflect.Map {
		return t.Elem()
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && !f.Anonymous && f.IsExported() {
			name = f.Name
		}
		if name != "" && strings.EqualFold(name, key) {
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

// article adds "a" or "an" to what encoding/json found.
func article(found string) string {
	if strings.HasPrefix(found, "array") || strings.HasPrefix(found, "object") {
		return "an " + found
	}
	return "a " + found
}

// wanted returns the JSON type from which a Go type is decoded.
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
