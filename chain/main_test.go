package chain_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

// TestMain runs a recorder if the test binary has another name.
func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); strings.HasPrefix(name, "rec") {
		os.Exit(recorder(name))
	}
	os.Exit(m.Run())
}

// A record is a call of a recorder.
type record struct {
	Plugin, Command, ID, NetNS, IfName, Args, Path string
	Stdin                                          string
}

func (r record) String() string { return r.Command + " " + r.Plugin }

// recorder is a plugin that appends its call to $RECORD and behaves as "do" or "do<VERB>" in its
// configuration says.
func recorder(name string) int {
	stdin, _ := io.ReadAll(os.Stdin)
	verb := os.Getenv("CNI_COMMAND")
	line, _ := json.Marshal(record{
		name, verb, os.Getenv("CNI_CONTAINERID"), os.Getenv("CNI_NETNS"), os.Getenv("CNI_IFNAME"),
		os.Getenv("CNI_ARGS"), os.Getenv("CNI_PATH"), string(stdin),
	})
	f, err := os.OpenFile(os.Getenv("RECORD"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		f.Write(append(line, '\n'))
		f.Close()
	}
	var conf map[string]json.RawMessage
	json.Unmarshal(stdin, &conf)
	do := func(key string) (s string) { json.Unmarshal(conf[key], &s); return s }
	if what := do("do" + verb); what != "" {
		return behave(what, conf)
	}
	if what := do("do"); what != "" {
		return behave(what, conf)
	}
	if verb == "ADD" || verb == "GET" {
		return behave("result", conf)
	}
	if verb == "VERSION" && os.Getenv("VERSION") != "" {
		return behave(os.Getenv("VERSION"), conf)
	}
	if verb == "VERSION" {
		fmt.Println(`{"cniVersion":"1.1.0","supportedVersions":["0.4.0","1.0.0"]}`)
	}
	return 0
}

func behave(what string, conf map[string]json.RawMessage) int {
	switch kind, text, _ := strings.Cut(what, " "); kind {
	case "result":
		if prev := conf["prevResult"]; prev != nil {
			os.Stdout.Write(prev)
			return 0
		}
		fmt.Printf(`{"cniVersion":%s,"ips":[{"address":"10.1.2.3/24","version":"4"}],"dns":{}}`, conf["cniVersion"])
	case "print":
		fmt.Print(text)
	case "stderr":
		fmt.Fprint(os.Stderr, text)
		fmt.Print(`{"cniVersion":"1.0.0"}`)
	case "exit":
		var code int
		fmt.Sscan(text, &code)
		return code
	case "fail": // out|err
		out, stderr, _ := strings.Cut(text, "|")
		fmt.Print(out)
		fmt.Fprint(os.Stderr, stderr)
		return 2
	case "log": // a file says that it has; and sleeps
		fmt.Fprint(os.Stderr, "log")
		os.WriteFile(os.Getenv("RECORD")+".logged", nil, 0o600)
		hang()
	case "sleep":
		hang()
	case "grandchild": // leaves a process that holds stdout open; text "hang": does not end itself
		r, w, err := os.Pipe()
		if err != nil {
			return 9
		}
		w.WriteString(`{"do":"sleep"}`) // remains in the pipe when this process ends
		w.Close()
		c := exec.Command("/proc/self/exe", "-test.run=^$")
		c.Args[0] = "rec-sleeper"
		c.Stdin, c.Stdout, c.Stderr = r, os.Stdout, os.Stderr
		c.Env = append(os.Environ(), "CNI_COMMAND=SLEEP")
		if err := c.Start(); err != nil {
			return 9
		}
		os.WriteFile(os.Getenv("RECORD")+".pid", fmt.Append(nil, c.Process.Pid), 0o600)
		if text == "hang" {
			hang()
		}
		fmt.Print(`{"cniVersion":"1.0.0"}`)
	case "itself": // delegates to itself
		call, _ := spec.ReadCall(os.Getenv)
		doc, _ := json.Marshal(conf)
		r, err := spec.NewRequest(call, doc)
		if err == nil {
			_, err = (&chain.Invoker{Path: r.Path, Environ: os.Environ()}).Invoke(context.Background(), filepath.Base(os.Args[0]), r)
		}
		if err != nil {
			os.Stdout.Write(spec.AsError(err).Encode(spec.V100))
			return 1
		}
	case "big":
		os.Stdout.Write(bytes.Repeat([]byte("x"), 17<<20))
	case "kill":
		p, _ := os.FindProcess(os.Getpid())
		p.Kill()
		hang()
	}
	return 0
}

// A fixture has recorders, a cache and a runner. It is not an applettest.Host, since recorders need no
// host.
type fixture struct {
	*testing.T
	*chain.Runner
	dir, bin, conf string
	local          *chain.Invoker
	warned         []string
}

const ownNS = "/proc/self/ns/net"

func newFixture(t *testing.T, plugins ...string) *fixture {
	t.Helper()
	dir := t.TempDir()
	w := &fixture{T: t, dir: dir, bin: filepath.Join(dir, "bin"), conf: filepath.Join(dir, "net.d")}
	for _, d := range []string{w.bin, w.conf} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range plugins {
		if err := os.Symlink(exe, filepath.Join(w.bin, p)); err != nil {
			t.Fatal(err)
		}
	}
	// No deadline but a test's own: how long a recorder takes is the machine's affair.
	w.local = &chain.Invoker{
		Path: []string{w.bin}, Environ: append(os.Environ(), "RECORD="+w.recordFile()), Timeout: math.MaxInt64,
	}
	w.Runner = &chain.Runner{
		Invoker: w.local, Cache: &chain.Cache{Dir: filepath.Join(dir, "cni")}, Path: w.bin,
		Warn: func(format string, args ...any) { w.warned = append(w.warned, fmt.Sprintf(format, args...)) },
	}
	return w
}

func (w *fixture) recordFile() string { return filepath.Join(w.dir, "record") }

func (w *fixture) write(name, text string) string {
	w.Helper()
	file := filepath.Join(w.conf, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
	return file
}

// records returns the new calls, and as text "VERB plugin, …".
func (w *fixture) records() (all []record, text string) {
	w.Helper()
	b, err := os.ReadFile(w.recordFile())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.Fatal(err)
	}
	os.Remove(w.recordFile())
	var lines []string
	for line := range bytes.Lines(b) {
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			w.Fatal(err)
		}
		all = append(all, r)
		lines = append(lines, r.String())
	}
	return all, strings.Join(lines, ", ")
}

