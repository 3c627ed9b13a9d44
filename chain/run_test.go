package chain_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

func caps(t *testing.T, doc string) (m map[string]json.RawMessage) {
	t.Helper()
	if err := json.Unmarshal([]byte(doc), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// The calls of all verbs, with their order and contents, for a list with an inlined plugin and two
// drop-ins.
func TestCallsOfAllVerbs(t *testing.T) {
	w := newFixture(t, "rec", "rec-a", "rec-b")
	w.write("n/20-b.conf", `{"type":"rec-b"}`)
	w.write("n/10-a.conf", `{"type":"rec-a","name":"other","cniVersion":"0.1.0"}`)
	file := w.write("n.conflist", `{"name":"n","cniVersion":"1.1.0","plugins":[
		{"type":"rec","capabilities":{"portMappings":true,"mac":true,"dns":false},"big":9007199254740993,"f":1.10,"s":"<&>","s":2}]}`)
	l, err := chain.LoadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	tg := target("c")
	tg.Args = [][2]string{{"A", "1"}, {"B", "x=y"}}
	tg.Capabilities = caps(t, `{"portMappings":[{"hostPort":1}],"bandwidth":{},"dns":{}}`)
	if _, err := w.Add(t.Context(), l, tg); err != nil {
		t.Fatal(err)
	}
	calls := w.wantCalls("ADD rec, ADD rec-a, ADD rec-b")
	first := calls[0].Stdin
	want := `{"big":9007199254740993,"cniVersion":"1.1.0","f":1.10,"name":"n",` +
		`"runtimeConfig":{"portMappings":[{"hostPort":1}]},"s":2,"type":"rec"}`
	if first != want {
		t.Errorf("stdin of the first:\ngot  %s\nwant %s", first, want)
	}
	for i, c := range calls {
		if c.ID != "c" || c.NetNS != ownNS || c.IfName != "eth0" || c.Args != "A=1;B=x=y" || c.Path != w.bin {
			t.Errorf("environment of %s: %+v", c, c)
		}
		if member(t, c.Stdin, "name") != `"n"` || member(t, c.Stdin, "cniVersion") != `"1.1.0"` {
			t.Errorf("stdin of %s: %s", c, c.Stdin)
		}
		if i > 0 && !strings.Contains(member(t, c.Stdin, "prevResult"), "10.1.2.3/24") {
			t.Errorf("%s has no prevResult: %s", c, c.Stdin)
		}
	}

	again := chain.RuntimeConf{ContainerID: "c", IfName: "eth0", NetNSOverride: true}
	if err := w.Check(t.Context(), l, again); err != nil {
		t.Error(err)
	}
	wantArgumentsOfAdd(t, w.wantCalls("CHECK rec, CHECK rec-a, CHECK rec-b"))
	if _, err := w.Get(t.Context(), l, again); err != nil {
		t.Error(err)
	}
	wantArgumentsOfAdd(t, w.wantCalls("GET rec, GET rec-a, GET rec-b"))
	if err := w.Status(t.Context(), l); err != nil {
		t.Error(err)
	}
	wantNoAttachment(t, w.wantCalls("STATUS rec, STATUS rec-a, STATUS rec-b"))

	// DEL uses the list of ADD, whose drop-ins are deleted now.
	os.RemoveAll(filepath.Join(w.conf, "n"))
	if l, err = chain.LoadFile(file); err != nil {
		t.Fatal(err)
	}
	if err := w.Del(t.Context(), l, again); err != nil {
		t.Error(err)
	}
	wantArgumentsOfAdd(t, w.wantCalls("DEL rec-b, DEL rec-a, DEL rec"))
	if names := w.entries(); len(names) != 0 {
		t.Errorf("the cache has %q", names)
	}
	if err := w.Del(t.Context(), l, target("c")); err != nil {
		t.Errorf("second DEL: %v", err)
	}
	calls = w.wantCalls("DEL rec")
	if calls[0].Args != "" || member(t, calls[0].Stdin, "prevResult") != "" {
		t.Errorf("second DEL knows too much: %+v", calls[0])
	}
}

// wantArgumentsOfAdd requires the arguments, capabilities and namespace of ADD, and its result as
// prevResult.
func wantArgumentsOfAdd(t *testing.T, calls []record) {
	t.Helper()
	for _, c := range calls {
		if c.Args != "A=1;B=x=y" || c.NetNS != ownNS || !strings.Contains(member(t, c.Stdin, "prevResult"), "10.1.2.3/24") {
			t.Errorf("%s: %+v", c, c)
		}
		if c.Plugin == "rec" && member(t, c.Stdin, "runtimeConfig") != `{"portMappings":[{"hostPort":1}]}` {
			t.Errorf("%s: %s", c, c.Stdin)
		}
	}
}

// wantNoAttachment requires calls without an attachment.
func wantNoAttachment(t *testing.T, calls []record) {
	t.Helper()
	for _, c := range calls {
		if c.ID+c.NetNS+c.IfName+c.Args != "" || member(t, c.Stdin, "runtimeConfig") != "" {
			t.Errorf("%s: %+v", c, c)
		}
	}
}

func threePlugins(more string) string {
	return `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec-1"},{"type":"rec-2"` + more + `},{"type":"rec-3"}]}`
}

func TestFailedAdd(t *testing.T) {
	w := newFixture(t, "rec-1", "rec-2", "rec-3")
	l := w.parse(threePlugins(`,"doADD":"fail {\"code\":11,\"msg\":\"later\"}"`))
	_, err := w.Add(t.Context(), l, absentTarget("c"))
	wantErr(t, err, `plugin type="rec-2" name="n" failed (add): later`)
	w.wantCalls("ADD rec-1, ADD rec-2, DEL rec-2, DEL rec-1")
	if names := w.entries(); len(names) != 0 {
		t.Errorf("the cache has %q", names)
	}
	w.Retries = 1
	w.Add(t.Context(), l, absentTarget("c"))
	w.wantCalls("ADD rec-1, ADD rec-2, DEL rec-2, DEL rec-1, ADD rec-1, ADD rec-2, DEL rec-2, DEL rec-1")

	// An error of the cleanup follows in details, and the entry remains.
	l = w.parse(threePlugins(`,"doADD":"fail {\"code\":100,\"msg\":\"first\"}","doDEL":"fail {\"code\":102,\"msg\":\"second\"}"`))
	_, err = w.Add(t.Context(), l, absentTarget("c"))
	e := spec.AsError(err)
	if e.Code != 100 || !strings.Contains(e.Msg, "first") || strings.Contains(e.Msg, "second") || !strings.Contains(e.Details, "second") {
		t.Errorf("got %d %q %q", e.Code, e.Msg, e.Details)
	}
	w.records()
	if stale, err := w.GC(t.Context(), l, chain.GCOptions{DryRun: true}); err != nil || len(stale) != 1 {
		t.Errorf("intent is not seen by GC: %v, %v", stale, err)
	}
	// The next ADD first cleans up, with the recorded list.
	if _, err := w.Add(t.Context(), w.parse(threePlugins("")), absentTarget("c")); err != nil {
		t.Error(err)
	}
	w.wantCalls("DEL rec-3, DEL rec-2, DEL rec-1, ADD rec-1, ADD rec-2, ADD rec-3")
}

// DEL does not follow an ADD that was refused because of what exists: a built-in plugin has undone
// its ADD if it returned, and for an external plugin the existing interface shows it.
func TestFailedAddOfExisting(t *testing.T) {
	refuse := spec.Errorf(spec.CodeConfig, "refused")
	for name, tt := range map[string]struct {
		add    error // of the built-in rec-1; nil: rec-1 is external
		panics bool
		target chain.RuntimeConf
		want   string
	}{
		"built in":         {refuse, false, absentTarget("c"), ""},
		"panics":           {refuse, true, absentTarget("c"), "DEL"},
		"external":         {nil, false, absentTarget("c"), "ADD rec-1, DEL rec-1"},
		"external, exists": {nil, false, chain.RuntimeConf{ContainerID: "c", IfName: "lo", NetNS: ownNS, NetNSOverride: true}, "ADD rec-1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, "rec-1")
			deleted := ""
			verbs := spec.Plugin{
				Add: func(context.Context, *spec.Request) (*spec.Result, error) {
					if tt.panics {
						panic(tt.add)
					}
					return nil, tt.add
				},
				Del: func(context.Context, *spec.Request) error { deleted += "DEL"; return nil },
			}
			if tt.add != nil {
				w.local.Path = nil
				w.local.Lookup = func(string) (spec.Plugin, bool) { return verbs, true }
			}
			l := w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec-1","doADD":"fail {\"code\":7,\"msg\":\"refused\"}"}]}`)
			_, err := w.Add(t.Context(), l, tt.target)
			wantErr(t, err, "refused")
			if _, calls := w.records(); calls+deleted != tt.want {
				t.Errorf("calls: got %q, want %q", calls+deleted, tt.want)
			}
			if names := w.entries(); len(names) != 0 {
				t.Errorf("the cache has %q", names)
			}
		})
	}
}

func TestCacheFailsAdd(t *testing.T) {
	w := newFixture(t, "rec-1", "rec-2", "rec-3")
	os.WriteFile(w.Cache.Dir, nil, 0o600)
	_, err := w.Add(t.Context(), w.parse(threePlugins("")), target("c"))
	wantErr(t, err, "cache")
	w.wantCalls("") // no plugin runs without an entry
}

func TestSecondAdd(t *testing.T) {
	w := newFixture(t, "rec-1", "rec-2", "rec-3")
	l := w.parse(threePlugins(""))
	if _, err := w.Add(t.Context(), l, target("c")); err != nil {
		t.Fatal(err)
	}
	w.records()
	_, err := w.Add(t.Context(), l, target("c"))
	wantErr(t, err, "eth0 of container c is attached")
	if code(err) != spec.CodeBusy || !errors.Is(err, os.ErrExist) {
		t.Errorf("got code %d, %v, want one that is os.ErrExist", code(err), err)
	}
	w.wantCalls("")
	other := target("c")
	other.IfName = "eth1"
	if _, err := w.Add(t.Context(), l, other); err != nil {
		t.Errorf("another interface: %v", err)
	}
}

func TestFailedDel(t *testing.T) {
	w := newFixture(t, "rec-1", "rec-3")
	l := w.parse(threePlugins(""))
	err := w.Del(t.Context(), l, target("c"))
	wantErr(t, err, `"rec-2" in path `)
	wantErr(t, err, "--keep-going")
	w.wantCalls("DEL rec-3")
	w.KeepGoing = true
	err = w.Del(t.Context(), l, target("c"))
	wantErr(t, err, `plugin type="rec-2" name="n" failed (delete)`)
	w.wantCalls("DEL rec-3, DEL rec-1")
}

func TestVerbsRefuseTarget(t *testing.T) {
	w := newFixture(t, "rec")
	l := w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec"}]}`)
	bad := func(change func(*chain.RuntimeConf)) chain.RuntimeConf { tg := target("c"); change(&tg); return tg }
	tests := map[string]struct {
		target chain.RuntimeConf
		list   string
		code   int
	}{
		"ID climbs":          {target: bad(func(t *chain.RuntimeConf) { t.ContainerID = "../../x" }), code: spec.CodeEnv},
		"ID empty":           {target: bad(func(t *chain.RuntimeConf) { t.ContainerID = "" }), code: spec.CodeUnknown},
		"interface climbs":   {target: bad(func(t *chain.RuntimeConf) { t.IfName = "../../x" }), code: spec.CodeEnv},
		"interface too long": {target: bad(func(t *chain.RuntimeConf) { t.IfName = "sixteen-letters-" }), code: spec.CodeEnv},
		"network climbs":     {target: target("c"), list: `{"name":"../n","cniVersion":"1.0.0","plugins":[{"type":"rec"}]}`, code: spec.CodeConfig},
		"version is junk":    {target: target("c"), list: `{"name":"n","cniVersion":"junk","plugins":[{"type":"rec"}]}`, code: spec.CodeVersion},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l := l
			if tt.list != "" {
				l = w.parse(tt.list)
			}
			_, add := w.Add(t.Context(), l, tt.target)
			_, get := w.Get(t.Context(), l, tt.target)
			for verb, err := range map[string]error{
				"add": add, "get": get, "del": w.Del(t.Context(), l, tt.target), "check": w.Check(t.Context(), l, tt.target),
			} {
				if got := code(err); got != tt.code && got != spec.CodeEnv {
					t.Errorf("%s: got code %d (%v), want %d", verb, got, err, tt.code)
				}
			}
			w.wantCalls("")
		})
	}
	for name, tg := range map[string]chain.RuntimeConf{
		"no such namespace":    bad(func(t *chain.RuntimeConf) { t.NetNS = "/nowhere" }),
		"no namespace":         bad(func(t *chain.RuntimeConf) { t.NetNS = "/etc/passwd" }),
		"empty":                bad(func(t *chain.RuntimeConf) { t.NetNS = "" }),
		"own without override": bad(func(t *chain.RuntimeConf) { t.NetNSOverride = false }),
		"of the wrong type":    bad(func(t *chain.RuntimeConf) { t.NetNS = "/dev/null" }),
	} {
		if _, err := w.Add(t.Context(), l, tg); code(err) != spec.CodeNetNS {
			t.Errorf("%s: got %v", name, err)
		}
	}
	w.wantCalls("")
}

