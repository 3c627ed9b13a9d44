package chain_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

// Lists that libcni accepts or refuses, as observed.
func TestParse(t *testing.T) {
	const plugins = `,"plugins":[{"type":"x"}]}`
	tests := map[string]struct {
		doc, version, err string
	}{
		"highest of cniVersions that is known": {`{"name":"n","cniVersions":["0.4.0","1.0.0","2.0.0"]` + plugins, "1.0.0", ""},
		"cniVersion joins them":                {`{"name":"n","cniVersion":"1.1.0","cniVersions":["0.4.0","1.0.0"]` + plugins, "1.1.0", ""},
		"unless it is too new":                 {`{"name":"n","cniVersion":"2.0.0","cniVersions":["0.4.0","1.0.0"]` + plugins, "1.0.0", ""},
		"all too new":                          {`{"name":"n","cniVersion":"2.0.0","cniVersions":["3.0.0"]` + plugins, "2.0.0", ""},
		"alone it is literal":                  {`{"name":"n","cniVersion":"2.0.0"` + plugins, "2.0.0", ""},
		"junk alone is literal":                {`{"name":"n","cniVersion":"junk"` + plugins, "junk", ""},
		"no version":                           {`{"name":"n"` + plugins, "", ""},
		"junk with cniVersions":                {`{"name":"n","cniVersion":"junk","cniVersions":["1.0.0"]` + plugins, "", "not a number"},
		"cniVersions empty":                    {`{"name":"n","cniVersions":[]` + plugins, "", ""},
		"two parts":                            {`{"name":"n","cniVersions":["1.0"]` + plugins, "1.0", ""},
		"release candidate":                    {`{"name":"n","cniVersions":["1.0.0-rc1"]` + plugins, "", "not a number"},
		"cniVersions null":                     {`{"name":"n","cniVersions":null` + plugins, "", "cniVersions"},
		"cniVersions of numbers":               {`{"name":"n","cniVersions":[1]` + plugins, "", "cniVersions"},
		"cniVersions holds null":               {`{"name":"n","cniVersions":[null]` + plugins, "", "cniVersions"},
		"name empty":                           {`{"name":""` + plugins, "", ""},
		"no name":                              {`{"cniVersion":"1.0.0"` + plugins, "", `"name"`},
		"name a number":                        {`{"name":1` + plugins, "", `"name"`},
		"plugins empty":                        {`{"name":"n","plugins":[]}`, "", "no plugins"},
		"plugins null":                         {`{"name":"n","plugins":null}`, "", "no plugins"},
		"plugins absent":                       {`{"name":"n"}`, "", ""},
		"plugins absent, inlined only":         {`{"name":"n","loadOnlyInlinedPlugins":true}`, "", `"plugins" is missing`},
		"no type":                              {`{"name":"n","plugins":[{}]}`, "", "missing 'type'"},
		"type empty":                           {`{"name":"n","plugins":[{"type":""}]}`, "", "missing 'type'"},
		"plugin a string":                      {`{"name":"n","plugins":["x"]}`, "", `"plugins[0]" is a string where an object is expected`},
		"a list":                               {`[]`, "", "an array"},
		"plugins an object":                    {`{"name":"n","plugins":{}}`, "", `"plugins" is`},
		"plugin null":                          {`{"name":"n","plugins":[null]}`, "", "missing 'type'"},
		"capability a string":                  {`{"name":"n","plugins":[{"type":"x","capabilities":{"a":"true"}}]}`, "", `"plugins[0].capabilities.a" is a string where a bool`},
		"ipam a string":                        {`{"name":"n","plugins":[{"type":"x","ipam":"host-local"}]}`, "", `"plugins[0].ipam" is a string where an object is expected`},
		"dns null":                             {`{"name":"n","plugins":[{"type":"x","dns":null}]}`, "", ""},
		"args of any shape":                    {`{"name":"n","plugins":[{"type":"x","args":["a",1]}]}`, "", ""},
		"disableCheck text":                    {`{"name":"n","disableCheck":"TRUE"` + plugins, "", ""},
		"disableGC a number":                   {`{"name":"n","disableGC":1` + plugins, "", `"disableGC": "1" is neither true nor false`},
		"not JSON":                             {`{"name":`, "", "not JSON: the end"},
		"byte order mark":                      {"\ufeff{}", "", "not JSON: a byte order mark"},
		"bytes behind":                         {`{"name":"n"} x`, "", "ended before"},
		"keys in any case":                     {`{"NAME":"n","CniVersion":"0.4.0","Plugins":[{"TYPE":"x"}]}`, "0.4.0", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l, err := chain.Parse([]byte(tt.doc))
			wantErr(t, err, tt.err)
			if err == nil && l.CNIVersion != tt.version {
				t.Errorf("got version %q, want %q", l.CNIVersion, tt.version)
			}
			if name == "disableCheck text" && !l.DisableCheck {
				t.Error("disableCheck is false")
			}
		})
	}
}

