//go:build !no_tuning

package applets_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cnibox/internal/fault"
	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

// veth makes eth0 in the container, and host0 at its other end.
func (b *metaBox) veth() *rtnl.Conn {
	b.t.Helper()
	c := kerneltest.Dial(b.t, b.cont)
	mac, _ := spec.ParseMAC("02:00:00:00:00:02")
	if err := c.AddLink(rtnl.LinkSpec{Name: "eth0", MAC: mac, Up: true, Peer: &rtnl.LinkSpec{Name: "host0", NS: b.host}}); err != nil {
		b.t.Fatal(err)
	}
	return c
}

// state renders all that tuning may change, and its files.
func (b *metaBox) state(c *rtnl.Conn) string {
	b.t.Helper()
	l, err := c.Link("eth0")
	if err != nil {
		b.t.Fatal(err)
	}
	arp, err := b.cont.Sysctl("net/ipv4/conf/eth0/arp_filter")
	if err != nil {
		b.t.Fatal(err)
	}
	ports, err := b.cont.Sysctl("net/ipv4/ip_local_port_range")
	if err != nil {
		b.t.Fatal(err)
	}
	return fmt.Sprintf("mac %s promisc %v mtu %d allmulti %v txqlen %d arp_filter %s ports %s files %s",
		l.MAC, l.Promisc, l.MTU, l.AllMulti, l.TxQLen, arp, strings.Join(strings.Fields(ports), "-"), b.files())
}

// tuningFile is the name of the record of eth0 of c1.
var tuningFile = spec.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}.Key() + ".json"

const tuneAll = `"mac":"02:00:00:00:00:AA","promisc":true,"mtu":1400,"allmulti":true,"txQLen":77,
	"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1","net.ipv4.ip_local_port_range":"2000 3000"}`

// [S] done right: a second ADD keeps the former values, CHECK compares lists
// by fields and addresses in any case of letters, the result has the new MTU
// and the interface of the host keeps its address.
func TestKernelTuning(t *testing.T) {
	b := newMetaBox(t)
	c := b.veth()
	before := b.state(c)
	res := b.must(b.run("tuning", spec.Add, b.call(), tuneAll, b.prev()))
	if got := fmt.Sprint(res.Interfaces[0].MAC, " ", res.Interfaces[1].MAC, " ", res.Interfaces[1].MTU); got != "02:00:00:00:00:01 02:00:00:00:00:AA 1400" {
		t.Errorf("result: %s", got)
	}
	tuned := "mac 02:00:00:00:00:aa promisc true mtu 1400 allmulti true txqlen 77 arp_filter 1 ports 2000-3000 files " + tuningFile
	if got := b.state(c); got != tuned {
		t.Errorf("got  %s\nwant %s", got, tuned)
	}
	b.must(b.run("tuning", spec.Check, b.call(), tuneAll, b.prev()))
	b.must(b.run("tuning", spec.Add, b.call(), tuneAll, b.prev()))
	checkTuningFile(t, filepath.Join(b.dir, tuningFile))

	b.must(b.run("tuning", spec.Del, b.call(), "", ""))
	after := strings.Replace(strings.Replace(b.state(c), "arp_filter 1", "arp_filter 0", 1), "ports 2000-3000", ports(before), 1)
	if after != before {
		t.Errorf("after DEL\ngot  %s\nwant %s", after, before)
	}
	b.must(b.run("tuning", spec.Del, b.call(), tuneAll, b.prev()))
}

