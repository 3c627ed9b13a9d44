//go:build !no_tuning && !no_bandwidth && !no_sbr && !no_vrf

package applets_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

// A worker is a plugin that works on an interface that another has made.
type worker struct {
	keys, routes string
	mark         string // stands in the state of host and container between ADD and DEL
	wire         func(t *testing.T) *wire
}

var workers = map[string]worker{
	"tuning":    {`"mac":"02:00:00:00:00:aa","promisc":true,"mtu":1400`, "[]", "02:00:00:00:00:aa", newWire},
	"bandwidth": {bothLimits, "[]", "tbf", func(t *testing.T) *wire { needsShaping(t); return newWire(t) }},
	"sbr":       {"", defaults, "10.9.0.2/32", func(t *testing.T) *wire { return newWire(t).routed() }},
	"vrf":       {`"vrfname":"blue"`, vrfRoutes, "blue", newDomain},
}

// marked reports whether what the plugin does to the interface is there.
func (w *wire) marked(of worker) bool {
	rules := w.sources()
	return strings.Contains(w.state()+rules, of.mark) && (of.keys != "" || rules != "")
}

// label gives the host's end the label that the plugins have that make pairs.
func (w *wire) label(a spec.Attachment) {
	w.t.Helper()
	w.ok(w.h.SetLink(w.veth.Index, rtnl.LinkChange{Alias: new(a.Label(255))}))
}

// prevOf is a result about the end of another pair, with the same addresses: those of a
// container that is gone are given out again.
func (w *wire) prevOf(host, mac, routes string) string {
	return strings.NewReplacer(`"host0"`, fmt.Sprintf("%q", host), `"eth0","sandbox"`, fmt.Sprintf(`"eth0","mac":%q,"sandbox"`, mac)).Replace(w.prev(routes))
}

// otherDels are DELs of other attachments that lead to the interface of net1/c1/eth0,
// and a GC of another network.
func (w *wire) otherDels(plugin string, of worker) {
	w.t.Helper()
	before, files := w.state(), w.files()
	another := w.call()
	another.ContainerID = "c2"
	keys := ""
	if of.keys != "" {
		keys = "," + of.keys
	}
	for name, run := range map[string]func() (*spec.Result, error){
		"another network": func() (*spec.Result, error) { return w.run(plugin, spec.Del, w.call(), `"name":"net2"`+keys, "") },
		"one that is misspelled": func() (*spec.Result, error) {
			return w.run(plugin, spec.Del, w.call(), `"name":"net2","table":true`, "")
		},
		"one of an old version": func() (*spec.Result, error) {
			return w.run(plugin, spec.Del, w.call(), `"cniVersion":"0.3.1","name":"net2"`+keys, "")
		},
		"a container that had the path before": func() (*spec.Result, error) {
			return w.run(plugin, spec.Del, another, strings.TrimPrefix(keys, ","), w.prevOf("host7", "02:00:00:00:00:07", of.routes))
		},
		"GC of another network": func() (*spec.Result, error) {
			return w.run(plugin, spec.GC, spec.Call{}, `"name":"net2","cni.dev/valid-attachments":[]`, "")
		},
	} {
		w.must(run())
		if after := w.state(); after != before {
			w.t.Errorf("%s changed\n%s", name, kerneltest.Diff(before, after))
		}
		if after := w.files(); after != files {
			w.t.Errorf("%s: files %q, before %q", name, after, files)
		}
	}
}

