package json

import (
	"bytes"
	"encoding/base64"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Marshal writes a value in the way of encoding/json, on one line: fields in their
// order, keys of maps sorted, nil as null, and the options omitempty and omitzero. The
// error is about a type that it does not know, or of a type that writes itself.
func Marshal(v any) ([]byte, error) {
	e := encoder{}
	e.value(reflect.ValueOf(v))
	if e.err != nil {
		return nil, e.err
	}
	return e.out, nil
}

// MarshalIndent is [Marshal] and [Indent].
func MarshalIndent(v any, prefix, indent string) ([]byte, error) {
	b, err := Marshal(v)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = Indent(&out, b, prefix, indent)
	return out.Bytes(), err
}

// An encoder appends values. After an error what it has appended is of no use.
type encoder struct {
	out []byte
	err error
}

// value appends one value; the zero Value is a nil interface.
func (e *encoder) value(v reflect.Value) {
	switch {
	case !v.IsValid() || (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) && v.IsNil():
		e.out = append(e.out, "null"...)
		return
	case e.own(v):
		return
	case v.CanAddr() && v.Kind() != reflect.Pointer && e.own(v.Addr()):
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		e.out = strconv.AppendBool(e.out, v.Bool())
	case reflect.String:
		if n, ok := v.Interface().(Number); ok {
			e.out = append(e.out, n...)
			return
		}
		e.out = quote(e.out, v.String())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		e.out = strconv.AppendInt(e.out, v.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		e.out = strconv.AppendUint(e.out, v.Uint(), 10)
	case reflect.Interface, reflect.Pointer:
		e.value(v.Elem())
	case reflect.Struct:
		e.out = append(e.out, '{')
		e.fields(v, nil)
		e.end('}')
	case reflect.Map:
		e.object(v)
	case reflect.Slice, reflect.Array:
		e.list(v)
	default:
		e.err = errors.New("json: unsupported type: " + v.Type().String())
	}
}

// own appends what has a form of its own, see [Decoder].
func (e *encoder) own(v reflect.Value) bool {
	if v.Type().NumMethod() == 0 || !v.CanInterface() {
		return false
	}
	var text []byte
	switch m := v.Interface().(type) {
	case RawMessage:
		b, _ := m.MarshalJSON() // has no error
		if err := check(b); err != nil {
			e.err = errors.Join(e.err, err)
			return true
		}
		e.compact(b)
		return true
	case netip.Addr:
		text, _ = m.MarshalText() // has no error
	case netip.Prefix:
		text, _ = m.MarshalText()
	default:
		return false
	}
	e.out = quote(e.out, string(text))
	return true
}

// compact appends valid JSON without white space between tokens, and escaped like
// strings of our own.
func (e *encoder) compact(b []byte) {
	quoted := false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
			e.out = append(e.out, c, b[i])
			continue
		case c == '"':
			quoted = !quoted
		case !quoted && isSpace(c):
			continue
		case quoted && (c == '<' || c == '>' || c == '&'):
			e.out = quoteByte(e.out, c)
			continue
		case quoted && c == 0xe2 && i+2 < len(b) && b[i+1] == 0x80 && b[i+2]&^1 == 0xa8: // U+2028, U+2029
			e.out = append(e.out, `\u202`...)
			e.out = append(e.out, hex[b[i+2]&0xf])
			i += 2
			continue
		}
		e.out = append(e.out, b[i])
	}
}

// end puts the closing bracket in the place of the last comma, or behind the opening one.
func (e *encoder) end(bracket byte) {
	if last := len(e.out) - 1; e.out[last] == ',' {
		e.out[last] = bracket
		return
	}
	e.out = append(e.out, bracket)
}

// fields appends the members of a struct, each with a comma behind it. Those of embedded
// structs stand in their place, unless an outer one has the name.
func (e *encoder) fields(v reflect.Value, outer []string) {
	t := v.Type()
	names := outer
	for i := range t.NumField() {
		if name, _, skip := tag(t.Field(i)); !skip && !embedded(t.Field(i)) {
			names = append(names, name)
		}
	}
	for i := range t.NumField() {
		name, options, skip := tag(t.Field(i))
		f := v.Field(i)
		switch {
		case skip:
		case embedded(t.Field(i)):
			if f = reflect.Indirect(f); f.IsValid() {
				e.fields(f, names)
			}
		case slices.Contains(outer, name), strings.Contains(options, "omitempty") && empty(f), strings.Contains(options, "omitzero") && f.IsZero():
		default:
			e.out = append(quote(e.out, name), ':')
			e.value(f)
			e.out = append(e.out, ',')
		}
	}
}

// empty is what omitempty leaves out.
func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

// object appends a map with keys that are strings.
func (e *encoder) object(v reflect.Value) {
	if v.IsNil() {
		e.out = append(e.out, "null"...)
		return
	}
	if v.Type().Key().Kind() != reflect.String {
		e.err = errors.New("json: unsupported type: " + v.Type().String())
		return
	}
	keys := make([]string, 0, v.Len())
	for it := v.MapRange(); it.Next(); {
		keys = append(keys, it.Key().String())
	}
	slices.Sort(keys)
	e.out = append(e.out, '{')
	for _, k := range keys {
		e.out = append(quote(e.out, k), ':')
		e.value(v.MapIndex(reflect.ValueOf(k).Convert(v.Type().Key())))
		e.out = append(e.out, ',')
	}
	e.end('}')
}

// list appends a slice, which of bytes is a string in base64, or an array.
func (e *encoder) list(v reflect.Value) {
	switch {
	case v.Kind() == reflect.Slice && v.IsNil():
		e.out = append(e.out, "null"...)
		return
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		e.out = append(base64.StdEncoding.AppendEncode(append(e.out, '"'), v.Bytes()), '"')
		return
	}
	e.out = append(e.out, '[')
	for i := range v.Len() {
		e.value(v.Index(i))
		e.out = append(e.out, ',')
	}
	e.end(']')
}

// Indent appends JSON with each member and element on a line of its own, which begins
// with prefix and one indent for each level. Broken JSON is a [SyntaxError], and nothing
// is appended.
func Indent(out *bytes.Buffer, b []byte, prefix, indent string) error {
	if err := check(b); err != nil {
		return err
	}
	level, quoted := 0, false
	line := func() {
		out.WriteString("\n" + prefix)
		for range level {
			out.WriteString(indent)
		}
	}
	for i := 0; i < len(b); i++ {
		c := b[i]
		switch {
		case quoted && c == '\\':
			out.WriteByte(c)
			i++
			c = b[i]
		case c == '"':
			quoted = !quoted
		case quoted || isSpace(c):
		case c == '{' || c == '[':
			next := i + 1
			for isSpace(b[next]) {
				next++
			}
			out.WriteByte(c)
			if b[next] == c+2 { // the closing one: nothing between them
				out.WriteByte(b[next])
				i = next
				continue
			}
			level++
			line()
			continue
		case c == '}' || c == ']':
			level--
			line()
		case c == ',':
			out.WriteByte(c)
			line()
			continue
		case c == ':':
			out.WriteString(": ")
			continue
		}
		if quoted || !isSpace(c) {
			out.WriteByte(c)
		}
	}
	return nil
}