func TestCheckAndGet(t *testing.T) {
	w := newFixture(t, "rec")
	list := func(version, more string) *chain.List {
		return w.parse(`{"name":"n","cniVersion":"` + version + `"` + more + `}`)
	}
	const plugin = `,"plugins":[{"type":"rec"}]`
	tests := map[string]struct {
		l    *chain.List
		err  string
		code int
	}{
		"unknown":           {list("1.0.0", plugin), "not known", spec.CodeUnknown},
		"too old":           {list("0.3.1", plugin), `configuration version "0.3.1" does not support the CHECK command`, spec.CodeVersion},
		"too old, disabled": {list("0.3.1", `,"disableCheck":true`+plugin), "does not support the CHECK", spec.CodeVersion},
		"disabled":          {list("1.0.0", `,"disableCheck":"true"`+plugin), "", -1},
		"disabled in args":  {list("1.0.0", `,"plugins":[{"type":"rec","args":{"cni":{"disable-check":true}}}]`), "", -1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := w.Check(t.Context(), tt.l, target("c"))
			wantErr(t, err, tt.err)
			if code(err) != tt.code {
				t.Errorf("got code %d, want %d", code(err), tt.code)
			}
			w.wantCalls("")
		})
	}
	l := list("1.0.0", `,"plugins":[{"type":"rec","doGET":"fail {\"code\":4,\"msg\":\"unknown CNI_COMMAND: GET\"}"}]`)
	if _, err := w.Get(t.Context(), l, target("c")); err == nil {
		t.Error("GET of an unknown attachment succeeds")
	}
	if _, err := w.Add(t.Context(), l, target("c")); err != nil {
		t.Fatal(err)
	}
	res, err := w.Get(t.Context(), l, target("c"))
	if err != nil || len(res.IPs) != 1 {
		t.Errorf("GET of a plugin without GET: %+v, %v", res, err)
	}
}