// Runtimes DEL what they could not ADD, and DEL late. What another attachment has done to
// the interface stays, whether or not the interface is labelled by who made it.
func TestKernelChainedForeign(t *testing.T) {
	for plugin, of := range workers {
		for _, labelled := range []bool{false, true} {
			t.Run(fmt.Sprint(plugin, " labelled ", labelled), func(t *testing.T) {
				w := of.wire(t)
				if labelled {
					w.label(spec.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"})
				}
				w.must(w.run(plugin, spec.Add, w.call(), of.keys, w.prev(of.routes)))
				if !w.marked(of) {
					t.Fatalf("ADD did nothing:\n%s", w.state())
				}
				w.otherDels(plugin, of)
				w.must(w.run(plugin, spec.Check, w.call(), of.keys, w.prev(of.routes)))
				w.must(w.run(plugin, spec.Del, w.call(), of.keys, ""))
				if w.marked(of) || w.files() != "" {
					t.Errorf("DEL left files %q and\n%s", w.files(), w.state())
				}
			})
		}
	}
}

// What versions without such records have done is released, and by its own DEL alone: the
// label names the owner, or the prevResult.
func TestKernelChainedUpgrade(t *testing.T) {
	for plugin, of := range workers {
		for _, labelled := range []bool{false, true} {
			t.Run(fmt.Sprint(plugin, " labelled ", labelled), func(t *testing.T) {
				w := of.wire(t)
				prev := ""
				if labelled {
					w.label(spec.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"})
				} else {
					prev = w.prevOf("host0", w.eth.MAC.String(), of.routes)
				}
				w.must(w.run(plugin, spec.Add, w.call(), of.keys, w.prev(of.routes)))
				w.asBefore(plugin)
				if labelled {
					w.otherDels(plugin, of)
				}
				w.must(w.run(plugin, spec.Del, w.call(), of.keys, prev))
				if w.marked(of) || w.files() != "" {
					t.Errorf("DEL left files %q and\n%s", w.files(), w.state())
				}
			})
		}
	}
}

// asBefore makes the records what earlier versions have written: tuning alone had some,
// without the network in its name, and none had the interface.
func (w *wire) asBefore(plugin string) {
	w.t.Helper()
	for _, name := range strings.Fields(w.files()) {
		if plugin != "tuning" {
			w.ok(os.Remove(filepath.Join(w.dir, name)))
			continue
		}
		w.ok(w.edit(name, func(rec map[string]any) {
			for _, key := range []string{"dev", "ino", "cookie", "index", "parent"} {
				delete(rec, key)
			}
		}))
		w.ok(os.Rename(filepath.Join(w.dir, name), filepath.Join(w.dir, "c1_eth0.json")))
	}
}

// edit changes a record.
func (b *metaBox) edit(name string, change func(rec map[string]any)) error {
	file := filepath.Join(b.dir, name)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var rec map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&rec); err != nil {
		return err
	}
	change(rec)
	if text, err = json.Marshal(rec); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// A namespace that has ended leaves its path, its inode and the index of its first link to
// the next one. A late DEL changes nothing there.
func TestKernelChainedReusedNamespace(t *testing.T) {
	const mac = "02:00:00:00:00:aa"
	b := newMetaBox(t)
	path := filepath.Join(t.TempDir(), "netns")
	enter := func(ns *rtnl.NS) (*rtnl.Conn, *rtnl.Link) {
		os.Remove(path)
		if err := os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.FD()), path); err != nil {
			t.Fatal(err)
		}
		c := kerneltest.Dial(t, ns)
		own, _ := spec.ParseMAC("02:00:00:00:00:02")
		peer := &rtnl.LinkSpec{Name: fmt.Sprint("host", ns.FD()), NS: b.host}
		if err := c.AddLink(rtnl.LinkSpec{Name: "eth0", MAC: own, Peer: peer}); err != nil {
			t.Fatal(err)
		}
		return c, linkOf(t, c, "eth0")
	}
	first, second := kerneltest.NS(t), kerneltest.NS(t)
	call := b.call()
	call.NetNS = path
	_, was := enter(first)
	b.must(b.run("tuning", spec.Add, call, `"mac":"`+mac+`","mtu":1400`, b.prev()))

	// the kernel gives an inode again when it likes
	id, err := second.ID()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.edit(tuningFile, func(rec map[string]any) { rec["dev"], rec["ino"] = id.Dev, id.Ino }); err != nil {
		t.Fatal(err)
	}
	c, l := enter(second)
	if l.Index != was.Index {
		t.Fatalf("the link is #%d, the first one was #%d", l.Index, was.Index)
	}
	now, _ := spec.ParseMAC("02:00:00:00:00:77")
	if err := c.SetLink(l.Index, rtnl.LinkChange{MAC: now, MTU: new(1300)}); err != nil {
		t.Fatal(err)
	}
	b.must(b.run("tuning", spec.Del, call, "", ""))
	if l := linkOf(t, c, "eth0"); l.MTU != 1300 || l.MAC.String() != now.String() {
		t.Errorf("the DEL of the first container changed the second: MAC %s, MTU %d", l.MAC, l.MTU)
	}
	if b.files() != "" {
		t.Errorf("files left: %s", b.files())
	}
}

