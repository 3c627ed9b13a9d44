// Package applettest is the fixture of tests that call plugins: a host and its containers,
// which are namespaces of the kernel, and what tests over all plugins know of each one. It
// imports every plugin, so tests within a plugin's package cannot use it.
package applettest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cnibox/applets"
	"cnibox/applets/applet"
	"cnibox/internal/kerneltest"
	"cnibox/internal/netns"
	"cnibox/internal/nfttest"
	"cnibox/nft"
	"cnibox/spec"
	"cnibox/spec/spectest"
)

// A Host is a network namespace with directories for what plugins store, in which a test
// calls plugins as a runtime does.
type Host struct {
	T       *testing.T
	NS      *netns.NS
	Dir     string    // of leases: $DIR in configurations
	Records string    // the key dataDir in what Do calls: $DIR/records, which plugins create
	Stderr  io.Writer // gets what plugins write to stderr; may be nil
}

// NewHost returns a host in a namespace of its own, whose lo is up.
func NewHost(t *testing.T) *Host {
	t.Helper()
	h := &Host{T: t, NS: kerneltest.NS(t), Dir: t.TempDir()}
	h.Records = filepath.Join(h.Dir, "records")
	kerneltest.LoUp(t, h.NS)
	return h
}

// A Container is a network namespace, and the path to it that plugins get.
type Container struct {
	ID, Path string
	NS       *netns.NS
}

// Container returns a container in a namespace of its own, whose lo is up.
func (h *Host) Container(id string) Container {
	h.T.Helper()
	ns := kerneltest.NS(h.T)
	kerneltest.LoUp(h.T, ns)
	return Container{id, kerneltest.NSPath(h.T, ns), ns}
}

// Call is about eth0 of the container.
func (c Container) Call() spec.Call {
	return spec.Call{ContainerID: c.ID, IfName: "eth0", NetNS: c.Path}
}

// Expand replaces $DIR in a configuration by the host's directory.
func (h *Host) Expand(conf string) string { return strings.ReplaceAll(conf, "$DIR", h.Dir) }

// Call runs a verb for eth0 of a container as a process that a runtime starts in the host's
// namespace; env are variables beside or instead of the usual ones, as CNI_ARGS=IP=10.1.0.2.
// It returns the code of the error object, or 0, and what is written to stdout. A plugin that
// was left out of the build skips the test.
func (h *Host) Call(verb spec.Verb, plugin, conf string, c Container, env ...string) (code int, out string) {
	h.T.Helper()
	return h.CallContext(h.T.Context(), verb, plugin, conf, c, env...)
}

// CallContext is [Host.Call] with a context.
func (h *Host) CallContext(ctx context.Context, verb spec.Verb, plugin, conf string, c Container, env ...string) (code int, out string) {
	h.T.Helper()
	a := h.lookup(plugin)
	vars := map[string]string{"CNI_COMMAND": string(verb), "CNI_CONTAINERID": c.ID, "CNI_IFNAME": "eth0", "CNI_NETNS": c.Path}
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		vars[k] = v
	}
	var stdout, stderr bytes.Buffer
	exit := 0
	err := h.NS.Do(func() error {
		exit = applet.Serve(ctx, a, applet.Process{
			Applets: applets.All(),
			Getenv:  func(k string) string { return vars[k] }, Stdin: strings.NewReader(h.Expand(conf)), Stdout: &stdout, Stderr: &stderr,
		})
		return nil
	})
	if err != nil {
		h.T.Fatal(err)
	}
	if h.Stderr != nil {
		h.Stderr.Write(stderr.Bytes())
	}
	if exit == 0 {
		return 0, stdout.String()
	}
	var e struct{ Code int }
	if err := json.Unmarshal(stdout.Bytes(), &e); err != nil {
		h.T.Fatalf("%s: %v: %q %s", verb, err, stdout.String(), stderr.String())
	}
	return e.Code, stdout.String()
}

func (h *Host) lookup(plugin string) *applet.Applet {
	h.T.Helper()
	a, ok := applets.Lookup(plugin)
	if !ok {
		h.T.Skipf("SKIPPED: there is no %s in this build", plugin)
	}
	return a
}

// Must is [Host.Call] for what has to succeed.
func (h *Host) Must(verb spec.Verb, plugin, conf string, c Container, env ...string) string {
	h.T.Helper()
	code, out := h.Call(verb, plugin, conf, c, env...)
	if code != 0 {
		h.T.Fatalf("%s of %s: %s", verb, c.ID, out)
	}
	return out
}

// Refuse is [Host.Call] for what has to fail with a code and a text, and to change nothing.
func (h *Host) Refuse(code int, want string, verb spec.Verb, plugin, conf string, c Container, env ...string) {
	h.T.Helper()
	before := h.Snapshot(c)
	got, out := h.Call(verb, plugin, conf, c, env...)
	if got != code || !strings.Contains(out, want) {
		h.T.Errorf("%s answers %d %s, want %d and %q", verb, got, out, code, want)
	}
	h.Same(fmt.Sprint(verb, " that fails"), before, h.Snapshot(c))
}