// Settings alone need no interface; what is about one does. One that cannot be read
// before it is set is set.
func TestKernelTuningWithoutLink(t *testing.T) {
	b := newMetaBox(t)
	const keys = `"sysctl":{"net.ipv4.ip_local_port_range":"2000 3000","net.ipv6.conf.lo.stable_secret":"2001:db8::1"}`
	for _, keys := range []string{keys, ""} {
		b.must(b.run("tuning", spec.Add, b.call(), keys, b.prev()))
		b.must(b.run("tuning", spec.Check, b.call(), keys, b.prev()))
		b.must(b.run("tuning", spec.Del, b.call(), keys, b.prev()))
	}
	for key, want := range map[string]string{"net/ipv4/ip_local_port_range": "2000\t3000", "net/ipv6/conf/lo/stable_secret": "2001:0db8:0000:0000:0000:0000:0000:0001"} {
		if got, err := b.cont.Sysctl(key); err != nil || got != want {
			t.Errorf("%s is %q, %v", key, got, err)
		}
	}
	for _, keys := range []string{`"mtu":1400`, `"promisc":false`, `"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}`} {
		for verb, code := range map[spec.Verb]int{spec.Add: spec.CodeConfig, spec.Check: spec.CodeCheck} {
			if _, err := b.run("tuning", verb, b.call(), keys, b.prev()); err == nil || spec.AsError(err).Code != code || !strings.Contains(err.Error(), "eth0") {
				t.Errorf("%s with %s: %v", verb, keys, err)
			}
		}
	}
	gone := b.call()
	gone.NetNS = "/nowhere"
	if _, err := b.run("tuning", spec.Add, gone, keys, b.prev()); err == nil || spec.AsError(err).Code != spec.CodeNetNS {
		t.Errorf("no namespace: %v", err)
	}
}

// ports returns the last setting of a state.
func ports(state string) string {
	_, after, _ := strings.Cut(state, "ports ")
	return "ports " + strings.Fields(after)[0]
}

// checkTuningFile reads the file as the reference would. [S] there, a second
// ADD writes the tuned values into it, and its folder cannot be entered.
func checkTuningFile(t *testing.T, file string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var kept struct {
		MAC      string `json:"mac"`
		Promisc  *bool  `json:"promisc"`
		MTU      int    `json:"mtu"`
		AllMulti *bool  `json:"allmulti"`
		TxQLen   *int   `json:"txQLen"`
	}
	if err := json.Unmarshal(raw, &kept); err != nil || kept.Promisc == nil || kept.AllMulti == nil || kept.TxQLen == nil {
		t.Fatalf("%s: %v", raw, err)
	}
	if kept.MAC != "02:00:00:00:00:02" || *kept.Promisc || kept.MTU != 1500 || *kept.AllMulti || *kept.TxQLen == 77 {
		t.Errorf("former attributes: %s", raw)
	}
	for path, want := range map[string]os.FileMode{file: 0o600, filepath.Dir(file): 0o700} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: got %v, %v, want %o", path, st.Mode(), err, want)
		}
	}
}

