package flannel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/spec/spectest"
)

// A flannelNode is a node with flannel, and also the delegate.
type flannelNode struct {
	t     *testing.T
	dir   string   // dataDir
	calls []string // to the delegate: verb, type, container, interface
	last  *spec.Request
	fail  map[spec.Verb]error
	warns []string

	external bool // the delegates are external plugins
	late     bool // they fail in what they leave for the end
}

func newFlannelNode(t *testing.T) *flannelNode {
	b := &flannelNode{t: t, dir: filepath.Join(t.TempDir(), "flannel"), fail: map[spec.Verb]error{}}
	b.env(subnetEnv4)
	return b
}

// env writes subnet.env; with an empty text it deletes the file.
func (b *flannelNode) env(text string) {
	b.t.Helper()
	path := filepath.Join(filepath.Dir(b.dir), "subnet.env")
	os.Remove(path)
	if text == "" {
		return
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// Invoke records a call to the delegate.
func (b *flannelNode) Invoke(_ context.Context, plugin string, r *spec.Request) (*spec.Result, error) {
	b.calls = append(b.calls, fmt.Sprint(r.Call.Verb, " ", plugin, " ", r.ContainerID, " ", r.IfName))
	b.last = r
	if s := r.Call.Session; b.late && s.Leaves() {
		s.Fail(b.fail[r.Call.Verb])
		return nil, nil
	}
	return &spec.Result{}, b.fail[r.Call.Verb]
}

// Find finds every plugin except "nowhere".
func (b *flannelNode) Find(plugin string) (*spec.Plugin, error) {
	if plugin == "nowhere" {
		return nil, spec.Errorf(spec.CodePlugin, "no plugin %q", plugin)
	}
	if b.external {
		return nil, nil
	}
	return &spec.Plugin{Facts: spec.Facts{IPAM: true}}, nil
}

func (b *flannelNode) Known(string) *spec.Plugin { return nil }

// call runs a verb for an interface of a container, with keys of the configuration.
func (b *flannelNode) call(v spec.Verb, network, id, ifName, keys string) error {
	b.t.Helper()
	b.calls, b.warns = nil, nil
	conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"type":"flannel","dataDir":%q,"subnetFile":%q%s}`,
		network, b.dir, filepath.Join(filepath.Dir(b.dir), "subnet.env"), keys)
	r, err := spec.NewRequest(spec.Call{Verb: v, ContainerID: id, IfName: ifName, NetNS: "/ns"}, []byte(conf))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Invoker = b
	r.Warn = func(format string, args ...any) { b.warns = append(b.warns, fmt.Sprintf(format, args...)) }
	a := &Applet
	_, err = a.Plugin().Do(b.t.Context(), r)
	return err
}

// want compares the calls to the delegate and the state files after a verb, which must succeed.
func (b *flannelNode) want(err error, calls, files string) {
	b.t.Helper()
	if err != nil {
		b.t.Errorf("got error %v", err)
	}
	if got := strings.Join(b.calls, ", "); got != calls {
		b.t.Errorf("the delegate was asked %q, want %q", got, calls)
	}
	if got := b.files(); got != files {
		b.t.Errorf("there are the files %q, want %q", got, files)
	}
}

func (b *flannelNode) files() string {
	entries, _ := os.ReadDir(b.dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// writeState writes a state file, as the reference does.
func (b *flannelNode) writeState(file, text string) {
	b.t.Helper()
	err := os.MkdirAll(b.dir, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(b.dir, file), []byte(text), 0o600)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func key(network, id, ifName string) string {
	return recordName(spec.Attachment{Network: network, ContainerID: id, IfName: ifName})
}

// DEL passes the configuration of ADD to the delegate, even if flannel's own has changed. Only root
// can read it.
func TestFlannelState(t *testing.T) {
	b := newFlannelNode(t)
	file := key("net", "c", "eth0")
	b.want(b.call(spec.Add, "net", "c", "eth0", `,"delegate":{"hairpinMode":true}`), "ADD bridge c eth0", file)
	want := string(b.last.Conf())
	if len(b.warns) > 0 {
		t.Errorf("stderr: %q", b.warns)
	}
	for _, name := range []string{"", file} {
		st, err := os.Stat(filepath.Join(b.dir, name))
		if err != nil || st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%q: %v, %v", name, st.Mode(), err)
		}
	}
	var saved map[string]any
	if raw, err := os.ReadFile(filepath.Join(b.dir, file)); err != nil || json.Unmarshal(raw, &saved) != nil || saved["type"] != "bridge" || saved["name"] != "net" {
		t.Errorf("saved %v, %v", saved, err)
	}
	b.env("")
	b.want(b.call(spec.Del, "net", "c", "eth0", `,"delegate":{"type":"ptp"},"runtimeConfig":{"x":1}`), "DEL bridge c eth0", "")
	if got := string(b.last.Conf()); got != want {
		t.Errorf("DEL got %s, want %s", got, want)
	}
	b.env(subnetEnv4)
	if err := b.call(spec.Add, "net", "c", "eth0", ""); err != nil {
		t.Fatal(err)
	}
	b.want(b.call(spec.Del, "net", "c", "eth0", `,"delegate":5`), "DEL bridge c eth0", "")
}

// The state remains until DEL of the delegate, and what that leaves for the end, has succeeded. The reference deletes it before, so
// that a repeated DEL does nothing.
func TestFlannelFailedDelKeepsState(t *testing.T) {
	for _, late := range []bool{false, true} {
		b := newFlannelNode(t)
		b.late = late
		files := key("net", "c", "eth0")
		b.want(b.call(spec.Add, "net", "c", "eth0", ""), "ADD bridge c eth0", files)
		b.fail[spec.Del] = spec.Errorf(spec.CodeBusy, "no")
		spectest.WantError(t, b.call(spec.Del, "net", "c", "eth0", ""), "flannel: delegate bridge: no", spec.CodeBusy)
		b.want(nil, "DEL bridge c eth0", files)
		delete(b.fail, spec.Del)
		b.want(b.call(spec.Del, "net", "c", "eth0", ""), "DEL bridge c eth0", "")
	}
}

// Each network and interface of a container has its own state; in the reference they overwrite each
// other's.
func TestFlannelStatePerAttachment(t *testing.T) {
	b := newFlannelNode(t)
	one, two, three := key("net", "c", "eth0"), key("net", "c", "eth1"), key("other", "c", "eth0")
	for _, a := range []struct{ network, ifName, kind string }{{"net", "eth0", "bridge"}, {"net", "eth1", "ptp"}, {"other", "eth0", "ipvlan"}} {
		if err := b.call(spec.Add, a.network, "c", a.ifName, `,"delegate":{"type":"`+a.kind+`"}`); err != nil {
			t.Fatal(err)
		}
	}
	all := []string{one, two, three}
	slices.Sort(all)
	b.want(nil, "ADD ipvlan c eth0", strings.Join(all, " "))
	b.want(b.call(spec.Del, "net", "c", "eth1", ""), "DEL ptp c eth1", strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == two }), " "))
	b.want(b.call(spec.Del, "net", "c", "eth0", ""), "DEL bridge c eth0", three)
	b.want(b.call(spec.Del, "other", "c", "eth0", ""), "DEL ipvlan c eth0", "")
}

// The reference's state file is named after the container and has no owner.
func TestFlannelReferenceState(t *testing.T) {
	const conf = `{"cniVersion":"0.3.1","name":"net","type":"ptp","ipam":{"type":"host-local"}}`
	b := newFlannelNode(t)
	b.writeState("c", conf)
	b.want(b.call(spec.Del, "other", "c", "eth0", ""), "DEL bridge c eth0", "c") // of another network
	b.want(b.call(spec.Check, "net", "c", "eth0", `,"prevResult":{"ips":[{"version":"4","address":"10.1.0.2/24"}]}`), "CHECK ptp c eth0", "c")
	b.want(b.call(spec.Del, "net", "c", "eth1", ""), "DEL ptp c eth1", "")
	b.writeState("c", conf)
	// A second ADD that fails keeps the file.
	b.fail[spec.Add] = spec.Errorf(spec.CodeInternal, "exists")
	spectest.WantError(t, b.call(spec.Add, "net", "c", "eth0", ""), "exists", spec.CodeInternal)
	b.want(nil, "ADD bridge c eth0", "c")
}

// Earlier versions also linked the file under the reference's name.
func TestFlannelStateOfEarlierVersion(t *testing.T) {
	b := newFlannelNode(t)
	file := key("net", "c", "eth0")
	for _, release := range []func() error{
		func() error { return b.call(spec.Del, "net", "c", "eth0", "") },
		func() error { return b.call(spec.GC, "net", "", "", `,"cni.dev/valid-attachments":[],"delegate":5`) },
	} {
		b.writeState(file, `{"cniVersion":"0.3.1","name":"net","type":"ptp","ipam":{"type":"host-local"},
			"cnibox":{"network":"net","containerID":"c","ifName":"eth0"}}`)
		if err := os.Link(filepath.Join(b.dir, file), filepath.Join(b.dir, "c")); err != nil {
			t.Fatal(err)
		}
		b.want(b.call(spec.Del, "net", "c", "eth1", ""), "DEL bridge c eth1", "c "+file) // of another interface
		b.want(release(), "DEL ptp c eth0", "")
	}
}

func TestFlannelBrokenState(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "cut": `{"name":"net","ty`, "a list": "[]", "a name with a path": `{"name":"net","type":"../bridge"}`, "deep": `{"name":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "}",
	} {
		t.Run(name, func(t *testing.T) {
			b := newFlannelNode(t)
			b.writeState("c", text)
			b.want(b.call(spec.Del, "net", "c", "eth0", ""), "DEL bridge c eth0", "c~broken")
			if len(b.warns) == 0 || !strings.Contains(b.warns[0], "state file "+filepath.Join(b.dir, "c")) {
				t.Errorf("warnings: %q", b.warns)
			}
			b.want(b.call(spec.GC, "net", "", "", `,"cni.dev/valid-attachments":[]`), "GC bridge  ", "c~broken")
		})
	}
	b := newFlannelNode(t)
	b.writeState("x", "")
	if err := os.Symlink("/etc/passwd", filepath.Join(b.dir, "c")); err != nil {
		t.Fatal(err)
	}
	b.want(b.call(spec.Del, "net", "c", "eth0", ""), "DEL bridge c eth0", "c~broken x")
}

