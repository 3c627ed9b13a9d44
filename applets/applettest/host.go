// Package applettest is the fixture of tests that call plugins: a host and its containers, which
// are network namespaces, and the facts about each plugin for tests over all plugins. Verbs are
// called as functions ([Host.Do]), through the serve loop ([Host.Call]) or as processes
// ([Host.Process]). It imports every plugin, so tests in a plugin's own package cannot use it.
package applettest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets"
	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/spec/spectest"
)

// A Host is a network namespace in which a test calls plugins as a runtime does, with directories
// for their state.
type Host struct {
	*testing.T
	NS      *netns.NS
	Dir     string    // leases and other state; $DIR in configurations
	Records string    // the key dataDir of Do: $DIR/records, created by plugins
	Stderr  io.Writer // of plugins; may be nil
	Here    bool      // the calling thread is in NS, and Process starts programs in it

	asked byte // last question of Say
}

// NewHost returns a host in a new namespace, with lo up.
func NewHost(t *testing.T) *Host {
	t.Helper()
	h := &Host{T: t, NS: kerneltest.NS(t), Dir: t.TempDir()}
	h.Records = filepath.Join(h.Dir, "records")
	kerneltest.LoUp(t, h.NS)
	return h
}

// A Container is a network namespace and its path.
type Container struct {
	ID, Path string
	NS       *netns.NS
}

// Container returns a container in a new namespace, with lo up.
func (h *Host) Container(id string) Container {
	h.Helper()
	ns := kerneltest.NS(h.T)
	kerneltest.LoUp(h.T, ns)
	return Container{id, kerneltest.NSPath(h.T, ns), ns}
}

// End deletes the namespaces of containers, and returns when the kernel has deleted their links. Regular files remain at
// their paths, as after a crash. No socket of the test may be open in them.
func (h *Host) End(containers ...Container) {
	h.Helper()
	var all []*netns.NS
	for _, c := range containers {
		all = append(all, c.NS)
	}
	kerneltest.Delete(h.T, func() (err error) {
		for _, c := range containers {
			err = errors.Join(err, netns.Unbind(c.Path))
		}
		return err
	}, all...)
}

// Call returns a call for eth0 of the container.
func (c Container) Call() spec.Call {
	return spec.Call{ContainerID: c.ID, IfName: "eth0", NetNS: c.Path}
}

// Expand replaces $DIR in a configuration by the host's directory.
func (h *Host) Expand(conf string) string { return strings.ReplaceAll(conf, "$DIR", h.Dir) }

// Path returns a path below the host's directory.
func (h *Host) Path(name string) string { return filepath.Join(h.Dir, name) }

// Call runs a verb for eth0 of a container like a process that a runtime starts in the host's
// namespace. Variables in env, such as CNI_ARGS=IP=10.1.0.2, add to the usual ones or override
// them. It returns the code of the error object, or 0, and stdout. It skips the test if the plugin
// is excluded from the build.
func (h *Host) Call(verb spec.Verb, plugin, conf string, c Container, env ...string) (code int, out string) {
	h.Helper()
	h.lookup(plugin)
	exit, stdout, stderr, err := h.Serve(h.Context(), verb, plugin, conf, c, env...)
	if err != nil {
		h.Fatal(err)
	}
	if h.Stderr != nil {
		io.WriteString(h.Stderr, stderr)
	}
	if exit == 0 {
		return 0, stdout
	}
	var e struct{ Code int }
	if err := json.Unmarshal([]byte(stdout), &e); err != nil {
		h.Fatalf("%s: %v: %q %s", verb, err, stdout, stderr)
	}
	return e.Code, stdout
}

// Serve is [Host.Call] that returns everything a process does. It never ends the test, so any
// goroutine may call it.
func (h *Host) Serve(ctx context.Context, verb spec.Verb, plugin, conf string, c Container, env ...string) (exit int, stdout, stderr string, err error) {
	vars := map[string]string{}
	for _, kv := range c.Env(verb, env...) {
		k, v, _ := strings.Cut(kv, "=")
		vars[k] = v
	}
	a, _ := applets.Lookup(plugin)
	var out, diag bytes.Buffer
	err = h.NS.Do(func() error {
		exit = applet.Serve(ctx, a, applet.Process{
			Applets: applets.All(),
			Getenv:  func(k string) string { return vars[k] }, Stdin: strings.NewReader(h.Expand(conf)), Stdout: &out, Stderr: &diag,
		})
		return nil
	})
	return exit, out.String(), diag.String(), err
}

