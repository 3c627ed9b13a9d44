package chained_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// modifiers are plugins that change another plugin's interface.
var modifiers = map[string]struct {
	keys, routes string
	change       string // text in the state between ADD and DEL
}{
	"tuning":    {`"mac":"02:00:00:00:00:aa","promisc":true,"mtu":1400`, "[]", "02:00:00:00:00:aa"},
	"bandwidth": {applettest.BothLimits, "[]", "tbf"},
	"sbr":       {"", applettest.VethRoutes, "Src:10.9.0.2/32"},
	"vrf":       {`"vrfname":"blue"`, applettest.VethRoutes, "blue"},
}

// A modifier is such a plugin, with a veth pair.
type modifier struct {
	*applettest.Veth
	plugin, keys, routes, change string
}

func newModifier(t *testing.T, plugin string) *modifier {
	t.Helper()
	applettest.Plugins[plugin].Need(t)
	of := modifiers[plugin]
	w := &modifier{applettest.NewVeth(t), plugin, of.keys, of.routes, of.change}
	w.AddRoutes()
	return w
}

// eachModifier runs a test for each plugin, without and with a label on the host-side veth, as
// plugins that make pairs set it.
func eachModifier(t *testing.T, test func(t *testing.T, w *modifier, labelled bool)) {
	for plugin := range modifiers {
		for _, labelled := range []bool{false, true} {
			t.Run(fmt.Sprint(plugin, " labelled ", labelled), func(t *testing.T) {
				w := newModifier(t, plugin)
				if labelled {
					a := spec.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}
					w.NoError(w.HostConn.SetLink(w.Host0.Index, rtnl.LinkChange{Alias: new(a.Label(255))}))
				}
				test(t, w, labelled)
			})
		}
	}
}

// must runs a verb, which must succeed, with more keys.
func (w *modifier) must(verb spec.Verb, c spec.Call, more, prev string) {
	w.Helper()
	keys := strings.Trim(more+","+w.keys, ",")
	w.Result(w.Do(verb, w.plugin, c, keys, prev))
}

func (w *modifier) isChanged() bool { return strings.Contains(w.State(), w.change) }

func (w *modifier) wantUnchanged() {
	w.Helper()
	if w.isChanged() || w.Files() != "" {
		w.Errorf("DEL left files %q and\n%s", w.Files(), w.State())
	}
}

// prevWithMAC returns a result for the peer of another pair with the same addresses, as of a deleted
// container whose addresses were leased again.
func (w *modifier) prevWithMAC(host, mac string) string {
	return strings.NewReplacer(`"host0"`, fmt.Sprintf("%q", host), `"eth0","sandbox"`, fmt.Sprintf(`"eth0","mac":%q,"sandbox"`, mac)).Replace(w.PrevResult(w.routes))
}

// delOthers runs DEL of other attachments whose path leads to the interface of net1/c1/eth0, and GC
// of another network. They may change nothing.
func (w *modifier) delOthers() {
	w.Helper()
	before, files := w.State(), w.Files()
	other := w.Cont.Call()
	other.ContainerID = "c2"
	for name, del := range map[string]func(){
		"DEL of another network": func() { w.must(spec.Del, w.Cont.Call(), `"name":"net2"`, "") },
		"DEL of an invalid configuration": func() {
			w.Result(w.Do(spec.Del, w.plugin, w.Cont.Call(), `"name":"net2","table":true`, ""))
		},
		"DEL of an old version": func() { w.must(spec.Del, w.Cont.Call(), `"cniVersion":"0.3.1","name":"net2"`, "") },
		"DEL of a container that had the path before": func() {
			w.must(spec.Del, other, "", w.prevWithMAC("host7", "02:00:00:00:00:07"))
		},
		"GC of another network": func() {
			w.Result(w.Do(spec.GC, w.plugin, spec.Call{}, `"name":"net2","cni.dev/valid-attachments":[]`, ""))
		},
	} {
		del()
		w.Same(name, before, w.State())
		w.Same("files: "+name, files, w.Files())
	}
}

// Runtimes call DEL after a failed ADD, and late. It leaves the changes of another attachment to
// the interface, with and without a label.
func TestKernelDelLeavesChangesOfOthers(t *testing.T) {
	eachModifier(t, func(t *testing.T, w *modifier, _ bool) {
		w.must(spec.Add, w.Cont.Call(), "", w.PrevResult(w.routes))
		if !w.isChanged() {
			t.Fatalf("ADD changed nothing:\n%s", w.State())
		}
		w.delOthers()
		w.must(spec.Check, w.Cont.Call(), "", w.PrevResult(w.routes))
		w.must(spec.Del, w.Cont.Call(), "", "")
		w.wantUnchanged()
	})
}

