package applets_test

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/spec/spectest"
)

// A keyPath is a key of a configuration with its enclosing keys.
type keyPath struct {
	in  string // format of the enclosing JSON; %s is the value
	top string // outermost key; "" for the configuration itself
	typ reflect.Type
}

// Each key of each plugin, at any depth, gets values that do not fit its type. ADD returns code 7
// and names the key, before it opens the namespace, which does not exist.
func TestKeysOfWrongType(t *testing.T) {
	for _, a := range plugins(t) {
		for _, p := range keyPaths(keyPath{in: "%s", typ: reflect.TypeOf(a.Conf)}) {
			for _, value := range wrongValues(p.typ) {
				member := strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf(p.in, value), "{"), "}")
				r, err := spectest.TryRequest(spec.Add, `{"cniVersion":"1.1.0","name":"demo","type":"`+a.Name+`",`+member+`}`, "")
				if err == nil {
					_, err = a.Plugin().Add(t.Context(), r)
				}
				if e := spec.AsError(err); err == nil || e.Code != spec.CodeConfig || !strings.Contains(err.Error(), p.top) {
					t.Errorf("%s with %.80s: %v, want code 7 and %q", a.Name, member, err, p.top)
				}
			}
		}
	}
}

// keyPaths returns the keys of a struct and of nested structs.
func keyPaths(at keyPath) (paths []keyPath) {
	typ, in := at.typ, at.in
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		if typ.Kind() == reflect.Slice {
			in = fmt.Sprintf(in, "[%s]")
		}
		typ = typ.Elem()
	}
	if ownDecoder(typ) || typ.Kind() != reflect.Struct {
		return nil
	}
	for f := range typ.Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case key == "-":
			continue
		case key == "" && f.Anonymous:
			paths = append(paths, keyPaths(keyPath{in, at.top, f.Type})...)
			continue
		case !f.IsExported():
			continue
		case key == "":
			key = f.Name
		}
		p := keyPath{fmt.Sprintf(in, `{"`+key+`":%s}`), at.top, f.Type}
		if p.top == "" {
			p.top = key
		}
		paths = append(append(paths, p), keyPaths(p)...)
	}
	return paths
}

// ownDecoder reports whether a type decodes itself, or any JSON.
func ownDecoder(typ reflect.Type) bool {
	p := reflect.PointerTo(typ)
	return p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) || p.Implements(reflect.TypeFor[json.Unmarshaler]()) ||
		typ.Kind() == reflect.Interface || typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Uint8
}

// wrongValues returns values of other types and values out of range.
func wrongValues(typ reflect.Type) []string {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	deep := strings.Repeat("[", 60) + strings.Repeat("]", 60) // the limit of spec is 100
	text := reflect.PointerTo(typ).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	switch k := typ.Kind(); {
	case text:
		return []string{"1", "true", "[]", "{}", `"x y"`, deep}
	case ownDecoder(typ):
		return nil
	case k == reflect.String:
		return []string{"1", "true", "[]", "{}", deep}
	case k == reflect.Bool:
		return []string{"1", `"true"`, "[]", "{}", deep}
	case k == reflect.Slice:
		return []string{"1", "true", `"x"`, "{}", deep}
	case k == reflect.Struct, k == reflect.Map:
		return []string{"1", "true", `"x"`, "[]", deep}
	case k >= reflect.Uint && k <= reflect.Uint64:
		return []string{"true", `"1"`, "[]", "{}", "1.5", "1e99", "-1", "99999999999999999999", deep}
	}
	return []string{"true", `"1"`, "[]", "{}", "1.5", "1e99", "99999999999999999999", "-99999999999999999999", deep}
}