// Without a state file DEL calls the delegate with the name and type; an incomplete configuration
// is not an error.
func TestFlannelDelUnknown(t *testing.T) {
	b := newFlannelNode(t)
	b.want(b.call(spec.Del, "net", "c", "eth0", ""), "DEL bridge c eth0", "")
	b.env("")
	b.fail[spec.Del] = errors.New("no such plugin")
	b.want(b.call(spec.Del, "net", "c", "eth0", ""), "DEL bridge c eth0", "")
	if len(b.warns) != 1 || !strings.Contains(b.warns[0], "no such plugin") {
		t.Errorf("warnings: %q", b.warns)
	}
	b.want(b.call(spec.Del, "net", "c", "eth0", `,"delegate":{"name":"x"}`), "", "")
}

// A failed ADD of an external delegate is followed by its DEL, and leaves nothing.
func TestFlannelAddFails(t *testing.T) {
	b := newFlannelNode(t)
	b.external = true
	b.fail[spec.Add] = spec.Errorf(spec.CodeExhausted, "no address")
	spectest.WantError(t, b.call(spec.Add, "net", "c", "eth0", ""), "flannel: delegate bridge: no address", spec.CodeExhausted)
	b.want(nil, "ADD bridge c eth0, DEL bridge c eth0", "")

	// What could not be released is left for the next DEL.
	b.fail[spec.Del] = errors.New("stuck")
	err := b.call(spec.Add, "net", "c", "eth0", "")
	spectest.WantError(t, err, "no address; undo delegate: flannel: delegate bridge: stuck", spec.CodeExhausted)
	b.want(nil, "ADD bridge c eth0, DEL bridge c eth0", key("net", "c", "eth0"))
	delete(b.fail, spec.Del)
	b.want(b.call(spec.Del, "net", "c", "eth0", ""), "DEL bridge c eth0", "")

	// A built-in delegate undoes its ADD itself. A DEL could release what an earlier ADD made.
	b.external = false
	b.fail[spec.Add] = spec.Errorf(spec.CodeBusy, "exists")
	spectest.WantError(t, b.call(spec.Add, "net", "c", "eth0", ""), "exists", spec.CodeBusy)
	b.want(nil, "ADD bridge c eth0", "")
}