func TestLoad(t *testing.T) {
	const list = `{"name":"NAME","cniVersion":"1.0.0","plugins":[{"type":"TYPE"}]}`
	make := func(name, typ string) string {
		return strings.NewReplacer("NAME", name, "TYPE", typ).Replace(list)
	}
	w := newFixture(t)
	w.write("00-broken.conflist", `{`)
	w.write("10-b.conflist", make("both", "first"))
	w.write("20-b.conflist", make("both", "second"))
	w.write("05-single.conf", `{"name":"both","type":"single"}`)
	w.write("30-c.json", `{"name":"js","cniVersion":"0.4.0","type":"single","n":9007199254740993}`)
	w.write("40-d.conf", make("d", "x"))
	w.write("README", "no configuration")
	os.Mkdir(filepath.Join(w.conf, "50-dir.conflist"), 0o700)
	if err := unix.Mkfifo(filepath.Join(w.conf, "60-fifo.conf"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct{ network, typ, err string }{
		"lists before single ones, broken skipped": {"both", "first", ""},
		"single": {"js", "single", ""},
		"not there, with what is broken": {"nope", "", "\"nope\" in " + w.conf +
			"; " + w.conf + "/00-broken.conflist:1:2: not JSON: the end"},
		"list in a .conf":     {"d", "", ".conflist"},
		"a name that is path": {"../evil", "", "../evil"},
		"no name":             {"", "", "network name"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l, err := chain.Load(w.conf, tt.network)
			wantErr(t, err, tt.err)
			if err == nil && (len(l.Plugins) != 1 || l.Plugins[0].Type != tt.typ) {
				t.Errorf("got %+v, want type %s", l.Plugins, tt.typ)
			}
		})
	}
	for _, dir := range []string{filepath.Join(w.dir, "missing"), t.TempDir()} {
		_, err := chain.Load(dir, "n")
		wantErr(t, err, "found in "+dir)
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v is not os.ErrNotExist", err)
		}
	}
	if _, err := chain.Load(filepath.Join(w.conf, "README"), "n"); code(err) != spec.CodeIO {
		t.Errorf("a directory that is a file: got %v", err)
	}
	names, broken := chain.Networks(w.conf)
	if strings.Join(names, " ") != "both js" || len(broken) != 3 {
		t.Errorf("got networks %q and %d broken files, want both, js and 3", names, len(broken))
	}
}

func TestDropIns(t *testing.T) {
	w := newFixture(t)
	w.write("n/20-b.conf", `{"type":"b"}`)
	w.write("n/10-a.conf", `{"type":"a","name":"other","cniVersion":"0.1.0"}`)
	w.write("n/30-c.conflist", `{"type":"c"}`)
	types := func(l *chain.List) (s string) {
		for _, p := range l.Plugins {
			s += p.Type + " "
		}
		return s
	}
	tests := map[string]struct{ doc, types, err string }{
		"appended by file name":     {`{"name":"n","plugins":[{"type":"x"}]}`, "x a b ", ""},
		"alone":                     {`{"name":"n"}`, "a b ", ""},
		"inlined only":              {`{"name":"n","loadOnlyInlinedPlugins":true,"plugins":[{"type":"x"}]}`, "x ", ""},
		"no directory":              {`{"name":"m","plugins":[{"type":"x"}]}`, "x ", ""},
		"neither":                   {`{"name":"m"}`, "", "plugin configs"},
		"name is a path":            {`{"name":"../net.d/n","plugins":[{"type":"x"}]}`, "", "../net.d/n"},
		"empty name is a directory": {`{"name":"","plugins":[{"type":"x"}]}`, "", "network name"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l, err := chain.LoadFile(w.write("l.conflist", tt.doc))
			wantErr(t, err, tt.err)
			if err != nil {
				return
			}
			if got := types(l); got != tt.types {
				t.Errorf("got plugins %q, want %q", got, tt.types)
			}
			doc, err := l.Effective()
			if err != nil {
				t.Fatal(err)
			}
			again, err := chain.Parse(doc)
			if err != nil || types(again) != tt.types {
				t.Errorf("effective list %s: %v", doc, err)
			}
		})
	}
	w.write("n/15-broken.conf", `{"type":1}`)
	_, err := chain.LoadFile(w.write("l.conflist", `{"name":"n","plugins":[{"type":"x"}]}`))
	wantErr(t, err, "15-broken.conf")
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"name":"n","cniVersions":["0.4.0"],"disableGC":"true","plugins":[{"type":"x","capabilities":{"a":true}}]}`))
	f.Add([]byte(`{"name":"n","type":"x","args":{"cni":{"disable-check":true}}}`))
	f.Add([]byte(`{"name":"n","plugins":[null,{"type":"x"}]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		if l, err := chain.Parse(doc); err == nil {
			if _, err := l.Effective(); err != nil {
				t.Errorf("%q: effective: %v", doc, err)
			}
		}
		l, err := chain.ParseSingle(doc)
		if err != nil {
			return
		}
		wrapped, err := l.Effective()
		if err != nil {
			t.Fatal(err)
		}
		again, err := chain.Parse(wrapped)
		if err != nil || again.Name != l.Name || len(again.Plugins) != 1 || again.Plugins[0].Type != l.Plugins[0].Type {
			t.Errorf("%q wrapped as %q: %v", doc, wrapped, err)
		}
	})
}
