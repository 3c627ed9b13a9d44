package json

import (
	"reflect"
	"strings"
)

// tag returns the name and the options of a field; skip tells that it is none of JSON's.
func tag(f reflect.StructField) (name, options string, skip bool) {
	text := f.Tag.Get("json")
	name, options, _ = strings.Cut(text, ",")
	if name == "" {
		name = f.Name
	}
	// A struct without a tag of its own may be of a type that is not exported: its
	// fields stand with those around it.
	return name, options, text == "-" || !f.IsExported() && !embedded(f)
}

// embedded reports whether the members of a field stand with those around it.
func embedded(f reflect.StructField) bool {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return f.Anonymous && name == "" && (f.Type.Kind() == reflect.Struct ||
		f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Struct)
}

// field finds the field for a key, exactly or else in any case of letters. The zero
// Value is none.
func field(v reflect.Value, key string) (reflect.Value, string) {
	f, name := find(v, key, func(a, b string) bool { return a == b })
	if !f.IsValid() {
		f, name = find(v, key, strings.EqualFold)
	}
	return f, name
}

// find looks among the struct's own fields first, then in those of embedded structs. An
// embedded pointer that is nil has none.
func find(v reflect.Value, key string, equal func(a, b string) bool) (reflect.Value, string) {
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		if name, _, skip := tag(f); !skip && !embedded(f) && equal(name, key) {
			return v.Field(i), name
		}
	}
	for i := range t.NumField() {
		if in := reflect.Indirect(v.Field(i)); in.IsValid() && embedded(t.Field(i)) {
			if f, name := find(in, key, equal); f.IsValid() {
				return f, name
			}
		}
	}
	return reflect.Value{}, ""
}