// Each configured value that somebody changed is found.
func TestKernelTuningCheck(t *testing.T) {
	tests := map[string]struct {
		keys, want string
		change     func(b *metaBox, c *rtnl.Conn, index uint32) error
	}{
		"mac":      {`"mac":"02:00:00:00:00:aa"`, "Tuning configured mac", nil},
		"promisc":  {`"promisc":true`, "Tuning configured promisc", nil},
		"mtu":      {`"mtu":1400`, "Tuning configured mtu", nil},
		"allmulti": {`"allmulti":true`, "Tuning configured allmulti", nil},
		"txQLen":   {`"txQLen":7`, "Tuning configured txQLen", nil},
		"sysctl":   {`"sysctl":{"net.ipv4.conf.eth0.arp_filter":"1"}`, "Tuning configured sysctl", nil},
		"promisc off": {`"promisc":false`, "Tuning configured promisc", func(_ *metaBox, c *rtnl.Conn, index uint32) error {
			on := true
			return c.SetLink(index, rtnl.LinkChange{Promisc: &on})
		}},
		"no such sysctl": {`"sysctl":{"net.ipv4.conf.eth0.nonsense":"1"}`, "nonsense", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newMetaBox(t)
			c := b.veth()
			if tt.change != nil {
				l, err := c.Link("eth0")
				if err == nil {
					b.must(b.run("tuning", spec.Check, b.call(), tt.keys, b.prev()))
					err = tt.change(b, c, l.Index)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			before := b.state(c)
			_, err := b.run("tuning", spec.Check, b.call(), tt.keys, b.prev())
			if err == nil || !strings.Contains(err.Error(), tt.want) || spec.AsError(err).Code != spec.CodeCheck {
				t.Errorf("got %v, want %q with code %d", err, tt.want, spec.CodeCheck)
			}
			if after := b.state(c); after != before {
				t.Errorf("CHECK changed %s to %s", before, after)
			}
		})
	}
}

// Whichever change of ADD fails, all is as it was before.
func TestKernelTuningRollback(t *testing.T) {
	b := newMetaBox(t)
	c := b.veth()
	for _, earlier := range []bool{false, true} {
		if earlier { // the record of an earlier ADD is left as it was
			b.must(b.run("tuning", spec.Add, b.call(), `"mtu":1450`, b.prev()))
		}
		before := b.state(c)
		done := false
		for n := 1; !done; n++ {
			if n > 30 {
				t.Fatal("ADD never succeeds")
			}
			calls, failed := 0, ""
			fault.Hook = func(what string) error {
				if calls++; calls == n {
					failed = what
					return errors.New("injected")
				}
				return nil
			}
			_, err := b.run("tuning", spec.Add, b.call(), tuneAll, b.prev())
			fault.Hook = nil
			if done = err == nil; done {
				if n < 6 {
					t.Errorf("only %d changes asked", n)
				}
				break
			}
			if after := b.state(c); after != before {
				t.Fatalf("%s failed\nbefore %s\nafter  %s", failed, before, after)
			}
		}
		b.must(b.run("tuning", spec.Del, b.call(), tuneAll, ""))
	}
}

// The kernel's own refusal of the last attribute takes the first ones back.
func TestKernelTuningRefused(t *testing.T) {
	b := newMetaBox(t)
	c := b.veth()
	before := b.state(c)
	for _, keys := range []string{
		`"mac":"02:00:00:00:00:aa","promisc":true,"mtu":2000000000,"sysctl":{"net.ipv4.conf.eth0.arp_filter":"1"}`,
		`"mtu":1400,"sysctl":{"net.ipv4.conf.eth0.arp_filter":"1","net.ipv4.conf.eth0.nonsense":"1"}`,
		`"mtu":1400,"sysctl":{"net.ipv4.conf.eth0.arp_filter":"1","net.ipv4.ip_local_port_range":"nonsense"}`,
	} {
		if _, err := b.run("tuning", spec.Add, b.call(), keys, b.prev()); err == nil {
			t.Errorf("%s: no error", keys)
		}
		if after := b.state(c); after != before {
			t.Errorf("%s\nbefore %s\nafter  %s", keys, before, after)
		}
	}
	_, err := b.run("tuning", spec.Add, b.call(), `"mtu":1400`, "")
	if err == nil || spec.AsError(err).Code != spec.CodeConfig || !strings.Contains(err.Error(), "Required prevResult missing") {
		t.Errorf("without prevResult: %v", err)
	}
}

// [S] in the reference the file stays for ever when namespace or link are gone.
func TestKernelTuningDelOfGone(t *testing.T) {
	for name, spoil := range map[string]func(b *metaBox, c *rtnl.Conn) spec.Call{
		"no link":         func(b *metaBox, c *rtnl.Conn) spec.Call { c.DelLink("eth0"); return b.call() },
		"empty netns":     func(b *metaBox, c *rtnl.Conn) spec.Call { k := b.call(); k.NetNS = ""; return k },
		"missing netns":   func(b *metaBox, c *rtnl.Conn) spec.Call { k := b.call(); k.NetNS += ".gone"; return k },
		"netns is a file": func(b *metaBox, c *rtnl.Conn) spec.Call { k := b.call(); k.NetNS = "/etc/hostname"; return k },
		"broken record": func(b *metaBox, c *rtnl.Conn) spec.Call {
			os.WriteFile(filepath.Join(b.dir, tuningFile), []byte(`{"mtu":`), 0o600)
			return b.call()
		},
		"interrupted write": func(b *metaBox, c *rtnl.Conn) spec.Call {
			os.Rename(filepath.Join(b.dir, tuningFile), filepath.Join(b.dir, tuningFile+".tmp"))
			return b.call()
		},
		"link in its place": func(b *metaBox, c *rtnl.Conn) spec.Call {
			file := filepath.Join(b.dir, tuningFile)
			os.Remove(file)
			other := filepath.Join(b.t.TempDir(), "other.json")
			os.WriteFile(other, []byte(`{"mtu":1300}`), 0o600)
			os.Symlink(other, file)
			return b.call()
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newMetaBox(t)
			c := b.veth()
			b.must(b.run("tuning", spec.Add, b.call(), `"mtu":1400`, b.prev()))
			call := spoil(b, c)
			b.must(b.run("tuning", spec.Del, call, "", ""))
			if b.files() != "" {
				t.Errorf("files left: %s", b.files())
			}
			if l, err := c.Link("eth0"); err == nil && l.MTU == 1300 {
				t.Error("a record was read through a link")
			}
			b.must(b.run("tuning", spec.Del, call, `"mtu":"nonsense"`, ""))
		})
	}
}