func (h *Host) lookup(plugin string) *applet.Applet {
	h.Helper()
	a, ok := applets.Lookup(plugin)
	if !ok {
		h.Skipf("SKIPPED: there is no %s in this build", plugin)
	}
	return a
}

// Must is [Host.Call] that must succeed.
func (h *Host) Must(verb spec.Verb, plugin, conf string, c Container, env ...string) string {
	h.Helper()
	code, out := h.Call(verb, plugin, conf, c, env...)
	if code != 0 {
		h.Fatalf("%s of %s: %s", verb, c.ID, out)
	}
	return out
}

// Restore calls RESTORE, which no process offers; it must succeed.
func (h *Host) Restore(plugin, conf string, c Container) {
	h.Helper()
	a, call := h.lookup(plugin), c.Call()
	call.Verb = spec.Restore
	r, err := spec.NewRequest(call, []byte(h.Expand(conf)))
	h.NoError(err)
	r.Warn = func(format string, args ...any) { h.Logf("warning: "+format, args...) }
	r.Invoker = &chain.Invoker{Lookup: applets.All().Plugin}
	h.NoError(h.NS.Do(func() error {
		_, err := a.Plugin().Do(h.Context(), r)
		return err
	}))
}

// Refuse is [Host.Call] that must fail with a code and a text, and change nothing.
func (h *Host) Refuse(code int, want string, verb spec.Verb, plugin, conf string, c Container, env ...string) {
	h.Helper()
	before := h.Snapshot(c)
	got, out := h.Call(verb, plugin, conf, c, env...)
	if got != code || !strings.Contains(out, want) {
		h.Errorf("%s answers %d %s, want %d and %q", verb, got, out, code, want)
	}
	h.Same(fmt.Sprint(verb, " that fails"), before, h.Snapshot(c))
}

// Do calls a verb of a plugin as a function, in network net1. keys are the plugin's own, such as
// `"mtu":1400`, and prev is the prevResult; both may be empty.
func (h *Host) Do(verb spec.Verb, plugin string, c spec.Call, keys, prev string) (*spec.Result, error) {
	h.Helper()
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
	r.Warn = func(format string, args ...any) { h.Logf("warning: "+format, args...) }
	var res *spec.Result
	err = h.NS.Do(func() error {
		var err error
		res, err = a.Plugin().Do(context.Background(), r)
		return err
	})
	return res, err
}

// Result returns the result of a call, which must succeed.
func (h *Host) Result(res *spec.Result, err error) *spec.Result {
	h.Helper()
	h.NoError(err)
	return res
}

// NoError ends the test on an error.
func (h *Host) NoError(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

// WantError requires an error with a code and a text.
func (h *Host) WantError(err error, code int, text string) {
	h.Helper()
	spectest.WantError(h.T, err, text, code)
}

// WantCode requires an error with a code.
func (h *Host) WantCode(err error, code int) {
	h.Helper()
	if err == nil || spec.AsError(err).Code != code {
		h.Errorf("got %v, want an error with code %d", err, code)
	}
}

// Same requires two equal snapshots, and otherwise ends the test.
func (h *Host) Same(what, before, after string) {
	h.Helper()
	if after != before {
		h.Fatalf("%s: it is not as before:\n%s", what, kerneltest.Diff(before, after))
	}
}

// Snapshot returns everything that a verb may change on the host and in containers: links,
// addresses, routes, rules, qdiscs, sysctls, the ruleset, and stored files.
func (h *Host) Snapshot(containers ...Container) string {
	h.Helper()
	all := []string{kerneltest.Snapshot(h.T, h.NS)}
	for _, c := range containers {
		all = append(all, kerneltest.Snapshot(h.T, c.NS))
	}
	return strings.Join(append(all, nfttest.Ruleset(h.T, h.NS), h.Stored()), "\n--\n")
}

// Stored lists the files below Dir with their content, except programs, locks, configurations, and
// the last addresses of host-local.
func (h *Host) Stored() string {
	h.Helper()
	var list []string
	err := filepath.WalkDir(h.Dir, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"bin", "net.d", ".cnibox", "locks"}, name):
			return fs.SkipDir
		case d.IsDir(), strings.HasPrefix(name, "ballast"), name == "lock", strings.HasPrefix(name, "last_reserved_ip."):
			return nil
		}
		var content []byte
		if d.Type().IsRegular() {
			content, err = os.ReadFile(path)
		}
		list = append(list, fmt.Sprintf("%s %s %q", path, d.Type(), content))
		return err
	})
	h.NoError(err)
	return strings.Join(list, "\n") + "\n"
}

