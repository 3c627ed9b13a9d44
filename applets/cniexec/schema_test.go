package cniexec

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/applets/cniexec/dryrun"
	"github.com/cnibox/cnibox/applets/cniexec/trace"
	"github.com/cnibox/cnibox/chain"
)

// documents has the types that a verb writes with -o json, by file name in docs/schema.
func documents() map[string][]any {
	return map[string][]any{
		"add": {dryrun.Changes{}}, "boot": {bootDoc{}}, "check": {checkDoc{}}, "del": {deletedDoc{}}, "doctor": {doctorDoc{}},
		"down": {deletedDoc{}}, "gc": {gcDoc{}}, "lint": {lintDoc{}},
		"ls": {inventoryDoc{}, networksDoc{}}, "ls-line": {attachmentDoc{}}, "publish": {inventoryDoc{}}, "reload": {reloadDoc{}}, "rm": {rmDoc{}},
		"show": {inventoryDoc{}, shownNetworkDoc{}, whoDoc{}}, "status": {statusDoc{}}, "trace": {trace.Trace{}}, "tree": {treeDoc{}},
		"unpublish": {inventoryDoc{}}, "up": {upDoc{}}, "version": {versionDoc{}}, "who": {whoDoc{}},
	}
}

// The files in docs/schema match the types, no member more or less. Scripts validate output against them.
func TestSchemas(t *testing.T) {
	dir := filepath.Join("..", "..", "docs", "schema")
	files, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	if len(files) != len(documents()) && !*update {
		t.Errorf("%d files in %s, want %d", len(files), dir, len(documents()))
	}
	if *update {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for verb, docs := range documents() {
		whole := map[string]any{}
		var any []map[string]any
		for _, doc := range docs {
			any = append(any, schemaOf(reflect.TypeOf(doc)))
		}
		if len(any) == 1 {
			whole = any[0]
		} else {
			whole["anyOf"] = any
		}
		whole["$schema"] = "https://json-schema.org/draft/2020-12/schema"
		whole["title"] = "cni-exec " + strings.Replace(verb, "-line", " -o jsonl: a line", 1)
		b, err := json.MarshalIndent(whole, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden(t, filepath.Join(dir, verb+".json"), string(b)+"\n")
	}
}

// schemaOf returns the JSON schema of a type. Members without omitempty are required. Others are
// allowed, since a release may add some; that a document has no others yet is known from its type.
func schemaOf(typ reflect.Type) map[string]any {
	switch typ {
	case reflect.TypeFor[json.RawMessage]():
		return map[string]any{"type": "object"}
	case reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case reflect.TypeFor[chain.Held](): // the plugin defines the data
		return object(map[string]any{"plugin": kind("string"), "kind": kind("string"), "text": kind("string"), "data": true}, []string{"plugin", "kind", "text", "data"})
	}
	if typ.Implements(reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()) {
		return kind("string")
	}
	switch typ.Kind() {
	case reflect.Pointer:
		of := schemaOf(typ.Elem())
		if typ.Elem().Kind() != reflect.Struct || typ.Elem() == reflect.TypeFor[time.Time]() {
			of["type"] = []any{of["type"], "null"}
		}
		return of
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(typ.Elem())}
	case reflect.Struct:
		members, required := map[string]any{}, []string{}
		for _, f := range reflect.VisibleFields(typ) {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous || !f.IsExported() || name == "-" {
				continue
			}
			if members[name] = schemaOf(f.Type); options == "" {
				required = append(required, name)
			}
		}
		return object(members, required)
	case reflect.String:
		return kind("string")
	case reflect.Bool:
		return kind("boolean")
	}
	return kind("integer")
}

func kind(name string) map[string]any { return map[string]any{"type": name} }

func object(members map[string]any, required []string) map[string]any {
	return map[string]any{"type": "object", "properties": members, "required": required}
}