// An attachment that was lost with its namespace has left a record. What ADD finds in
// another namespace is what DEL puts back there.
func TestKernelTuningLostRecord(t *testing.T) {
	for _, earlier := range []bool{false, true} {
		w := newWire(t)
		w.must(w.run("tuning", spec.Add, w.call(), `"mac":"02:00:00:00:00:aa","mtu":1400`, w.prev("[]")))
		if earlier {
			w.asBefore("tuning")
		}
		next := newWire(t)
		next.dir = w.dir
		before := next.state()
		next.must(next.run("tuning", spec.Add, next.call(), `"mac":"02:00:00:00:00:aa","mtu":1300`, next.prev("[]")))
		next.must(next.run("tuning", spec.Del, next.call(), "", ""))
		if after := next.state(); after != before || next.files() != "" {
			t.Errorf("earlier version %t: files %q and\n%s", earlier, next.files(), kerneltest.Diff(before, after))
		}
	}
}

// Names that are alike when they are written one after another are of two attachments.
func TestKernelTuningAlikeNames(t *testing.T) {
	w := newWire(t)
	_, second := w.pair("host1", "b_c")
	a, b := w.call(), w.call()
	a.ContainerID, a.IfName = "a", "b_c"
	w.ok(w.c.SetLink(w.eth.Index, rtnl.LinkChange{Up: new(false)}))
	w.ok(w.c.SetLink(w.eth.Index, rtnl.LinkChange{Name: new("c")}))
	b.ContainerID, b.IfName = "a_b", "c"
	before := w.state()
	for _, call := range []spec.Call{a, b} {
		w.must(w.run("tuning", spec.Add, call, `"mtu":1400`, w.prev("[]")))
	}
	w.must(w.run("tuning", spec.Del, a, "", ""))
	if l, err := w.c.LinkAt(second.Index); err != nil || l.MTU != 1500 {
		t.Errorf("%+v, %v", l, err)
	}
	w.must(w.run("tuning", spec.Del, b, "", ""))
	if after := w.state(); after != before {
		t.Errorf("left\n%s", kerneltest.Diff(before, after))
	}
}

// An interface that is gone has left its rules. Those that lead the address of another to
// a table stay: the address of the first has been given out again.
func TestKernelSBRAddressOfAnother(t *testing.T) {
	w := newWire(t).routed()
	w.must(w.run("sbr", spec.Add, w.call(), "", w.prev(defaults)))
	w.ok(w.h.Do(rtnl.DropLink(w.veth.Index)))
	w.veth, w.eth = w.pair("host0", "eth0", "10.9.0.1/24", "fd09::1/64", "10.9.0.2/24")
	w.ok(w.c.AddRoute(rtnl.Route{Dst: prefix("0.0.0.0/0"), GW: prefix("10.9.0.1/32").Addr(), Link: w.eth.Index}))
	prev := strings.Replace(w.prev("[]"), `,
			{"address":"fd09::2/64","gateway":"fd09::1","interface":1}`, "", 1)
	w.must(w.run("sbr", spec.Add, w.call(), `"name":"net2"`, prev))
	w.must(w.run("sbr", spec.Del, w.call(), "", ""))
	w.want("rules", w.sources(), "10.9.0.2/32 100")
	w.want("table", w.table(100), "0.0.0.0/0 via 10.9.0.1, 10.9.0.0/24 src 10.9.0.2")
	w.must(w.run("sbr", spec.Check, w.call(), `"name":"net2"`, prev))
	w.must(w.run("sbr", spec.Del, w.call(), `"name":"net2"`, ""))
	w.want("rules", w.sources(), "")
}

// STATUS reports a directory that no record can be written to, before an ADD fails.
func TestKernelChainedFolder(t *testing.T) {
	for plugin, of := range workers {
		b := newMetaBox(t)
		b.dir = filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(b.dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := b.run(plugin, spec.Status, spec.Call{}, of.keys, "")
		if err == nil || spec.AsError(err).Code != spec.CodeNotReady || !strings.Contains(err.Error(), "is not a directory") {
			t.Errorf("%s: %v", plugin, err)
		}
	}
}