// A record of the reference plugins, which has no owner, is used by DEL and
// left alone by GC; of ours, GC takes those of the network that are not valid.
func TestKernelTuningRecords(t *testing.T) {
	b := newMetaBox(t)
	c := b.veth()
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"c1_eth0.json": `{"mac":"02:00:00:00:00:0b","promisc":true,"mtu":1280,"allmulti":true,"txQLen":5}`,
		"c2_eth0.json": `{"network":"net1","containerID":"c2","ifName":"eth0","mtu":1500}`,
		"c3_eth0.json": `{"network":"net1","containerID":"c3","ifName":"eth0","mtu":1500}`,
		"c4_eth0.json": `{"network":"net2","containerID":"c4","ifName":"eth0","mtu":1500}`,
		"other":        `not ours`,
	} {
		if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.must(b.run("tuning", spec.GC, spec.Call{}, `"cni.dev/valid-attachments":[{"containerID":"c3","ifname":"eth0"}]`, ""))
	if got := b.files(); got != "c1_eth0.json c3_eth0.json c4_eth0.json other" {
		t.Errorf("after GC: %s", got)
	}
	b.must(b.run("tuning", spec.Del, b.call(), "", ""))
	if got := b.state(c); !strings.HasPrefix(got, "mac 02:00:00:00:00:0b promisc true mtu 1280 allmulti true txqlen 5 ") {
		t.Errorf("after DEL: %s", got)
	}
	b.must(b.run("tuning", spec.Status, spec.Call{}, tuneAll, ""))
	b.dir = filepath.Join(b.dir, "other")
	if _, err := b.run("tuning", spec.Status, spec.Call{}, tuneAll, ""); err == nil || spec.AsError(err).Code != spec.CodeNotReady {
		t.Errorf("STATUS with a file for a folder: %v", err)
	}
	if _, err := b.run("tuning", spec.Add, b.call(), tuneAll, b.prev()); err == nil {
		t.Error("ADD with a file for a folder")
	}

	// an empty record, as the reference leaves it when the disk is full
	b.dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(b.dir, "c1_eth0.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.must(b.run("tuning", spec.Add, b.call(), `"mtu":1400`, b.prev()))
	b.must(b.run("tuning", spec.Del, b.call(), "", ""))
	if got := b.state(c); !strings.Contains(got, " mtu 1280 ") || b.files() != "" {
		t.Errorf("after ADD on an empty record, and DEL: %s", got)
	}
}

// What the configuration asks wrongly is told with its code and the interface's name, or
// the key as it was written, and nothing has changed.
func TestKernelTuningOfWrongValues(t *testing.T) {
	for keys, want := range map[string]string{
		`"mtu":67`:    "eth0 does not take what is configured for it",
		`"mtu":70000`: "eth0 does not take what is configured for it",
		`"sysctl":{"net.ipv4.conf.IFNAME.nonsense":"1"}`:   "net.ipv4.conf.IFNAME.nonsense is misspelled",
		`"sysctl":{"net.core.netdev_budget":"1"}`:          "the whole host's",
		`"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"x"}`: "does not take this value for net.ipv4.conf.IFNAME.arp_filter",
	} {
		w := newWire(t)
		before := w.state()
		_, err := w.run("tuning", spec.Add, w.call(), keys, w.prev("[]"))
		w.refused(err, spec.CodeConfig, want)
		if after := w.state(); after != before {
			t.Errorf("%s changed\n%s", keys, kerneltest.Diff(before, after))
		}
	}
}
