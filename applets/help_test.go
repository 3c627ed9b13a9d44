package applets

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode"
)

// helpConfs are the configurations of the plugins; each one's test file adds its own.
var helpConfs = map[string]any{}

// Every key that a plugin reads has its place in the plugin's help.
func TestHelpHasEveryKey(t *testing.T) {
	for name, conf := range helpConfs {
		a, ok := Lookup(name)
		if !ok {
			t.Fatalf("no applet %s", name)
		}
		for _, key := range confKeys(reflect.TypeOf(conf)) {
			if !hasWord(a.Help, key) {
				t.Errorf("%s: the help does not have the key %q", name, key)
			}
		}
	}
}

// confKeys returns the JSON names of a struct's fields and of those within.
func confKeys(typ reflect.Type) (keys []string) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	text, plain := reflect.TypeFor[encoding.TextUnmarshaler](), reflect.TypeFor[json.Unmarshaler]()
	if p := reflect.PointerTo(typ); typ.Kind() != reflect.Struct || p.Implements(text) || p.Implements(plain) {
		return nil
	}
	for i := range typ.NumField() {
		f := typ.Field(i)
		if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); key != "" {
			keys = append(keys, key)
		}
		keys = append(keys, confKeys(f.Type)...)
	}
	return keys
}

// hasWord reports whether a text has a word that is no part of a longer one.
func hasWord(text, word string) bool {
	for _, w := range strings.FieldsFunc(text, func(r rune) bool { return r != '_' && r != '-' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		if w == word {
			return true
		}
	}
	return false
}

// A help text fits a terminal of 100 columns and has no tabs.
func TestHelpWidth(t *testing.T) {
	for _, a := range All() {
		for line := range strings.Lines(a.Help) {
			if len([]rune(line)) > 101 || strings.Contains(line, "\t") {
				t.Errorf("%s: %q has %d columns or a tab", a.Name, line, len([]rune(line)))
			}
		}
	}
}
