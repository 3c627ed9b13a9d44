package applets_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

// Messages are short even if the value of a key is long.
func TestLongValues(t *testing.T) {
	const most = 600 // bytes of a message with two values
	long := strings.Repeat("x", 5000)
	try := func(plugin, what, conf string) {
		t.Helper()
		a, _ := applets.Lookup(plugin)
		r, err := spec.NewRequest(spec.Call{Verb: spec.Add, ContainerID: "c", IfName: "eth0", NetNS: "/x"}, []byte(conf))
		if err == nil && a.Plugin().Validate != nil {
			r.Invoker = &chain.Invoker{Lookup: applets.All().Plugin}
			_, err = a.Plugin().Validate(r)
		}
		if err == nil {
			return
		}
		var e struct{ Msg string }
		if err := json.Unmarshal(spec.AsError(err).Encode(spec.Newest), &e); err != nil {
			t.Fatal(err)
		}
		if len(e.Msg) > most {
			t.Errorf("%s: %s: msg has %d bytes: %.200s", plugin, what, len(e.Msg), e.Msg)
		}
	}
	for _, a := range applets.All() {
		if a.Main != nil {
			continue
		}
		head := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"n","type":%q`, a.Name)
		for _, value := range []string{`"` + long + `"`, `["` + long + `"]`, `[["` + long + `"]]`, `{"` + long + `":1}`, `{"a":"` + long + `"}`, strings.Repeat("1", 5000), `"10.1.0.0/` + long + `"`, `"` + strings.Repeat("1", 5000) + `"`,
			`[{"subnet":"` + long + `","address":"` + long + `","dst":"` + long + `"}]`, `[[{"subnet":"` + long + `"}]]`} {
			for _, key := range append(keysIn(reflect.TypeOf(a.Conf), ""), "cniVersion", "name", "type", "ipam", "dns", "args", "runtimeConfig", "mac", "prevResult", "capabilities") {
				outer, inner, nested := strings.Cut(key, ".")
				doc := fmt.Sprintf(`%s,%q:%s}`, head, key, value)
				if nested {
					more := ""
					if outer == "ipam" {
						more = fmt.Sprintf(`"type":%q,`, a.Name)
					}
					doc = fmt.Sprintf(`%s,%q:{%s%q:%s}}`, head, outer, more, inner, value)
				}
				try(a.Name, key, doc)
			}
		}
	}
}

// keysIn returns the keys of a struct and of nested structs.
func keysIn(t reflect.Type, prefix string) (keys []string) {
	if t == nil || t.Kind() != reflect.Struct {
		return nil
	}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			keys = append(keys, keysIn(f.Type, prefix)...)
		case !f.IsExported():
		case name == "":
			keys = append(keys, prefix+f.Name)
		default:
			keys = append(keys, prefix+name)
		}
		if f.Type.Kind() == reflect.Struct && !f.Anonymous && prefix == "" {
			keys = append(keys, keysIn(f.Type, prefix+name+".")...)
		}
	}
	return keys
}