// If the delegate is missing, ADD leaves no state file.
func TestFlannelAddWithoutDelegate(t *testing.T) {
	b := newFlannelNode(t)
	err := b.call(spec.Add, "net", "c", "eth0", `,"delegate":{"type":"nowhere"}`)
	spectest.WantError(t, err, `delegate: no plugin "nowhere"`, spec.CodePlugin)
	b.want(nil, "", "")
}

// A failed second ADD keeps what the first one made.
func TestFlannelAddTwice(t *testing.T) {
	b := newFlannelNode(t)
	files := key("net", "c", "eth0")
	b.want(b.call(spec.Add, "net", "c", "eth0", `,"delegate":{"type":"ptp"}`), "ADD ptp c eth0", files)
	b.fail[spec.Add] = spec.Errorf(spec.CodeInternal, "exists")
	spectest.WantError(t, b.call(spec.Add, "net", "c", "eth0", ""), "exists", spec.CodeInternal)
	b.want(nil, "ADD bridge c eth0", files)
	b.want(b.call(spec.Del, "net", "c", "eth0", ""), "DEL ptp c eth0", "")
}

func TestFlannelWithoutSubnetEnv(t *testing.T) {
	b := newFlannelNode(t)
	for text, want := range map[string]string{"": "no such", "FLANNEL_MTU=1\n": "is missing FLANNEL_NETWORK", "FLANNEL_MTU=x": "has a bad FLANNEL_MTU"} {
		b.env(text)
		for verb, code := range map[spec.Verb]int{spec.Add: spec.CodeTryAgain, spec.Status: spec.CodeNotReady} {
			err := b.call(verb, "net", "c", "eth0", "")
			spectest.WantError(t, err, "'subnet.env'", code)
			spectest.WantError(t, err, want, code)
			spectest.WantError(t, err, "flannel pod", code)
			b.want(nil, "", "")
		}
	}
}