// The example of the 0.4.0 specification: GET passes the result of ADD to the first plugin, and
// that plugin's result to the second.
func TestGetPassesResults(t *testing.T) {
	w := newFixture(t, "rec-bridge", "rec-tuning")
	l := w.parse(`{"name":"n","cniVersion":"0.4.0","plugins":[
		{"type":"rec-bridge","doGET":"print {\"cniVersion\":\"0.4.0\",\"ips\":[{\"version\":\"4\",\"address\":\"10.9.9.9/24\"}]}"},{"type":"rec-tuning"}]}`)
	if _, err := w.Add(t.Context(), l, target("c")); err != nil {
		t.Fatal(err)
	}
	w.records()
	if _, err := w.Get(t.Context(), l, target("c")); err != nil {
		t.Fatal(err)
	}
	calls := w.wantCalls("GET rec-bridge, GET rec-tuning")
	for i, want := range []string{"10.1.2.3/24", "10.9.9.9/24"} {
		if prev := member(t, calls[i].Stdin, "prevResult"); !strings.Contains(prev, want) {
			t.Errorf("%s has prevResult %s, want %s in it", calls[i], prev, want)
		}
	}
}

func TestStatus(t *testing.T) {
	w := newFixture(t, "rec-1", "rec-2", "rec-3")
	err := w.Status(t.Context(), w.parse(strings.Replace(threePlugins(`,"doSTATUS":"fail {\"code\":50,\"msg\":\"no\"}"`), "1.0.0", "1.1.0", 1)))
	if code(err) != spec.CodeNotReady {
		t.Errorf("got %v", err)
	}
	w.wantCalls("STATUS rec-1, STATUS rec-2")
	if err := w.Status(t.Context(), w.parse(threePlugins(""))); err != nil {
		t.Errorf("at 1.0.0: %v", err)
	}
	w.wantCalls("")
}

