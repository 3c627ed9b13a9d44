package applets_test

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/cnibox/cnibox/applets"
	"github.com/cnibox/cnibox/applets/applet"
)

// The help describes every key of the plugin.
func TestHelpHasEveryKey(t *testing.T) {
	for _, a := range plugins(t) {
		for _, key := range confKeys(reflect.TypeOf(a.Conf)) {
			if !hasWord(a.Help, key) {
				t.Errorf("%s: the help does not have the key %q", a.Name, key)
			}
		}
	}
}

// plugins returns all plugins with keys, that is, without loopback.
func plugins(t *testing.T) (list []*applet.Applet) {
	t.Helper()
	for _, a := range applets.All() {
		switch {
		case a.Conf != nil:
			list = append(list, a)
		case a.Main == nil && a.Name != "loopback":
			t.Errorf("%s names no struct of its keys", a.Name)
		}
	}
	return list
}

// confKeys returns the JSON names of the fields of a struct and of nested structs.
func confKeys(typ reflect.Type) (keys []string) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	text, plain := reflect.TypeFor[encoding.TextUnmarshaler](), reflect.TypeFor[json.Unmarshaler]()
	if p := reflect.PointerTo(typ); typ.Kind() != reflect.Struct || p.Implements(text) || p.Implements(plain) {
		return nil
	}
	for f := range typ.Fields() {
		if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); key != "" {
			keys = append(keys, key)
		}
		keys = append(keys, confKeys(f.Type)...)
	}
	return keys
}

// hasWord reports whether a text has a word, not only as part of a longer one.
func hasWord(text, word string) bool {
	return slices.Contains(strings.FieldsFunc(text, func(r rune) bool { return r != '_' && r != '-' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }), word)
}

// A help text fits a terminal of 100 columns and has no tabs.
func TestHelpFitsTerminal(t *testing.T) {
	for _, a := range applets.All() {
		for line := range strings.Lines(a.Help) {
			if len([]rune(line)) > 101 || strings.Contains(line, "\t") {
				t.Errorf("%s: %q has %d columns or a tab", a.Name, line, len([]rune(line)))
			}
		}
	}
}
