package json

import (
	"reflect"
	"slices"
	"strings"
	"unicode"
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

// A fieldTable finds the fields of a struct by their names. A document may have a great
// many keys that are none.
type fieldTable struct {
	exact, folded map[string]namedField
}

// A namedField is a field and the way to it through embedded structs.
type namedField struct {
	name  string
	index []int
}

// table returns the table of a struct's type, which is made once for a document.
func (d *decoder) table(t reflect.Type) fieldTable {
	table, ok := d.tables[t]
	if !ok {
		table = fieldTable{map[string]namedField{}, map[string]namedField{}}
		table.add(t, nil)
		if d.tables == nil {
			d.tables = map[reflect.Type]fieldTable{}
		}
		d.tables[t] = table
	}
	return table
}

// add enters the struct's own fields first, then those of embedded structs. The first of a
// name counts.
func (f fieldTable) add(t reflect.Type, way []int) {
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, skip := tag(field)
		if skip || embedded(field) {
			continue
		}
		named := namedField{name, append(slices.Clone(way), i)}
		enter(f.exact, name, named)
		enter(f.folded, fold(name), named)
	}
	for i := range t.NumField() {
		if field := t.Field(i); embedded(field) {
			in := field.Type
			if in.Kind() == reflect.Pointer {
				in = in.Elem()
			}
			f.add(in, append(slices.Clone(way), i))
		}
	}
}

// enter keeps the first of a name.
func enter(table map[string]namedField, key string, f namedField) {
	if _, known := table[key]; !known {
		table[key] = f
	}
}

// field finds the field for a key, exactly or else in any case of letters. The zero
// Value is none; an embedded pointer that is nil has none.
func (d *decoder) field(v reflect.Value, key string) (reflect.Value, string) {
	table := d.table(v.Type())
	named, ok := table.exact[key]
	if !ok {
		named, ok = table.folded[fold(key)]
	}
	if !ok {
		return reflect.Value{}, ""
	}
	field, err := v.FieldByIndexErr(named.index)
	if err != nil {
		return reflect.Value{}, ""
	}
	return field, named.name
}

// fold makes equal what [strings.EqualFold] takes for equal.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
			least = min(least, next)
		}
		return least
	}, s)
}