// Leases lists the files of leases and records below Dir, without locks and indexes.
func (h *Host) Leases() []string {
	files, err := filepath.Glob(filepath.Join(h.Dir, "*", "*"))
	if err != nil {
		h.Fatal(err)
	}
	return slices.DeleteFunc(files, func(f string) bool {
		base := filepath.Base(f)
		info, err := os.Lstat(f)
		return base == "lock" || strings.HasPrefix(base, "last_reserved_ip.") || err != nil || info.IsDir()
	})
}

// Files lists the files in Records.
func (h *Host) Files() string {
	entries, _ := os.ReadDir(h.Records)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// Tool is [kerneltest.Tool] on the host.
func (h *Host) Tool(stdin, name string, args ...string) string {
	h.Helper()
	return kerneltest.Tool(h.T, h.NS, stdin, name, args...)
}

// DropLink deletes a link of the host.
func (h *Host) DropLink(name string) {
	h.Helper()
	kerneltest.Brief(h, h.NS, func(c *rtnl.Conn) error { return c.DelLink(name) })
}

// Release deletes the rules for eth0 of a container in network demo: of one kind, or of all kinds.
func (h *Host) Release(c Container, kind nft.Kind) error {
	return nft.Open(h.NS).Update(h.Context(), func(x *nft.Tx) error {
		x.Release(spec.Attachment{Network: "demo", ContainerID: c.ID, IfName: "eth0"}, kind)
		return nil
	})
}

// Prev adds a result to a configuration as prevResult.
func Prev(conf, result string) string {
	return strings.TrimSuffix(strings.TrimSpace(conf), "}") + `,"prevResult":` + result + "}"
}

// WithOtherInterface adds another interface with addresses to a result, as a later plugin of a
// chain may do. The addresses are outside of the subnets in these tests.
func WithOtherInterface(result string) string {
	at := strings.Count(result, `"name":`)
	end := strings.Index(result, `],`) // end of interfaces, the first array
	result = result[:end] + `,{"name":"net9","sandbox":"/elsewhere"}` + result[end:]
	return strings.Replace(result, `"ips": [`, fmt.Sprintf(`"ips": [{"address":"192.168.7.2/24","gateway":"192.168.7.1","interface":%d},`+
		`{"address":"fd00:7::2/64","gateway":"fd00:7::1","interface":%d},`, at, at), 1)
}

// MissingNetNS returns values of CNI_NETNS that lead to no namespace.
func MissingNetNS(t *testing.T) map[string]string {
	t.Helper()
	stale := filepath.Join(t.TempDir(), "stale")
	if err := os.WriteFile(stale, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"empty": "", "gone": filepath.Join(t.TempDir(), "nothing"), "stale file": stale}
}

// WantIPAM requires a code and a text from an IPAM plugin, which opens no namespace. White space is
// ignored. The text is in the result and the warnings, or in msg and details of the error.
func WantIPAM(t *testing.T, verb spec.Verb, plugin, id, conf, args string, code int, want string) {
	t.Helper()
	got, out := AnswerIPAM(t, verb, plugin, id, conf, args)
	if got != code || !strings.Contains(strings.Join(strings.Fields(out), ""), strings.Join(strings.Fields(want), "")) {
		t.Errorf("%s %s: got %d %s, want %d %s", verb, id, got, out, code, want)
	}
}

// AnswerIPAM returns what [WantIPAM] compares.
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