// wantCalls compares the new calls.
func (w *fixture) wantCalls(want string) []record {
	w.Helper()
	all, got := w.records()
	if got != want {
		w.Errorf("calls: got %q, want %q", got, want)
	}
	return all
}

func (w *fixture) parse(doc string) *chain.List {
	w.Helper()
	l, err := chain.Parse([]byte(doc))
	if err != nil {
		w.Fatal(err)
	}
	return l
}

// target returns container id with eth0 in the test's own namespace.
func target(id string) chain.RuntimeConf {
	return chain.RuntimeConf{ContainerID: id, IfName: "eth0", NetNS: ownNS, NetNSOverride: true}
}

// absentTarget is [target] with an interface that does not exist.
func absentTarget(id string) chain.RuntimeConf {
	t := target(id)
	t.IfName = "absent0"
	return t
}

func (w *fixture) entries() []string {
	w.Helper()
	list, err := os.ReadDir(filepath.Join(w.Cache.Dir, "results"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func wantErr(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("got error %v, want none", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("got error %v, want one with %q", err, want)
	}
}

func code(err error) int {
	if err == nil {
		return -1
	}
	return spec.AsError(err).Code
}

// member returns a member of a JSON object as raw text.
func member(t *testing.T, doc, key string) string {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal([]byte(doc), &m); err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	return string(m[key])
}

// hang never returns: who does not kill it waits until the test run ends.
func hang() {
	for {
		time.Sleep(time.Hour)
	}
}