func TestFlannelStatus(t *testing.T) {
	b := newFlannelNode(t)
	b.want(b.call(spec.Status, "net", "", "", ""), "STATUS bridge  ", "")
	for code, want := range map[int]int{spec.CodePlugin: 50, spec.CodeEnv: 50, spec.CodeNotReady: 50, spec.CodeLimited: 51} {
		b.fail[spec.Status] = spec.Errorf(code, "no")
		spectest.WantError(t, b.call(spec.Status, "net", "", "", ""), "flannel: delegate bridge: no", want)
	}
	b.writeState("x", "")
	spectest.WantError(t, b.call(spec.Status, "net", "", "", `,"dataDir":"`+filepath.Join(b.dir, "x")+`"`), "not a directory", spec.CodeNotReady)
}

// CHECK and GET call the delegate of ADD, with prevResult and the runtimeConfig of the call.
func TestFlannelCheck(t *testing.T) {
	const prev = `,"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.244.3.2/24"}]}`
	b := newFlannelNode(t)
	spectest.WantError(t, b.call(spec.Check, "net", "c", "eth0", prev), "there is no state file of net/c/eth0", spec.CodeCheck)
	spectest.WantError(t, b.call(spec.Get, "net", "c", "eth0", ""), "no attachment net/c/eth0 is known", spec.CodeUnknown)
	if err := b.call(spec.Add, "net", "c", "eth0", `,"delegate":{"type":"ptp"},"runtimeConfig":{"mac":"a"}`); err != nil {
		t.Fatal(err)
	}
	files := b.files()
	b.env("")
	b.want(b.call(spec.Check, "net", "c", "eth0", prev+`,"runtimeConfig":{"mac":"b"}`), "CHECK ptp c eth0", files)
	if b.last.Prev == nil || len(b.last.Prev.IPs) != 1 || !strings.Contains(string(b.last.Conf()), `"runtimeConfig":{"mac":"b"}`) {
		t.Errorf("the delegate got %s, prevResult %v", b.last.Conf(), b.last.Prev)
	}
	b.want(b.call(spec.Get, "net", "c", "eth0", ""), "GET ptp c eth0", files)
	b.want(b.call(spec.Get, "net", "c", "eth0", prev), "GET ptp c eth0", files)
	b.fail[spec.Check] = spec.Errorf(spec.CodeCheck, "gone")
	spectest.WantError(t, b.call(spec.Check, "net", "c", "eth0", prev), "gone", spec.CodeCheck)
}

func TestFlannelGC(t *testing.T) {
	b := newFlannelNode(t)
	for _, a := range [][3]string{{"net", "a", "eth0"}, {"net", "a", "eth1"}, {"net", "b", "eth0"}, {"other", "c", "eth0"}} {
		if err := b.call(spec.Add, a[0], a[1], a[2], ""); err != nil {
			t.Fatal(err)
		}
	}
	const conf = `{"name":"net","type":"ptp","ipam":{}}`
	b.writeState("old", conf)
	b.writeState("live", conf)
	b.writeState("junk", "{")
	const valid = `,"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"},{"containerID":"live","ifname":"net1"}]`
	err := b.call(spec.GC, "net", "", "", valid)
	left := []string{"junk", "live", key("net", "a", "eth0"), key("other", "c", "eth0")}
	slices.Sort(left)
	slices.Sort(b.calls)
	b.want(err, "DEL bridge a eth1, DEL bridge b eth0, DEL ptp old eth0, GC bridge  ", strings.Join(left, " "))

	b.fail[spec.Del] = errors.New("stuck")
	b.env("")
	err = b.call(spec.GC, "net", "", "", `,"cni.dev/valid-attachments":[]`)
	spectest.WantError(t, err, "net/a/eth0: flannel: delegate bridge: stuck", spec.CodeInternal)
	spectest.WantError(t, err, "net/live/eth0: flannel: delegate ptp: stuck", spec.CodeInternal)
	if got := b.files(); got != strings.Join(left, " ") {
		t.Errorf("there are %q", got)
	}
}
