package tuning_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A fixture is a host and container c1.
type fixture struct {
	*applettest.Host
	Cont applettest.Container
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	h := applettest.NewHost(t)
	return &fixture{h, h.Container("c1")}
}

// veth adds eth0 to the container, with host0 as its peer.
func (b *fixture) veth() *rtnl.Conn {
	b.Helper()
	c := kerneltest.Dial(b.T, b.Cont.NS)
	mac, _ := spec.ParseMAC("02:00:00:00:00:02")
	b.NoError(c.AddLink(rtnl.LinkSpec{Name: "eth0", MAC: mac, Up: true, Peer: &rtnl.LinkSpec{Name: "host0", NS: b.NS}}))
	return c
}

// state formats what tuning may change, and lists its records.
func (b *fixture) state(c *rtnl.Conn) string {
	b.Helper()
	l, err := c.Link("eth0")
	b.NoError(err)
	arp, err := b.Cont.NS.Sysctl("net/ipv4/conf/eth0/arp_filter")
	b.NoError(err)
	ports, err := b.Cont.NS.Sysctl("net/ipv4/ip_local_port_range")
	b.NoError(err)
	return fmt.Sprintf("mac %s promisc %v mtu %d allmulti %v txqlen %d arp_filter %s ports %s files %s",
		l.MAC, l.Promisc, l.MTU, l.AllMulti, l.TxQLen, arp, strings.Join(strings.Fields(ports), "-"), b.Files())
}

// prev returns a result with eth0 in the container and another eth0 on the host.
func (b *fixture) prev() string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01"},
		{"name":"eth0","mac":"02:00:00:00:00:02","mtu":1500,"sandbox":%q}],"ips":[{"address":"10.9.0.2/24","interface":1}]}`, b.Cont.Path)
}

// record is the file name of the record for eth0 of c1. It equals the reference's, whose DEL reads
// it.
const record = "c1_eth0.json"

const tuneAll = `"mac":"02:00:00:00:00:AA","promisc":true,"mtu":1400,"allmulti":true,"txQLen":77,
	"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1","net.ipv4.ip_local_port_range":"2000 3000"}`

// A second ADD keeps the former values in the record. CHECK ignores white space in lists and the
// case of MAC addresses. The result has the new MTU; the address of the host's interface in it is
// unchanged.
func TestKernelTuning(t *testing.T) {
	b := newFixture(t)
	c := b.veth()
	before := b.state(c)
	res := b.Result(b.Do(spec.Add, "tuning", b.Cont.Call(), tuneAll, b.prev()))
	if got := fmt.Sprint(res.Interfaces[0].MAC, " ", res.Interfaces[1].MAC, " ", res.Interfaces[1].MTU); got != "02:00:00:00:00:01 02:00:00:00:00:AA 1400" {
		t.Errorf("result: %s", got)
	}
	tuned := "mac 02:00:00:00:00:aa promisc true mtu 1400 allmulti true txqlen 77 arp_filter 1 ports 2000-3000 files " + record
	if got := b.state(c); got != tuned {
		t.Errorf("got  %s\nwant %s", got, tuned)
	}
	b.Result(b.Do(spec.Check, "tuning", b.Cont.Call(), tuneAll, b.prev()))
	b.Result(b.Do(spec.Add, "tuning", b.Cont.Call(), tuneAll, b.prev()))
	checkTuningFile(t, filepath.Join(b.Records, record))

	b.Result(b.Do(spec.Del, "tuning", b.Cont.Call(), "", ""))
	after := strings.Replace(strings.Replace(b.state(c), "arp_filter 1", "arp_filter 0", 1), "ports 2000-3000", ports(before), 1)
	if after != before {
		t.Errorf("after DEL\ngot  %s\nwant %s", after, before)
	}
	b.Result(b.Do(spec.Del, "tuning", b.Cont.Call(), tuneAll, b.prev()))
}

// Sysctls need no interface, unless they are of an interface. A sysctl that cannot be read is set
// as well.
func TestKernelTuningWithoutLink(t *testing.T) {
	b := newFixture(t)
	const keys = `"sysctl":{"net.ipv4.ip_local_port_range":"2000 3000","net.ipv6.conf.lo.stable_secret":"2001:db8::1"}`
	for _, keys := range []string{keys, ""} {
		b.Result(b.Do(spec.Add, "tuning", b.Cont.Call(), keys, b.prev()))
		b.Result(b.Do(spec.Check, "tuning", b.Cont.Call(), keys, b.prev()))
		b.Result(b.Do(spec.Del, "tuning", b.Cont.Call(), keys, b.prev()))
	}
	for key, want := range map[string]string{"net/ipv4/ip_local_port_range": "2000\t3000", "net/ipv6/conf/lo/stable_secret": "2001:0db8:0000:0000:0000:0000:0000:0001"} {
		if got, err := b.Cont.NS.Sysctl(key); err != nil || got != want {
			t.Errorf("%s is %q, %v", key, got, err)
		}
	}
	for _, keys := range []string{`"mtu":1400`, `"promisc":false`, `"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}`} {
		for verb, code := range map[spec.Verb]int{spec.Add: spec.CodeConfig, spec.Check: spec.CodeCheck} {
			if _, err := b.Do(verb, "tuning", b.Cont.Call(), keys, b.prev()); err == nil || spec.AsError(err).Code != code || !strings.Contains(err.Error(), "eth0") {
				t.Errorf("%s with %s: %v", verb, keys, err)
			}
		}
	}
	gone := b.Cont.Call()
	gone.NetNS = "/nowhere"
	if _, err := b.Do(spec.Add, "tuning", gone, keys, b.prev()); err == nil || spec.AsError(err).Code != spec.CodeNetNS {
		t.Errorf("no namespace: %v", err)
	}
}

