package chain_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// Errors for the ways in which a plugin may misbehave.
func TestMisbehavingPlugin(t *testing.T) {
	tests := map[string]struct {
		do, err string
		code    int
	}{
		"silent exit 1":         {"exit 1", `plugin type="rec" name="n" failed (add): netplugin failed with no error message: exit status 1`, 103},
		"stderr only":           {"fail |boo", `netplugin failed: exit status 2; stderr: boo`, 103},
		"stdout is not JSON":    {"fail boo|log", `netplugin failed (exit status 2) but its stdout "boo" is not`, 103},
		"and stderr":            {"fail boo|log", "error object; stderr: log", 103},
		"error object":          {`fail {"code":7,"msg":"m","details":"d"}|log`, `m; d; stderr: log`, 7},
		"error object, exit 0":  {`print {"code":7,"msg":"m"}`, `failed (add): m`, 7},
		"error without a code":  {`fail {"msg":"m"}`, `failed (add): m`, 103},
		"error of code 0":       {`fail {"code":0,"msg":"m"}`, `failed (add): m`, 103},
		"error of a large code": {`print {"code":70000,"msg":"m"}`, `failed (add): m`, 70000},
		"message in a result":   {`print {"cniVersion":"1.0.0","msg":"m"}`, "", -1},
		"killed":                {"kill", "signal: killed", 103},
		"no output":             {"print ", "printed no result", 103},
		"null":                  {"print null", "", -1},
		"a list":                {"print []", "result", 103},
		"empty object":          {"print {}", "", -1},
		"success with stderr":   {"stderr hello", "", -1},
		"older result":          {`print {"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.1/8"}]}`, "", -1},
		"result of the future":  {`print {"cniVersion":"2.0.0"}`, "2.0.0", 103},
		"two values":            {`print {"cniVersion":"1.0.0"}{}`, "result", 103},
		"too much":              {"big", "printed more than", 103},
		"holds stdout and ends": {"grandchild", "", -1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t, "rec")
			var stderr strings.Builder
			w.local.Stderr = &stderr
			l := w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec","doADD":` + strconv.Quote(tt.do) + `}]}`)
			res, err := w.Add(t.Context(), l, target("c"))
			wantErr(t, err, tt.err)
			if code(err) != tt.code {
				t.Errorf("got code %d, want %d", code(err), tt.code)
			}
			switch name {
			case "success with stderr":
				if stderr.String() != "rec: hello\n" {
					t.Errorf("forwarded %q", stderr.String())
				}
			case "older result":
				if b, err := res.Encode(spec.V100); err != nil || strings.Contains(string(b), "version\": \"4") {
					t.Errorf("result %s, %v", b, err)
				}
			case "holds stdout and ends":
				killGrandchild(t, w)
			}
		})
	}
}

// killGrandchild kills the process that the recorder left, which must still run.
func killGrandchild(t *testing.T, w *fixture) {
	t.Helper()
	if err := unix.Kill(grandchild(t, w), unix.SIGKILL); err != nil {
		t.Errorf("a daemon that a plugin started is gone: %v", err)
	}
}