// Earlier versions had no such records. DEL reverts their changes if the label or prevResult
// identifies the attachment as the owner.
func TestKernelDelWithoutRecord(t *testing.T) {
	eachModifier(t, func(t *testing.T, w *modifier, labelled bool) {
		prev := ""
		if !labelled {
			prev = w.prevWithMAC("host0", w.Eth0.MAC.String())
		}
		w.must(spec.Add, w.Cont.Call(), "", w.PrevResult(w.routes))
		w.asEarlierVersion()
		if labelled {
			w.delOthers()
		}
		w.must(spec.Del, w.Cont.Call(), "", prev)
		w.wantUnchanged()
	})
}

// asEarlierVersion converts the records to the format of earlier versions: only tuning had records,
// without the network in the name and without the interface.
func (w *modifier) asEarlierVersion() {
	w.Helper()
	for name := range strings.FieldsSeq(w.Files()) {
		if w.plugin != "tuning" {
			w.NoError(os.Remove(filepath.Join(w.Records, name)))
			continue
		}
		edit(w.Host, name, func(rec map[string]any) {
			for _, key := range []string{"dev", "ino", "cookie", "index", "parent"} {
				delete(rec, key)
			}
		})
		w.NoError(os.Rename(filepath.Join(w.Records, name), filepath.Join(w.Records, "c1_eth0.json")))
	}
}

// edit changes the members of a record.
func edit(h *applettest.Host, name string, change func(rec map[string]any)) {
	h.Helper()
	file := filepath.Join(h.Records, name)
	text, err := os.ReadFile(file)
	h.NoError(err)
	var rec map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	h.NoError(d.Decode(&rec))
	change(rec)
	text, err = json.Marshal(rec)
	h.NoError(err)
	h.NoError(os.WriteFile(file, text, 0o600))
}