// Do runs a verb of a plugin without the serve loop, in network net1. keys are the plugin's
// own, as `"mtu":1400`, and prev is the prevResult; both may be empty.
func (h *Host) Do(verb spec.Verb, plugin string, c spec.Call, keys, prev string) (*spec.Result, error) {
	h.T.Helper()
	a := h.lookup(plugin)
	if keys != "" {
		keys = "," + keys
	}
	if prev != "" {
		keys += `,"prevResult":` + prev
	}
	c.Verb = verb
	r, err := spec.NewRequest(c, fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net1","type":%q,"dataDir":%q%s}`, plugin, h.Records, keys))
	if err != nil {
		return nil, err
	}
	r.Warn = func(format string, args ...any) { h.T.Logf("warning: "+format, args...) }
	var res *spec.Result
	err = h.NS.Do(func() error {
		var err error
		res, err = a.Verbs().Do(context.Background(), r)
		return err
	})
	return res, err
}

// Result returns the result of a call that has to succeed.
func (h *Host) Result(res *spec.Result, err error) *spec.Result {
	h.T.Helper()
	h.NoError(err)
	return res
}

// NoError ends the test if there is an error.
func (h *Host) NoError(err error) {
	h.T.Helper()
	if err != nil {
		h.T.Fatal(err)
	}
}

// WantError requires an error with the code and the text.
func (h *Host) WantError(err error, code int, text string) {
	h.T.Helper()
	spectest.WantError(h.T, err, text, code)
}

// Same requires that two snapshots are equal.
func (h *Host) Same(what, before, after string) {
	h.T.Helper()
	if after != before {
		h.T.Errorf("%s changed:\n%s", what, kerneltest.Diff(before, after))
	}
}

// Snapshot is all that a verb may change on the host and in containers: links, addresses,
// routes, settings, rule set, leases and records.
func (h *Host) Snapshot(containers ...Container) string {
	h.T.Helper()
	all := []string{kerneltest.Snapshot(h.T, h.NS)}
	for _, c := range containers {
		all = append(all, kerneltest.Snapshot(h.T, c.NS))
	}
	return strings.Join(append(all, nfttest.Ruleset(h.T, h.NS), strings.Join(h.Leases(), "\n"), h.Files()), "\n--\n")
}

// Leases lists the files of leases and records below Dir, without locks and indexes.
func (h *Host) Leases() []string {
	files, err := filepath.Glob(filepath.Join(h.Dir, "*", "*"))
	if err != nil {
		h.T.Fatal(err)
	}
	return slices.DeleteFunc(files, func(f string) bool {
		base := filepath.Base(f)
		info, err := os.Lstat(f)
		return base == "lock" || strings.HasPrefix(base, "last_reserved_ip.") || err != nil || info.IsDir()
	})
}

// Files lists what is in Records.
func (h *Host) Files() string {
	entries, _ := os.ReadDir(h.Records)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// Release deletes the rules of eth0 of a container in network demo, of a kind or of all.
func (h *Host) Release(c Container, kind nft.Kind) error {
	return nft.Open(h.NS).Update(h.T.Context(), func(x *nft.Tx) error {
		x.Release(spec.Attachment{Network: "demo", ContainerID: c.ID, IfName: "eth0"}, kind)
		return nil
	})
}

// Prev enters a result into a configuration as prevResult.
func Prev(conf, result string) string {
	return strings.TrimSuffix(strings.TrimSpace(conf), "}") + `,"prevResult":` + result + "}"
}

// WithOtherInterface enters another interface and its addresses, of networks that no plugin
// here has given, into a result, as a later plugin of a chain may.
func WithOtherInterface(result string) string {
	at := strings.Count(result, `"name":`)
	end := strings.Index(result, `],`) // of interfaces, which come first
	result = result[:end] + `,{"name":"net9","sandbox":"/elsewhere"}` + result[end:]
	return strings.Replace(result, `"ips": [`, fmt.Sprintf(`"ips": [{"address":"192.168.7.2/24","gateway":"192.168.7.1","interface":%d},`+
		`{"address":"fd00:7::2/64","gateway":"fd00:7::1","interface":%d},`, at, at), 1)
}

// MissingNetNS are values of CNI_NETNS that lead to no namespace.
func MissingNetNS(t *testing.T) map[string]string {
	t.Helper()
	stale := filepath.Join(t.TempDir(), "stale")
	if err := os.WriteFile(stale, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"empty": "", "gone": filepath.Join(t.TempDir(), "nothing"), "stale file": stale}
}

// WantIPAM requires of an address plugin, which enters no namespace, a code and a part of what
// it answers, white space aside: the result and warnings, or message and details of the error.
func WantIPAM(t *testing.T, verb spec.Verb, plugin, id, conf, args string, code int, want string) {
	t.Helper()
	got, out := AnswerIPAM(t, verb, plugin, id, conf, args)
	if got != code || !strings.Contains(strings.Join(strings.Fields(out), ""), strings.Join(strings.Fields(want), "")) {
		t.Errorf("%s %s: got %d %s, want %d %s", verb, id, got, out, code, want)
	}
}

// AnswerIPAM is the answer that [WantIPAM] compares.
func AnswerIPAM(t *testing.T, verb spec.Verb, plugin, id, conf, args string) (code int, text string) {
	t.Helper()
	var stderr bytes.Buffer
	h := &Host{T: t, NS: netns.Host(), Dir: "$DIR", Stderr: &stderr}
	code, out := h.Call(verb, plugin, conf, Container{ID: id, Path: os.DevNull}, "CNI_ARGS="+args)
	if code == 0 {
		return 0, out + stderr.String()
	}
	var e struct{ Msg, Details string }
	if err := json.Unmarshal([]byte(out), &e); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return code, e.Msg + "; " + e.Details
}