func grandchild(t *testing.T, w *fixture) int {
	t.Helper()
	b, err := os.ReadFile(w.recordFile() + ".pid")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// A plugin that hangs for ever and its child, which holds stdout open, are killed at the deadline. The
// timeout grows until both have started.
func TestDeadlineKillsChildren(t *testing.T) {
	t.Parallel()
	const calls = "ADD rec, SLEEP rec-sleeper, DEL rec"
	w := newFixture(t, "rec")
	l := w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec","doADD":"grandchild hang"}]}`)
	w.local.Timeout = 500 * time.Millisecond
	for text := ""; !strings.HasSuffix(text, calls); w.local.Timeout *= 4 {
		if w.local.Timeout > time.Minute {
			t.Fatalf("calls: got %q, want %q", text, calls)
		}
		_, err := w.Add(t.Context(), l, absentTarget("c"))
		wantErr(t, err, "in time")
		if code(err) != spec.CodeTryAgain || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got code %d, want %d, of %v", code(err), spec.CodeTryAgain, err)
		}
		_, text = w.records()
	}
	pid := grandchild(t, w)
	kerneltest.Until(w, "the end of the plugin's child", func() bool {
		// A zombie has ended as well.
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

func TestCancel(t *testing.T) {
	t.Parallel()
	w := newFixture(t, "rec")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec","doADD":"sleep"}]}`)
	added := make(chan error, 1)
	go func() { _, err := w.Add(ctx, l, absentTarget("c")); added <- err }()
	kerneltest.Until(w, "a plugin that sleeps", func() bool {
		b, _ := os.ReadFile(w.recordFile())
		return strings.HasSuffix(string(b), "\n")
	})
	cancel()
	if err := <-added; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	w.wantCalls("ADD rec, DEL rec") // DEL runs after the context has ended
}

// A plugin that delegates to itself: ADD fails, and the DEL that follows succeeds, since nothing is
// left to release.
func TestPluginDelegatesToItself(t *testing.T) {
	t.Parallel()
	w := newFixture(t, "rec")
	l := w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec","do":"itself"}]}`)
	_, err := w.Add(t.Context(), l, absentTarget("c"))
	wantErr(t, err, "plugin rec: 10 plugins have started one another")
	if code(err) != spec.CodeConfig {
		t.Errorf("got code %d, want %d", code(err), spec.CodeConfig)
	}
	w.wantCalls(strings.Repeat("ADD rec, ", 10) + strings.Repeat("DEL rec, ", 9) + "DEL rec")
	if err := w.Del(t.Context(), l, absentTarget("c")); err != nil {
		t.Error(err)
	}
}

func TestFindPlugin(t *testing.T) {
	w := newFixture(t, "rec")
	second := filepath.Join(w.dir, "second")
	os.MkdirAll(filepath.Join(second, "dir"), 0o700)
	os.WriteFile(filepath.Join(second, "noexec"), nil, 0o600)
	os.WriteFile(filepath.Join(w.dir, "evil"), nil, 0o700)
	w.local.Path = append(w.local.Path, second)
	built := 0
	w.local.Lookup = func(name string) (spec.Plugin, bool) {
		return spec.Plugin{Del: func(context.Context, *spec.Request) error { built++; return nil }}, name == "rec" || name == "missing"
	}
	tests := map[string]struct {
		plugin, err string
		code        int
	}{
		"up and down":      {"../evil", "", spec.CodeConfig},
		"slash":            {"a/b", "", spec.CodeConfig},
		"backslash":        {`a\b`, "", spec.CodeConfig},
		"NUL":              {"a\x00b", "", spec.CodeConfig},
		"dots":             {"..", "", spec.CodeConfig},
		"empty":            {"", "", spec.CodeConfig},
		"long":             {strings.Repeat("x", 300), "", -2},
		"a directory":      {"dir", `"dir" in path [` + w.bin + " " + second + "]", spec.CodePlugin},
		"built in, gone":   {"missing", "it is built in", spec.CodePlugin},
		"not executable":   {"noexec", "permission denied", spec.CodePlugin},
		"this very binary": {"rec", "", -1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := spec.NewRequest(spec.Call{Verb: spec.Del, ContainerID: "c", IfName: "eth0"}, []byte(`{"name":"n","type":"rec"}`))
			if err != nil {
				t.Fatal(err)
			}
			_, err = w.local.Invoke(t.Context(), tt.plugin, r)
			if tt.err != "" {
				wantErr(t, err, tt.err)
			}
			if got := code(err); got != tt.code && (tt.code != -2 || err == nil) {
				t.Errorf("got code %d (%v), want %d", got, err, tt.code)
			}
		})
	}
	if built != 1 {
		t.Errorf("the built-in plugin ran %d times, want 1", built)
	}
	w.wantCalls("")
	w.local.ForceExec = true
	r, _ := spec.NewRequest(spec.Call{Verb: spec.Del, ContainerID: "c", IfName: "eth0"}, []byte(`{"name":"n","type":"rec"}`))
	if _, err := w.local.Invoke(t.Context(), "rec", r); err != nil {
		t.Error(err)
	}
	w.wantCalls("DEL rec")
	w.local.Path, w.local.ForceExec = nil, false
	_, err := w.local.Invoke(t.Context(), "other", r)
	wantErr(t, err, "CNI_PATH")
	if code(err) != spec.CodeEnv {
		t.Errorf("got code %d, want %d", code(err), spec.CodeEnv)
	}
}

func TestInProcess(t *testing.T) {
	var seen *spec.Request
	verbs := map[string]spec.Plugin{
		"panics": {Add: func(context.Context, *spec.Request) (*spec.Result, error) { panic("boo") }},
		"spoils": {Add: func(_ context.Context, r *spec.Request) (*spec.Result, error) {
			seen = r
			r.Prev.IPs = nil
			r.Prev.Interfaces[0].Name = "spoiled"
			return r.Prev, nil
		}},
	}
	local := &chain.Invoker{Lookup: func(name string) (spec.Plugin, bool) { v, ok := verbs[name]; return v, ok }}
	call := spec.Call{Verb: spec.Add, ContainerID: "c", IfName: "eth0", NetNS: ownNS}
	request := func(version string) *spec.Request {
		r, err := spec.NewRequest(call, []byte(`{"name":"n","type":"x","cniVersion":"`+version+`","prevResult":{"cniVersion":"1.0.0",
			"interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"10.1.2.3/24","interface":0}]}}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Invoker = local
		return r
	}
	_, err := local.Invoke(t.Context(), "panics", request("1.0.0"))
	if e := spec.AsError(err); e == nil || e.Code != spec.CodeInternal || !strings.Contains(e.Msg, "boo") || !strings.Contains(e.Details, "goroutine") {
		t.Errorf("got %v", err)
	}
	r := request("1.0.0")
	if _, err := local.Invoke(t.Context(), "spoils", r); err != nil {
		t.Fatal(err)
	}
	if seen == r || len(r.Prev.IPs) != 1 || r.Prev.Interfaces[0].Name != "eth0" {
		t.Errorf("the plugin changed its caller's request: %+v", r.Prev)
	}
	// Before 0.3.0 results have no interfaces, also for built-in plugins.
	verbs["spoils"] = spec.Plugin{Add: func(_ context.Context, r *spec.Request) (*spec.Result, error) {
		if len(r.Prev.Interfaces) != 0 {
			t.Errorf("at 0.2.0 a plugin sees %+v", r.Prev.Interfaces)
		}
		r.Prev.Interfaces = []spec.Interface{{Name: "eth0"}}
		return r.Prev, nil
	}}
	res, err := local.Invoke(t.Context(), "spoils", request("0.2.0"))
	if err != nil || len(res.Interfaces) != 0 || len(res.IPs) != 1 {
		t.Errorf("at 0.2.0 got %+v, %v", res, err)
	}
}

// A plugin that is open for writing (ETXTBSY) is started when it is closed.
func TestPluginOpenForWriting(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	exe, _ := os.Executable()
	b, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(w.bin, "rec"), os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	f.Write(b)
	time.AfterFunc(100*time.Millisecond, func() { f.Close() })
	l := w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec"}]}`)
	if _, err := w.Add(t.Context(), l, target("c")); err != nil {
		t.Error(err)
	}
}

// Unknown arguments cause one warning per list, and only if all plugins that get them are built in.
func TestUnknownArgs(t *testing.T) {
	w := newFixture(t, "rec", "rec-built")
	add := func(context.Context, *spec.Request) (*spec.Result, error) { return &spec.Result{}, nil }
	w.local.Lookup = func(name string) (spec.Plugin, bool) { return spec.Plugin{Add: add}, name == "rec-built" }
	const warning = `ARGS: unknown args ["HOST"] ignored`
	for plugins, want := range map[string]string{
		`{"type":"rec-built"},{"type":"rec-built"}`:                warning,
		`{"type":"rec-built"},{"type":"rec-built","key":"HOST"}`:   "",
		`{"type":"rec-built"},{"type":"rec"}`:                      "",
		`{"type":"rec"}`:                                           "",
		`{"type":"rec-built","ipam":{"type":"rec"}}`:               "",
		`{"type":"rec-built","ipam":{"type":"rec-built"},"k":"H"}`: warning,
	} {
		w.warned = nil
		tg := target("c")
		tg.Args = [][2]string{{"HOST", "a"}, {"IP", "10.0.0.1"}}
		l := w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[` + plugins + `]}`)
		if _, err := w.Add(t.Context(), l, tg); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(w.warned, "\n"); got != want {
			t.Errorf("%s: got warnings %q, want %q", plugins, got, want)
		}
		w.Del(t.Context(), l, tg)
	}
}

func TestVersions(t *testing.T) {
	w := newFixture(t, "rec", "rec-built")
	w.local.Lookup = func(name string) (spec.Plugin, bool) {
		return spec.Plugin{Facts: spec.Facts{Since: spec.V100}}, name == "rec-built"
	}
	for plugin, want := range map[string]string{"rec-built": " 1.0.0 1.1.0", "rec": w.bin + "/rec 0.4.0 1.0.0"} {
		file, versions, err := w.local.Versions(t.Context(), plugin)
		if got := file + " " + strings.Join(versions, " "); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", plugin, got, err, want)
		}
	}
}

// Answers to VERSION from the oldest plugins, and invalid ones.
func TestAnswersToVersion(t *testing.T) {
	tests := map[string]struct{ answer, want, err string }{
		"empty":        {`print {}`, "", `it has no "cniVersion"`},
		"no list":      {`print {"cniVersion":"0.4.0"}`, "", `it has no "supportedVersions"`},
		"0.2.0":        {`print {"cniVersion":"0.2.0"}`, "0.1.0 0.2.0", ""},
		"an array":     {`print []`, "", "an array"},
		"unknown":      {`fail {"code":100,"msg":"unknown CNI_COMMAND: VERSION"}`, "0.1.0", ""},
		"other errors": {`fail {"code":100,"msg":"no"}`, "", "no"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, "rec")
			w.local.Environ = append(w.local.Environ, "VERSION="+tt.answer)
			_, versions, err := w.local.Versions(t.Context(), "rec")
			wantErr(t, err, tt.err)
			if got := strings.Join(versions, " "); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// In 0.1.0 and 0.2.0 a result may have no address, and the next plugin gets it unchanged.
func TestAnswerWithoutAddress(t *testing.T) {
	for _, version := range []string{"0.1.0", "0.2.0"} {
		w := newFixture(t, "rec-1", "rec-2")
		l := w.parse(strings.ReplaceAll(`{"cniVersion":"VERSION","name":"n","plugins":[
			{"type":"rec-1","doADD":"print {\"cniVersion\":\"VERSION\",\"dns\":{\"nameservers\":[\"10.0.0.1\"]}}"},{"type":"rec-2"}]}`, "VERSION", version))
		res, err := w.Add(t.Context(), l, target("c"))
		if err != nil || len(res.IPs) != 0 || len(res.DNS.Nameservers) != 1 {
			t.Errorf("%s: got %+v, %v", version, res, err)
		}
		calls := w.wantCalls("ADD rec-1, ADD rec-2")
		if prev := member(t, calls[1].Stdin, "prevResult"); !strings.Contains(prev, "10.0.0.1") || strings.Contains(prev, `"ip`) {
			t.Errorf("%s: prevResult %s", version, prev)
		}
		if err := w.Del(t.Context(), l, target("c")); err != nil {
			t.Error(err)
		}
	}
}