func TestGC(t *testing.T) {
	w := newFixture(t, "rec-1", "rec-2", "rec-3")
	l := w.parse(strings.Replace(threePlugins(`,"doGC":"fail {\"code\":100,\"msg\":\"cannot\"}"`), "1.0.0", "1.1.0", 1))
	for _, id := range []string{"keep", "drop", "gone"} {
		tg := target(id)
		tg.Args = [][2]string{{"ID", id}}
		if _, err := w.Add(t.Context(), l, tg); err != nil {
			t.Fatal(err)
		}
	}
	other := w.parse(`{"name":"other","cniVersion":"1.1.0","plugins":[{"type":"rec-1"}]}`)
	if _, err := w.Add(t.Context(), other, target("drop")); err != nil {
		t.Fatal(err)
	}
	w.records()
	valid := []spec.Attachment{{Network: "n", ContainerID: "keep", IfName: "eth0"}}
	stale, err := w.GC(t.Context(), l, chain.GCOptions{Valid: valid, DryRun: true})
	if err != nil || len(stale) != 2 {
		t.Errorf("dry run: %v, %v", stale, err)
	}
	w.wantCalls("")
	var progress []string
	w.Progress = func(done, all int) { progress = append(progress, fmt.Sprintf("%d/%d", done, all)) }
	stale, err = w.GC(t.Context(), l, chain.GCOptions{Valid: valid})
	if got := strings.Join(progress, " "); got != "0/2 1/2 2/2" {
		t.Errorf("progress: %s", got)
	}
	wantErr(t, err, `plugin type="rec-2" name="n" failed (gc): cannot`)
	if len(stale) != 2 || stale[0].ContainerID != "drop" || stale[1].ContainerID != "gone" {
		t.Errorf("deleted %v", stale)
	}
	calls := w.wantCalls("DEL rec-3, DEL rec-2, DEL rec-1, DEL rec-3, DEL rec-2, DEL rec-1, GC rec-1, GC rec-2, GC rec-3")
	if calls[0].Args != "ID=drop" || calls[3].Args != "ID=gone" {
		t.Errorf("DEL without the arguments of the ADD: %+v", calls[0])
	}
	wantNoAttachment(t, calls[6:])
	for _, key := range []string{"cni.dev/valid-attachments", "cni.dev/attachments"} {
		if got := member(t, calls[8].Stdin, key); got != `[{"containerID":"keep","ifname":"eth0"}]` {
			t.Errorf("%s is %s", key, got)
		}
	}
	if got := strings.Join(w.entries(), " "); got != "n-keep-eth0 other-drop-eth0" {
		t.Errorf("the cache has %q", got)
	}
	l.DisableGC = true
	if _, err := w.GC(t.Context(), l, chain.GCOptions{}); err != nil {
		t.Error(err)
	}
	w.wantCalls("")
}