// ports returns the port range of a state.
func ports(state string) string {
	_, after, _ := strings.Cut(state, "ports ")
	return "ports " + strings.Fields(after)[0]
}

// checkTuningFile reads the record as the reference does. In the reference, a second ADD overwrites
// it with the tuned values, and the directory has no search permission.
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

// CHECK reports each configured value that was changed.
func TestKernelTuningCheck(t *testing.T) {
	tests := map[string]struct {
		keys, want string
		change     func(b *fixture, c *rtnl.Conn, index uint32) error
	}{
		"mac":      {`"mac":"02:00:00:00:00:aa"`, "Tuning configured mac", nil},
		"promisc":  {`"promisc":true`, "Tuning configured promisc", nil},
		"mtu":      {`"mtu":1400`, "configured mtu", nil},
		"allmulti": {`"allmulti":true`, "Tuning configured allmulti", nil},
		"txQLen":   {`"txQLen":7`, "Tuning configured txQLen", nil},
		"sysctl":   {`"sysctl":{"net.ipv4.conf.eth0.arp_filter":"1"}`, "Tuning configured sysctl", nil},
		"promisc off": {`"promisc":false`, "Tuning configured promisc", func(_ *fixture, c *rtnl.Conn, index uint32) error {
			on := true
			return c.SetLink(index, rtnl.LinkChange{Promisc: &on})
		}},
		"no such sysctl": {`"sysctl":{"net.ipv4.conf.eth0.nonsense":"1"}`, "nonsense", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			c := b.veth()
			if tt.change != nil {
				l, err := c.Link("eth0")
				if err == nil {
					b.Result(b.Do(spec.Check, "tuning", b.Cont.Call(), tt.keys, b.prev()))
					err = tt.change(b, c, l.Index)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			before := b.state(c)
			_, err := b.Do(spec.Check, "tuning", b.Cont.Call(), tt.keys, b.prev())
			if err == nil || !strings.Contains(err.Error(), tt.want) || spec.AsError(err).Code != spec.CodeCheck {
				t.Errorf("got %v, want %q with code %d", err, tt.want, spec.CodeCheck)
			}
			if after := b.state(c); after != before {
				t.Errorf("CHECK changed %s to %s", before, after)
			}
		})
	}
}

// CHECK compares a sysctl with what the kernel made of the value at ADD, and of an attachment whose
// record does not have that, as of an earlier version, with what the value means. Another value is an error.
func TestKernelTuningCheckComparesKernelsForm(t *testing.T) {
	for _, tt := range []struct{ key, value, form, other string }{
		{"net.ipv4.ip_local_reserved_ports", "8080,9148,1-5", "1-5,8080,9148", "1-5,8080"},
		{"net.ipv4.ip_local_reserved_ports", "8081,8080,7", "7,8080-8081", "8080-8081"},
		{"net.ipv4.conf.IFNAME.arp_notify", "0x1", "1", "0"},
		{"net.ipv4.conf.IFNAME.arp_notify", "01", "1", "0"},
		{"net.ipv4.ip_local_port_range", "0x7d0   3000", "2000\t3000", "2000 3001"},
		{"net.ipv6.conf.IFNAME.stable_secret", "2001:DB8::1", "2001:0db8:0000:0000:0000:0000:0000:0001", "2001:db8::2"},
		{"net.ipv4.neigh.IFNAME.base_reachable_time_ms", "29999", "", "31000"}, // jiffies
	} {
		t.Run(tt.key+"="+tt.value, func(t *testing.T) {
			b := newFixture(t)
			b.veth()
			path := strings.ReplaceAll(strings.Replace(tt.key, "IFNAME", "eth0", 1), ".", "/")
			conf := fmt.Sprintf(`"sysctl":{%q:%q}`, tt.key, tt.value)
			b.Result(b.Do(spec.Add, "tuning", b.Cont.Call(), conf, b.prev()))
			form, err := b.Cont.NS.Sysctl(path)
			b.NoError(err)
			if tt.form != "" && form != tt.form {
				t.Fatalf("the kernel gives back %q, want %q", form, tt.form)
			}
			check := func() error {
				_, err := b.Do(spec.Check, "tuning", b.Cont.Call(), conf, b.prev())
				return err
			}
			b.NoError(check())
			// another plugin of the list with the same record
			b.Result(b.Do(spec.Add, "tuning", b.Cont.Call(), `"sysctl":{"net.ipv4.ip_unprivileged_port_start":"0x50"}`, b.prev()))
			b.NoError(check())
			if tt.form != "" {
				b.NoError(os.WriteFile(filepath.Join(b.Records, record), []byte(`{"network":"net1","containerID":"c1","ifName":"eth0"}`), 0o600))
				b.NoError(check())
			}
			b.NoError(b.Cont.NS.SetSysctl(path, tt.other))
			b.WantError(check(), spec.CodeCheck, tt.key+" is "+tt.value)
			b.Result(b.Do(spec.Del, "tuning", b.Cont.Call(), conf, b.prev()))
			if b.Files() != "" {
				t.Errorf("records after DEL: %s", b.Files())
			}
		})
	}
}

// If the kernel refuses the last attribute, the others are restored.
func TestKernelTuningRefusedByKernel(t *testing.T) {
	b := newFixture(t)
	c := b.veth()
	before := b.state(c)
	for _, keys := range []string{
		`"mac":"02:00:00:00:00:aa","promisc":true,"mtu":2000000000,"sysctl":{"net.ipv4.conf.eth0.arp_filter":"1"}`,
		`"mtu":1400,"sysctl":{"net.ipv4.conf.eth0.arp_filter":"1","net.ipv4.conf.eth0.nonsense":"1"}`,
		`"mtu":1400,"sysctl":{"net.ipv4.conf.eth0.arp_filter":"1","net.ipv4.ip_local_port_range":"nonsense"}`,
	} {
		if _, err := b.Do(spec.Add, "tuning", b.Cont.Call(), keys, b.prev()); err == nil {
			t.Errorf("%s: no error", keys)
		}
		if after := b.state(c); after != before {
			t.Errorf("%s\nbefore %s\nafter  %s", keys, before, after)
		}
	}
	_, err := b.Do(spec.Add, "tuning", b.Cont.Call(), `"mtu":1400`, "")
	b.WantCode(err, spec.CodeConfig)
}

// DEL deletes the record even if the namespace or the link is gone.
func TestKernelTuningDelWithMissingParts(t *testing.T) {
	for name, spoil := range map[string]func(b *fixture, c *rtnl.Conn) spec.Call{
		"no link":         func(b *fixture, c *rtnl.Conn) spec.Call { c.DelLink("eth0"); return b.Cont.Call() },
		"empty netns":     func(b *fixture, c *rtnl.Conn) spec.Call { k := b.Cont.Call(); k.NetNS = ""; return k },
		"missing netns":   func(b *fixture, c *rtnl.Conn) spec.Call { k := b.Cont.Call(); k.NetNS += ".gone"; return k },
		"netns is a file": func(b *fixture, c *rtnl.Conn) spec.Call { k := b.Cont.Call(); k.NetNS = "/etc/hostname"; return k },
		"broken record": func(b *fixture, c *rtnl.Conn) spec.Call {
			os.WriteFile(filepath.Join(b.Records, record), []byte(`{"mtu":`), 0o600)
			return b.Cont.Call()
		},
		"interrupted write": func(b *fixture, c *rtnl.Conn) spec.Call {
			os.Rename(filepath.Join(b.Records, record), filepath.Join(b.Records, record+".tmp"))
			return b.Cont.Call()
		},
		"link in its place": func(b *fixture, c *rtnl.Conn) spec.Call {
			file := filepath.Join(b.Records, record)
			os.Remove(file)
			other := filepath.Join(b.TempDir(), "other.json")
			os.WriteFile(other, []byte(`{"mtu":1300}`), 0o600)
			os.Symlink(other, file)
			return b.Cont.Call()
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			c := b.veth()
			b.Result(b.Do(spec.Add, "tuning", b.Cont.Call(), `"mtu":1400`, b.prev()))
			call := spoil(b, c)
			b.Result(b.Do(spec.Del, "tuning", call, "", ""))
			if b.Files() != "" {
				t.Errorf("files left: %s", b.Files())
			}
			if l, err := c.Link("eth0"); err == nil && l.MTU == 1300 {
				t.Error("a record was read through a link")
			}
			b.Result(b.Do(spec.Del, "tuning", call, `"mtu":"nonsense"`, ""))
		})
	}
}