// A new namespace may have the path, the inode and the link index of one that has ended. A late DEL
// changes nothing in it.
func TestKernelLateDelAtReusedPath(t *testing.T) {
	h := applettest.NewHost(t)
	path := filepath.Join(t.TempDir(), "netns")
	enter := func(ns *netns.NS) (*rtnl.Conn, *rtnl.Link) {
		os.Remove(path)
		h.NoError(os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.FD()), path))
		c := kerneltest.Dial(t, ns)
		own, _ := spec.ParseMAC("02:00:00:00:00:02")
		peer := &rtnl.LinkSpec{Name: fmt.Sprint("host", ns.FD()), NS: h.NS}
		h.NoError(c.AddLink(rtnl.LinkSpec{Name: "eth0", MAC: own, Peer: peer}))
		return c, kerneltest.Link(t, c, "eth0")
	}
	first, second := kerneltest.NS(t), kerneltest.NS(t)
	call := spec.Call{ContainerID: "c1", IfName: "eth0", NetNS: path}
	_, was := enter(first)
	prev := fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:02","mtu":1500,"sandbox":%q}],
		"ips":[{"address":"10.9.0.2/24","interface":0}]}`, path)
	h.Result(h.Do(spec.Add, "tuning", call, `"mac":"02:00:00:00:00:aa","mtu":1400`, prev))

	// the kernel may reuse an inode
	id, err := second.ID()
	h.NoError(err)
	edit(h, "c1_eth0.json", func(rec map[string]any) { rec["dev"], rec["ino"] = id.Dev, id.Ino })
	c, l := enter(second)
	if l.Index != was.Index {
		t.Fatalf("the link is #%d, the first one was #%d", l.Index, was.Index)
	}
	now, _ := spec.ParseMAC("02:00:00:00:00:77")
	h.NoError(c.SetLink(l.Index, rtnl.LinkChange{MAC: now, MTU: new(1300)}))
	h.Result(h.Do(spec.Del, "tuning", call, "", ""))
	if l := kerneltest.Link(t, c, "eth0"); l.MTU != 1300 || l.MAC.String() != now.String() {
		t.Errorf("the DEL of the first container changed the second: MAC %s, MTU %d", l.MAC, l.MTU)
	}
	if h.Files() != "" {
		t.Errorf("files left: %s", h.Files())
	}
}

// A late DEL without prevResult, whose path leads to another namespace, changes nothing there. The
// container in it is the reference's, so that no label or record identifies its owner. The first
// DEL has a record, the second none.
func TestKernelLateDelWithoutPrevResult(t *testing.T) {
	for plugin := range modifiers {
		for _, version := range []string{"1.1.0", "0.4.0", "0.3.1"} {
			t.Run(plugin+" "+version, func(t *testing.T) {
				w, old := newModifier(t, plugin), newModifier(t, plugin)
				w.must(spec.Add, w.Cont.Call(), "", w.PrevResult(w.routes))
				w.NoError(os.RemoveAll(w.Records))
				late := old.Cont.Call()
				late.ContainerID = "late"
				old.Records = w.Records
				old.must(spec.Add, late, "", old.PrevResult(old.routes))
				before := w.State()
				if !w.isChanged() {
					t.Fatalf("ADD changed nothing:\n%s", before)
				}
				late.NetNS = w.Cont.Path
				for _, del := range []string{"first", "second"} {
					w.must(spec.Del, late, fmt.Sprintf(`"cniVersion":%q`, version), "")
					w.Same(del+" DEL", before, w.State())
				}
				// A record of the reference does not identify the interface.
				if plugin == "tuning" {
					w.NoError(os.MkdirAll(w.Records, 0o700))
					w.NoError(os.WriteFile(filepath.Join(w.Records, "late_eth0.json"), []byte(`{"mac":"02:00:00:00:00:bb","mtu":1300,"promisc":false}`), 0o600))
					w.must(spec.Del, late, fmt.Sprintf(`"cniVersion":%q`, version), "")
					w.Same("DEL with a record of the reference", before, w.State())
				}
			})
		}
	}
}

// A record from a namespace that has ended is ignored in another one: DEL restores the state before
// ADD there.
func TestKernelRecordOfLostNamespace(t *testing.T) {
	for _, earlier := range []bool{false, true} {
		w := newModifier(t, "tuning")
		w.must(spec.Add, w.Cont.Call(), "", w.PrevResult("[]"))
		if earlier {
			w.asEarlierVersion()
		}
		next := newModifier(t, "tuning")
		next.Records = w.Records
		before := next.State()
		next.Result(next.Do(spec.Add, "tuning", next.Cont.Call(), `"mac":"02:00:00:00:00:aa","mtu":1300`, next.PrevResult("[]")))
		next.Result(next.Do(spec.Del, "tuning", next.Cont.Call(), "", ""))
		if after := next.State(); after != before || next.Files() != "" {
			t.Errorf("earlier version %t: files %q and\n%s", earlier, next.Files(), kerneltest.Diff(before, after))
		}
	}
}

// Container a with interface b_c and container a_b with interface c have separate records.
func TestKernelRecordNamesAreUnambiguous(t *testing.T) {
	w := newModifier(t, "tuning")
	_, second := w.AddPair("host1", "b_c")
	a, b := w.Cont.Call(), w.Cont.Call()
	a.ContainerID, a.IfName = "a", "b_c"
	w.NoError(w.ContConn.SetLink(w.Eth0.Index, rtnl.LinkChange{Up: new(false)}))
	w.NoError(w.ContConn.SetLink(w.Eth0.Index, rtnl.LinkChange{Name: new("c")}))
	b.ContainerID, b.IfName = "a_b", "c"
	before := w.State()
	for _, call := range []spec.Call{a, b} {
		w.Result(w.Do(spec.Add, "tuning", call, `"mtu":1400`, w.PrevResult("[]")))
	}
	w.Result(w.Do(spec.Del, "tuning", a, "", ""))
	if l, err := w.ContConn.LinkAt(second.Index); err != nil || l.MTU != 1500 {
		t.Errorf("%+v, %v", l, err)
	}
	w.Result(w.Do(spec.Del, "tuning", b, "", ""))
	w.Same("ADD and DEL", before, w.State())
}

// STATUS reports a directory in which records cannot be stored, before an ADD fails.
func TestKernelStatusOfUnusableDirectory(t *testing.T) {
	for plugin, of := range modifiers {
		h := applettest.NewHost(t)
		h.NoError(os.WriteFile(h.Records, nil, 0o600))
		_, err := h.Do(spec.Status, plugin, spec.Call{}, of.keys, "")
		if err == nil || spec.AsError(err).Code != spec.CodeNotReady || !strings.Contains(err.Error(), "not a directory") {
			t.Errorf("%s: %v", plugin, err)
		}
	}
}