// After a runtime was killed during ADD, its entry suffices for DEL, GC and ADD.
func TestRuntimeKilledDuringAdd(t *testing.T) {
	for _, how := range []string{"del", "gc", "add", "interrupted add"} {
		t.Run(how, func(t *testing.T) {
			w := newFixture(t, "rec")
			l := w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec"}]}`)
			w.Invoker = killedInvoker{}
			func() {
				defer func() { recover() }()
				tg := absentTarget("c")
				tg.Args = [][2]string{{"K", "V"}}
				w.Add(t.Context(), l, tg)
			}()
			w.Invoker = w.local
			bare := chain.RuntimeConf{ContainerID: "c", IfName: "absent0", NetNSOverride: true}
			if err := w.Check(t.Context(), l, bare); code(err) != spec.CodeUnknown {
				t.Errorf("CHECK of an interrupted ADD: %v", err)
			}
			var err error
			want := "DEL rec"
			switch how {
			case "del":
				err = w.Del(t.Context(), l, bare)
			case "gc":
				_, err = w.GC(t.Context(), l, chain.GCOptions{})
			case "add":
				_, err = w.Add(t.Context(), l, absentTarget("c"))
				want += ", ADD rec"
			case "interrupted add": // the context has ended
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if _, err := w.Add(ctx, l, absentTarget("c")); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
				want = ""
			}
			if err != nil {
				t.Error(err)
			}
			if calls := w.wantCalls(want); len(calls) > 0 && calls[0].Args != "K=V" {
				t.Errorf("got %+v", calls[0])
			}
		})
	}
}

// killedInvoker is an invoker in place of a process that is killed.
type killedInvoker struct{}

func (killedInvoker) Find(string) (*spec.Plugin, error) { return nil, nil }

func (killedInvoker) Known(string) *spec.Plugin { return nil }

func (killedInvoker) Invoke(context.Context, string, *spec.Request) (*spec.Result, error) {
	panic(errors.New("killed"))
}

// If a plugin of the list or its IPAM plugin is missing, no plugin runs and no entry remains.
func TestAddWithoutPlugin(t *testing.T) {
	for _, plugin := range []string{`{"type":"absent"}`, `{"type":"rec","ipam":{"type":"absent"}}`} {
		w := newFixture(t, "rec")
		l, err := chain.LoadFile(w.write("n.conflist", `{"name":"n","cniVersion":"1.1.0","plugins":[{"type":"rec"},`+plugin+`]}`))
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Add(t.Context(), l, target("c"))
		if err == nil || !strings.Contains(err.Error(), `"absent"`) || !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: got %v, want that the plugin is missing", plugin, err)
		}
		w.wantCalls("")
		if names := w.entries(); len(names) > 0 {
			t.Errorf("%s: the cache has %q", plugin, names)
		}
	}
}
