package json

import (
	"encoding/base64"
	"errors"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
)

// A RawMessage is a value as written.
type RawMessage []byte

// MarshalJSON returns m; nil is null.
func (m RawMessage) MarshalJSON() ([]byte, error) {
	if m == nil {
		return []byte("null"), nil
	}
	return m, nil
}

// UnmarshalJSON copies the value.
func (m *RawMessage) UnmarshalJSON(b []byte) error {
	*m = append((*m)[:0], b...)
	return nil
}

// A Number is a number as written: what [Unmarshal] puts into an interface.
type Number string

// A Decoder reads itself from valid JSON, which it must not keep.
//
// The names of encoding and encoding/json are not for this package: of what a program has
// as an interface anywhere the linker keeps all methods that are called by name, and
// [time.Time]'s are 40 KB. So [RawMessage] and the types of net/netip are known here.
type Decoder interface{ DecodeJSON([]byte) error }

// DecodeJSON is a [Decoder]'s.
func (m *RawMessage) DecodeJSON(b []byte) error { return m.UnmarshalJSON(b) }

// An UnmarshalTypeError tells of a value that does not fit where it is to go: what it
// is, the Go type, and the members of objects that lead there, joined by dots.
type UnmarshalTypeError struct {
	Value string
	Type  reflect.Type
	Field string
}

// Error is the text of encoding/json without Go's names for structs.
func (e *UnmarshalTypeError) Error() string {
	at := ""
	if e.Field != "" {
		at = " in " + e.Field
	}
	return "json: cannot unmarshal " + e.Value + at + " into a value of type " + e.Type.String()
}

// Unmarshal stores a document in what v points to, in the way of encoding/json: keys
// match in any case of letters, of repeated ones the last counts, unknown ones are
// passed over and null leaves things as they are, but for pointers, slices, maps and
// interfaces, which become nil. Broken JSON is a [SyntaxError], and nothing is stored;
// the first value that does not fit is the error once all others are stored, unless a type
// that reads itself has one.
func Unmarshal(b []byte, v any) error {
	if err := check(b); err != nil {
		return err
	}
	to := reflect.ValueOf(v)
	if to.Kind() != reflect.Pointer || to.IsNil() {
		return errors.New("json: Unmarshal needs a pointer")
	}
	d := decoder{scanner: scanner{b: b}}
	d.decode(to)
	if d.own != nil {
		return d.own
	}
	return d.first
}

// A decoder stores the values of a document that is known to be valid.
type decoder struct {
	scanner
	path  []string // members of objects on the way
	first error    // the first value that did not fit
	own   error    // of a type that reads itself, which is the end

	tables map[reflect.Type]fieldTable
}

// mismatch notes that a value does not fit, if it is the first.
func (d *decoder) mismatch(value string, t reflect.Type) {
	if d.first == nil {
		d.first = &UnmarshalTypeError{value, t, strings.Join(d.path, ".")}
	}
}

// raw goes over the next value and returns it.
func (d *decoder) raw() []byte {
	d.space()
	start := d.i
	d.value(0)
	return d.b[start:d.i]
}

// decode stores the next value in v.
func (d *decoder) decode(v reflect.Value) {
	d.space()
	null := d.b[d.i] == 'n'
	typ := v.Type()
	v, own, text := target(v, null)
	switch {
	case own != nil:
		d.own = own.DecodeJSON(d.raw())
	case null:
		d.raw()
		switch v.Kind() {
		case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
			v.SetZero()
		}
	case text != nil:
		d.text(typ, text)
	case d.b[d.i] == '{':
		d.members(v)
	case d.b[d.i] == '[':
		d.elements(v)
	case d.b[d.i] == '"':
		d.storeString(v)
	case d.b[d.i] == 't' || d.b[d.i] == 'f':
		d.storeBool(v)
	default:
		d.storeNumber(v)
	}
}

// target follows pointers to what a value is stored in, and makes what they are to
// point to. It stops at a pointer that null sets, and at what reads itself.
func target(v reflect.Value, null bool) (reflect.Value, Decoder, func([]byte) error) {
	if v.Kind() != reflect.Pointer && v.CanAddr() {
		v = v.Addr()
	}
	for v.Kind() == reflect.Pointer {
		if null && v.CanSet() {
			return v, nil, nil
		}
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		if v.Type().NumMethod() > 0 && v.CanInterface() {
			u := v.Interface()
			if own, ok := u.(Decoder); ok {
				return v, own, nil
			}
			if read := reader(u); read != nil && !null {
				return v, nil, read
			}
		}
		v = v.Elem()
	}
	return v, nil, nil
}