// DEL restores from a record of the reference, which has no owner, and GC keeps it. GC deletes the
// records of stale attachments of the network.
func TestKernelTuningRecords(t *testing.T) {
	b := newFixture(t)
	c := b.veth()
	if err := os.MkdirAll(b.Records, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"c1_eth0.json": `{"mac":"02:00:00:00:00:0b","promisc":true,"mtu":1280,"allmulti":true,"txQLen":5}`,
		"c2_eth0.json": `{"network":"net1","containerID":"c2","ifName":"eth0","mtu":1500}`,
		"c3_eth0.json": `{"network":"net1","containerID":"c3","ifName":"eth0","mtu":1500}`,
		"c4_eth0.json": `{"network":"net2","containerID":"c4","ifName":"eth0","mtu":1500}`,
		"other":        `not ours`,
	} {
		if err := os.WriteFile(filepath.Join(b.Records, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.Result(b.Do(spec.GC, "tuning", spec.Call{}, `"cni.dev/valid-attachments":[{"containerID":"c3","ifname":"eth0"}]`, ""))
	if got := b.Files(); got != "c1_eth0.json c3_eth0.json c4_eth0.json other" {
		t.Errorf("after GC: %s", got)
	}
	b.Result(b.Do(spec.Del, "tuning", b.Cont.Call(), "", b.prev())) // prevResult identifies the interface
	if got := b.state(c); !strings.HasPrefix(got, "mac 02:00:00:00:00:0b promisc true mtu 1280 allmulti true txqlen 5 ") {
		t.Errorf("after DEL: %s", got)
	}
	b.Result(b.Do(spec.Status, "tuning", spec.Call{}, tuneAll, ""))
	b.Records = filepath.Join(b.Records, "other")
	if _, err := b.Do(spec.Status, "tuning", spec.Call{}, tuneAll, ""); err == nil || spec.AsError(err).Code != spec.CodeNotReady {
		t.Errorf("STATUS with a file for a directory: %v", err)
	}
	if _, err := b.Do(spec.Add, "tuning", b.Cont.Call(), tuneAll, b.prev()); err == nil {
		t.Error("ADD with a file for a directory")
	}

	// The reference leaves an empty record if the disk is full.
	b.Records = t.TempDir()
	if err := os.WriteFile(filepath.Join(b.Records, "c1_eth0.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.Result(b.Do(spec.Add, "tuning", b.Cont.Call(), `"mtu":1400`, b.prev()))
	b.Result(b.Do(spec.Del, "tuning", b.Cont.Call(), "", ""))
	if got := b.state(c); !strings.Contains(got, " mtu 1280 ") || b.Files() != "" {
		t.Errorf("after ADD on an empty record, and DEL: %s", got)
	}
}

// In the reference the name of a record does not include the network. If that file belongs to
// another network or to an earlier version, the attachment uses its own name. DEL restores from
// either.
func TestKernelTuningRecordOfOtherNetwork(t *testing.T) {
	own := spec.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}.Key() + ".json"
	for name, files := range map[string]map[string]string{
		"other network's": {record: `{"network":"net2","containerID":"c1","ifName":"eth0","mtu":1280}`},
		"earlier version": {own: `{"network":"net1","containerID":"c1","ifName":"eth0","mac":"02:00:00:00:00:02"}`},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			c := b.veth()
			b.NoError(os.MkdirAll(b.Records, 0o700))
			stays := ""
			for file, text := range files {
				b.NoError(os.WriteFile(filepath.Join(b.Records, file), []byte(text), 0o600))
				if file == record {
					stays = file
				}
			}
			before, _, _ := strings.Cut(b.state(c), " files ")
			b.Result(b.Do(spec.Add, "tuning", b.Cont.Call(), `"mtu":1400`, b.prev()))
			if got := strings.Fields(b.Files()); !slices.Contains(got, own) || len(got) != len(strings.Fields(stays))+1 {
				t.Errorf("after ADD: %q", got)
			}
			b.Result(b.Do(spec.Del, "tuning", b.Cont.Call(), "", b.prev()))
			if got := b.state(c); got != before+" files "+stays {
				t.Errorf("after DEL: %s, want %s", got, before)
			}
		})
	}
}

// A value that the kernel refuses is a configuration error with the interface's name, or with the
// key as it was written, and nothing is changed.
func TestKernelTuningInvalidValues(t *testing.T) {
	for keys, want := range map[string]string{
		`"mtu":67`:    "eth0 does not take what is configured for it",
		`"mtu":70000`: "eth0 does not take what is configured for it",
		`"sysctl":{"net.ipv4.conf.IFNAME.nonsense":"1"}`:   "net.ipv4.conf.IFNAME.nonsense is misspelled",
		`"sysctl":{"net.core.netdev_budget":"1"}`:          "the whole host's",
		`"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"x"}`: "does not take this value for net.ipv4.conf.IFNAME.arp_filter",
	} {
		w := applettest.NewVeth(t)
		before := w.State()
		_, err := w.Do(spec.Add, "tuning", w.Cont.Call(), keys, w.PrevResult("[]"))
		w.WantError(err, spec.CodeConfig, want)
		if after := w.State(); after != before {
			t.Errorf("%s changed\n%s", keys, kerneltest.Diff(before, after))
		}
	}
}

// While the interface exists, GET returns a result from ADD to DEL for any setting, also for
// sysctls, which DEL does not restore. If nothing is configured, GET returns it after DEL too.
func TestKernelTuningGetAfterDel(t *testing.T) {
	for keys, settings := range map[string]bool{
		`"sysctl":{"net.ipv4.ip_local_port_range":"2000 3000"}`: true,
		`"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}`:      true,
		`"mtu":1500`: true,
		`"args":{"cni":{"sysctl":{"net.ipv4.conf.lo.log_martians":"0"}}}`: true,
		"": false,
	} {
		t.Run(keys, func(t *testing.T) {
			b := newFixture(t)
			b.veth()
			if _, err := b.Do(spec.Get, "tuning", b.Cont.Call(), keys, b.prev()); settings && (err == nil || spec.AsError(err).Code != spec.CodeUnknown) {
				t.Errorf("GET before ADD: %v", err)
			}
			b.Result(b.Do(spec.Add, "tuning", b.Cont.Call(), keys, b.prev()))
			if got := b.Files() != ""; got != settings {
				t.Errorf("records after ADD: %q", b.Files())
			}
			b.Result(b.Do(spec.Get, "tuning", b.Cont.Call(), keys, b.prev()))
			b.Result(b.Do(spec.Del, "tuning", b.Cont.Call(), keys, b.prev()))
			if b.Files() != "" {
				t.Errorf("records after DEL: %s", b.Files())
			}
			_, err := b.Do(spec.Get, "tuning", b.Cont.Call(), keys, b.prev())
			switch {
			case !settings && err != nil:
				t.Errorf("GET after DEL of nothing: %v", err)
			case settings && (err == nil || spec.AsError(err).Code != spec.CodeUnknown || !strings.Contains(err.Error(), "no attachment net1/c1/eth0 is known")):
				t.Errorf("GET after DEL: %v, want code %d", err, spec.CodeUnknown)
			}
		})
	}
}

// A record for sysctls only has the namespace as well, by which gc detects that the
// attachment is alive.
func TestKernelTuningRecordOfSettings(t *testing.T) {
	b := newFixture(t)
	c := b.veth()
	b.Result(b.Do(spec.Add, "tuning", b.Cont.Call(), `"sysctl":{"net.ipv4.ip_local_port_range":"2000 3000"}`, b.prev()))
	raw, err := os.ReadFile(filepath.Join(b.Records, record))
	b.NoError(err)
	var rec struct{ Cookie uint64 }
	b.NoError(json.Unmarshal(raw, &rec))
	if cookie, err := c.NSCookie(); err != nil || rec.Cookie != cookie {
		t.Errorf("got %s, want the cookie %d (%v)", raw, cookie, err)
	}
}