// reader returns what reads u from text; nil: nothing does.
func reader(u any) func([]byte) error {
	switch u := u.(type) {
	case *netip.Addr:
		return u.UnmarshalText
	case *netip.Prefix:
		return u.UnmarshalText
	}
	return nil
}

// text stores a string in what reads itself from text.
func (d *decoder) text(typ reflect.Type, read func([]byte) error) {
	if d.b[d.i] != '"' {
		d.mismatch(kind(d.raw()), typ)
		return
	}
	d.own = read([]byte(unquote(d.raw())))
}

// kind names the type of a value.
func kind(b []byte) string {
	switch b[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "bool"
	}
	return "number"
}

// members stores an object in a struct, a map or an interface.
func (d *decoder) members(v reflect.Value) {
	var into map[string]any
	switch {
	case v.Kind() == reflect.Interface && v.NumMethod() == 0:
		into = map[string]any{}
		v.Set(reflect.ValueOf(into))
		v = v.Elem()
	case v.Kind() == reflect.Map && v.Type().Key().Kind() == reflect.String:
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
	case v.Kind() == reflect.Struct:
	default:
		d.mismatch("object", v.Type())
		d.raw()
		return
	}
	d.i++
	for d.space(); !d.next('}'); d.space() {
		d.next(',')
		key := unquote(d.raw())
		d.space()
		d.i++ // the colon
		if d.member(v, key); d.own != nil {
			return
		}
	}
}

// member stores the value of one member.
func (d *decoder) member(v reflect.Value, key string) {
	if v.Kind() == reflect.Map {
		e := reflect.New(v.Type().Elem()).Elem()
		if d.decode(e); d.own == nil {
			v.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), e)
		}
		return
	}
	f, name := d.field(v, key)
	if !f.IsValid() {
		d.raw()
		return
	}
	d.path = append(d.path, name)
	d.decode(f)
	d.path = d.path[:len(d.path)-1]
}

// elements stores an array in a slice, an array or an interface.
func (d *decoder) elements(v reflect.Value) {
	switch {
	case v.Kind() == reflect.Interface && v.NumMethod() == 0:
		var list []any
		d.elements(reflect.ValueOf(&list).Elem())
		v.Set(reflect.ValueOf(list))
		return
	case v.Kind() != reflect.Slice && v.Kind() != reflect.Array:
		d.mismatch("array", v.Type())
		d.raw()
		return
	}
	slice := v.Kind() == reflect.Slice
	n := 0
	d.i++
	for d.space(); !d.next(']'); d.space() {
		d.next(',')
		if slice && n >= v.Cap() {
			v.Grow(1)
		}
		if slice && n >= v.Len() {
			v.SetLen(n + 1)
		}
		if n < v.Len() {
			d.decode(v.Index(n))
		} else {
			d.raw() // more than an array has
		}
		if d.own != nil {
			return
		}
		n++
	}
	switch {
	case slice && n == 0:
		v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	case slice:
		v.SetLen(n)
	default:
		for ; n < v.Len(); n++ {
			v.Index(n).SetZero()
		}
	}
}

// storeString stores a string; what bytes are stored from is in base64.
func (d *decoder) storeString(v reflect.Value) {
	s := unquote(d.raw())
	switch {
	case v.Kind() == reflect.String:
		v.SetString(s)
	case v.Kind() == reflect.Interface && v.NumMethod() == 0:
		v.Set(reflect.ValueOf(s))
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil && d.first == nil {
			d.first = err
		}
		if err == nil {
			v.SetBytes(b)
		}
	default:
		d.mismatch("string", v.Type())
	}
}

// storeBool stores true or false.
func (d *decoder) storeBool(v reflect.Value) {
	is := d.raw()[0] == 't'
	switch {
	case v.Kind() == reflect.Bool:
		v.SetBool(is)
	case v.Kind() == reflect.Interface && v.NumMethod() == 0:
		v.Set(reflect.ValueOf(is))
	default:
		d.mismatch("bool", v.Type())
	}
}

// storeNumber stores an integer; one that is none, or too large for its type, does not fit.
func (d *decoder) storeNumber(v reflect.Value) {
	s := string(d.raw())
	switch k := v.Kind(); {
	case k == reflect.Interface && v.NumMethod() == 0:
		v.Set(reflect.ValueOf(Number(s)))
	case v.CanInt():
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || v.OverflowInt(n) {
			d.mismatch("number "+s, v.Type())
			return
		}
		v.SetInt(n)
	case v.CanUint():
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil || v.OverflowUint(n) {
			d.mismatch("number "+s, v.Type())
			return
		}
		v.SetUint(n)
	case v.Type() == reflect.TypeFor[Number]():
		v.SetString(s)
	default:
		d.mismatch("number", v.Type())
	}
}
