package firewall_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/dbus/dbustest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A fixture is a host with bridge br0 and containers c1 and c2, which share a namespace.
type fixture struct {
	*applettest.Host
	Cont applettest.Container
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	h := applettest.NewHost(t)
	kerneltest.AddLink(t, h.NS, rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{}})
	return fixture{h, h.Container("c1")}
}

// result returns the result of bridge for container h.
func (w fixture) result(h int) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"br0"},{"name":"veth%d"},{"name":"eth0","sandbox":%q}],
		"ips":[{"address":"10.9.0.1%d/24","interface":2},{"address":"fd00:9::1%d/64","interface":2}]}`, h, w.Cont.Path, h, h)
}

// verb runs a verb for container h, with keys of the configuration.
func (w fixture) verb(v spec.Verb, h int, keys string) error {
	w.Helper()
	_, err := w.Do(v, "firewall", w.callOf(h), keys, w.result(h))
	return err
}

func (w fixture) callOf(h int) spec.Call {
	return spec.Call{ContainerID: fmt.Sprint("c", h), IfName: "eth0", NetNS: w.Cont.Path}
}

func (w fixture) rules() string {
	w.Helper()
	return nfttest.Ruleset(w.T, w.NS)
}

// owned lists the elements of c1 and c2.
func (w fixture) owned() string {
	w.Helper()
	var all []string
	for h := 1; h <= 2; h++ {
		o := spec.Attachment{Network: "net1", ContainerID: fmt.Sprint("c", h), IfName: "eth0"}
		elements, err := nft.Open(w.NS).Owned(o)
		w.NoError(err)
		for _, e := range elements {
			all = append(all, fmt.Sprintf("c%d %s", h, &e))
		}
	}
	return strings.Join(all, "; ")
}

const isolated = `"backend":"","ingressPolicy":"isolated"`

// On a host with iptables-nft and on one without, CHECK finds and DEL deletes what ADD added, with
// and without prevResult. A second DEL succeeds.
func TestKernelFirewall(t *testing.T) {
	for name, iptables := range map[string]bool{"nftables alone": false, "FORWARD drops": true} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			if iptables {
				w.Tool("", "iptables-nft", "-P", "FORWARD", "DROP")
				w.Tool("", "ip6tables-nft", "-P", "FORWARD", "DROP")
			}
			none := w.rules()
			w.Result(w.Do(spec.Status, "firewall", spec.Call{}, isolated, ""))
			if err := w.verb(spec.Check, 1, isolated); err == nil || spec.AsError(err).Code != spec.CodeCheck {
				t.Errorf("CHECK before ADD: %v", err)
			}
			if got := w.rules(); got != none {
				t.Errorf("STATUS or CHECK changed\n%s\nto\n%s", none, got)
			}
			w.NoError(w.verb(spec.Add, 2, isolated))
			before := w.rules()
			for _, prev := range []string{w.result(1), ""} {
				w.NoError(w.verb(spec.Add, 1, isolated))
				w.NoError(w.verb(spec.Add, 1, isolated)) // again without DEL
				w.NoError(w.verb(spec.Check, 1, isolated))
				want := "c1 allow 10.9.0.11; c1 allow fd00:9::11; c1 managed_by br0; c1 isolated_by br0; c1 enlisted; c2 "
				if got := w.owned(); !strings.HasPrefix(got, want) {
					t.Errorf("got %s\nwant %s…", got, want)
				}
				for range 2 {
					w.Result(w.Do(spec.Del, "firewall", spec.Call{ContainerID: "c1", IfName: "eth0"}, "", prev))
					if got := w.rules(); got != before {
						t.Errorf("after DEL\n%s\nwant\n%s", got, before)
					}
				}
				w.NoError(w.verb(spec.Check, 2, isolated))
			}
			w.Result(w.Do(spec.GC, "firewall", spec.Call{}, `"cni.dev/valid-attachments":[]`, ""))
			if got := w.owned(); got != "" {
				t.Errorf("after GC: %s", got)
			}
			if got := w.rules(); strings.Contains(got, "br0") || strings.Contains(got, "0a09000") {
				t.Errorf("after GC:\n%s", got)
			}
		})
	}
}

// A policy applies to the container's bridge, and not to an interface of the same name in the
// container.
func TestKernelFirewallBridge(t *testing.T) {
	w := newFixture(t)
	host := kerneltest.Dial(t, w.NS)
	w.NoError(host.AddLink(rtnl.LinkSpec{Name: "eth0", Kind: rtnl.Bridge{}}))
	w.NoError(host.AddLink(rtnl.LinkSpec{Name: "up0", Peer: &rtnl.LinkSpec{Name: "up1"}}))
	inside := fmt.Sprintf(`{"name":"eth0","sandbox":%q}`, w.Cont.Path)
	for name, interfaces := range map[string]string{"macvlan": inside, "ptp": `{"name":"up0"},` + inside, "gone": `{"name":"br9"},` + inside} {
		prev := `{"cniVersion":"1.1.0","interfaces":[` + interfaces + `],"ips":[{"address":"10.9.0.11/24"}]}`
		_, err := w.Do(spec.Add, "firewall", w.callOf(1), isolated, prev)
		if err == nil || spec.AsError(err).Code != spec.CodeConfig || !strings.Contains(err.Error(), "no bridge of the host") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := w.rules(); got != "" {
		t.Errorf("a refused ADD made\n%s", got)
	}
	prev := `{"cniVersion":"1.1.0","interfaces":[` + inside + `,{"name":"up0"},{"name":"br0"},{"name":"veth1"}],"ips":[{"address":"10.9.0.11/24"}]}`
	w.Result(w.Do(spec.Add, "firewall", w.callOf(1), isolated, prev))
	if got, want := w.owned(), "; c1 managed_by br0; c1 isolated_by br0; c1 enlisted"; !strings.HasSuffix(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A second ADD replaces the elements of the first, and keeps those of others.
func TestKernelFirewallAddAgain(t *testing.T) {
	w := newFixture(t)
	w.Tool("", "iptables-nft", "-P", "FORWARD", "DROP")
	w.NoError(w.verb(spec.Add, 2, isolated))
	two := w.owned()
	w.NoError(w.verb(spec.Add, 1, isolated))
	w.NoError(w.verb(spec.Add, 1, ""))
	if got, want := w.owned(), "c1 allow 10.9.0.11; c1 allow fd00:9::11; c1 enlisted; "+two; got != want {
		t.Errorf("from isolated to open: got %s\nwant %s", got, want)
	}
	moved := strings.NewReplacer("10.9.0.11", "10.9.0.77", "fd00:9::11", "fd00:9::77").Replace(w.result(1))
	w.Result(w.Do(spec.Add, "firewall", w.callOf(1), "", moved))
	if got, want := w.owned(), "c1 allow 10.9.0.77; c1 allow fd00:9::77; c1 enlisted; "+two; got != want {
		t.Errorf("another address: got %s\nwant %s", got, want)
	}
	if got := w.Tool("", "iptables-nft", "-S", "CNI-FORWARD"); strings.Contains(got, "10.9.0.11") {
		t.Errorf("of the old address stayed\n%s", got)
	}
	w.NoError(w.verb(spec.Check, 2, isolated))
	socket := dbustest.Bus(t)
	f := dbustest.Start(t, socket)
	keys := `"backend":"firewalld","dbusSocket":"` + socket + `"`
	w.NoError(w.verb(spec.Add, 1, keys))
	w.Result(w.Do(spec.Add, "firewall", w.callOf(1), keys, moved))
	if got := w.owned() + "; " + f.Sources(); got != "c1 zone of firewalld for 10.9.0.77; c1 zone of firewalld for fd00:9::77; c1 enlisted; "+two+"; trusted 10.9.0.77/32, trusted fd00:9::77/128" {
		t.Errorf("another address in firewalld: got %s", got)
	}
}

// CHECK of an isolated container accepts a host interface, added to the result by a later plugin,
// that is not a port of the bridge, such as the IFB of bandwidth.
func TestKernelFirewallCheckWithLaterInterface(t *testing.T) {
	w := newFixture(t)
	host := kerneltest.Dial(t, w.NS)
	w.NoError(host.AddLink(rtnl.LinkSpec{Name: "veth1", Master: kerneltest.Link(t, host, "br0").Index, Peer: &rtnl.LinkSpec{Name: "peer1"}}))
	w.NoError(host.AddLink(rtnl.LinkSpec{Name: "bwp0", Peer: &rtnl.LinkSpec{Name: "bwp1"}}))
	w.NoError(w.verb(spec.Add, 1, isolated))
	later := strings.Replace(w.result(1), `"interfaces":[`, `"interfaces":[{"name":"bwp0"},`, 1)
	later = strings.ReplaceAll(later, `"interface":2`, `"interface":3`)
	w.Result(w.Do(spec.Check, "firewall", w.callOf(1), isolated, later))
	if !kerneltest.Link(t, host, "veth1").Isolated {
		t.Error("the port is not isolated")
	}
	off := false
	w.NoError(host.SetLink(kerneltest.Link(t, host, "veth1").Index, rtnl.LinkChange{Isolated: &off}))
	_, err := w.Do(spec.Check, "firewall", w.callOf(1), isolated, later)
	if err == nil || spec.AsError(err).Code != spec.CodeCheck || !strings.Contains(err.Error(), "port isolation of veth1 is off") {
		t.Errorf("CHECK of a port that is not isolated: %v", err)
	}
}

// Two networks may have containers with the same addresses, with either backend: the accept rules and the zone are
// those of the last ADD, and DEL and GC of the other leave them. After DEL of the last, RESTORE of the other adds them.
func TestKernelFirewallTwoNetworks(t *testing.T) {
	w, socket := newFixture(t), dbustest.Bus(t)
	f := dbustest.Start(t, socket)
	w.Tool("", "iptables-nft", "-P", "FORWARD", "DROP")
	for _, keys := range []string{"", `,"backend":"firewalld","dbusSocket":"` + socket + `"`} {
		run := func(v spec.Verb, network, more string) {
			t.Helper()
			w.Result(w.Do(v, "firewall", w.callOf(1), `"name":"`+network+`"`+keys+more, w.result(1)))
		}
		run(spec.Add, "net2", "")
		run(spec.Del, "net2", "")
		none := w.rules()
		run(spec.Add, "net1", "")
		run(spec.Add, "net2", "")
		run(spec.Check, "net1", "")
		run(spec.Check, "net2", "")
		run(spec.Del, "net2", "")
		_, err := w.Do(spec.Check, "firewall", w.callOf(1), `"name":"net1"`+keys, w.result(1))
		w.WantCode(err, spec.CodeCheck)
		run(spec.Restore, "net1", "")
		run(spec.Check, "net1", "")
		run(spec.Add, "net2", "")
		run(spec.Del, "net1", "")
		run(spec.Check, "net2", "")
		run(spec.Add, "net1", "")
		run(spec.GC, "net2", `,"cni.dev/valid-attachments":[]`)
		run(spec.Check, "net1", "")
		run(spec.Del, "net1", "")
		if got := w.rules() + f.Sources(); got != none {
			t.Errorf("%s: left behind\n%s", keys, kerneltest.Diff(none, got))
		}
	}
}

// Isolated containers in a VLAN reach their gateway, which is a port of the bridge, and a port that
// is not isolated, but not each other, neither through the bridge nor through the gateway. The
// bridge here has no VLANs, since some kernels lack them.
func TestKernelFirewallVLAN(t *testing.T) {
	h := applettest.NewHost(t)
	conf := strings.Replace(applettest.GatewayConf, `"isDefaultGateway":true,"ipMasq":true,`, "", 1)
	one, two, open := h.Container("one"), h.Container("two"), h.Container("open")
	h.Listen(h.NS, "gateway")
	var results []string
	var detours []func() error
	for i, p := range []applettest.Container{two, one} {
		results = append(results, h.Must(spec.Add, "bridge", conf, p))
		h.Listen(p.NS, p.ID)
		c := kerneltest.Dial(t, p.NS)
		other := netip.MustParsePrefix([]string{"10.1.0.3/32", "10.1.0.2/32"}[i])
		detour := rtnl.Route{Dst: other, GW: netip.MustParseAddr("10.1.0.1"), Link: kerneltest.Link(t, c, "eth0").Index}
		detours = append(detours, func() error { return c.AddRoute(detour) })
	}
	h.Must(spec.Add, "bridge", conf, open)
	h.Listen(open.NS, open.ID)
	host, up := kerneltest.Dial(t, h.NS), true
	port := rtnl.LinkSpec{Name: "gwport", Master: kerneltest.Link(t, host, "br0").Index, Up: true, Peer: &rtnl.LinkSpec{Name: "br0.100"}}
	l, err := host.CreateLink(port)
	err = errors.Join(err, host.SetLink(l.Parent, rtnl.LinkChange{Up: &up}), h.NS.SetSysctls(
		netns.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}, netns.Sysctl{Key: "net/ipv4/conf/br0/arp_ignore", Value: "1"}),
		host.AddAddr(l.Parent, rtnl.Addr{Prefix: netip.MustParsePrefix("10.1.0.1/24")}))
	if err != nil {
		t.Fatal(err)
	}
	if who := h.Who(one.NS, "10.1.0.2", applettest.Timeout); who != "two" {
		t.Errorf("before the policy: got %q, want two", who)
	}
	for i, p := range []applettest.Container{two, one} {
		result := strings.Replace(results[i], `"interfaces": [`, `"interfaces": [{"name":"br0"},{"name":"br0.100"},`, 1)
		firewall := applettest.Prev(`{"cniVersion":"1.1.0","name":"demo","type":"firewall","ingressPolicy":"isolated"}`, result)
		h.Must(spec.Add, "firewall", firewall, p)
		h.Must(spec.Check, "firewall", firewall, p)
		h.Must(spec.Check, "bridge", applettest.Prev(conf, results[i]), p)
	}
	bridged := netns.Sysctl{Key: "net/bridge/bridge-nf-call-iptables", Value: "1", Optional: true}
	for _, change := range []func() error{
		func() error { return h.NS.SetSysctls(bridged) }, // bridged frames pass the host's rules
		detours[0], detours[1],
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		for addr, who := range map[string]string{"10.1.0.1": "gateway", "10.1.0.4": "open"} {
			if got := h.Who(one.NS, addr, applettest.Timeout); got != who {
				t.Errorf("%q answers for %s", got, who)
			}
		}
		for addr, from := range map[string]applettest.Container{"10.1.0.2": one, "10.1.0.3": two} {
			if who := h.Who(from.NS, addr, 150*time.Millisecond); who != "" {
				t.Errorf("%s reaches %s", from.ID, who)
			}
		}
	}
}

// A late DEL of the former owner of an address keeps the rules of the new owner, which DEL of the
// reference deletes.
func TestKernelFirewallLateDel(t *testing.T) {
	w := newFixture(t)
	w.Tool("", "iptables-nft", "-P", "FORWARD", "DROP")
	w.NoError(w.verb(spec.Add, 1, ""))
	_, err := w.Do(spec.Add, "firewall", w.callOf(2), "", w.result(1)) // the same addresses
	w.NoError(err)
	rules := func() string { // without the element that records the first as an owner
		before, rest, _ := strings.Cut(w.rules(), "\tset enlisted {")
		enlisted, after, _ := strings.Cut(rest, "\n\t}\n")
		return before + after + fmt.Sprint("second enlisted: ", strings.Contains(enlisted, "/c2/"))
	}
	before := rules()
	w.NoError(w.verb(spec.Del, 1, ""))
	if got := rules(); got != before {
		t.Errorf("a late DEL changed\n%s\nto\n%s", before, got)
	}
	w.Result(w.Do(spec.GC, "firewall", spec.Call{}, `"cni.dev/valid-attachments":[{"containerID":"c2","ifname":"eth0"}]`, ""))
	if got := rules(); got != before {
		t.Errorf("GC changed\n%s\nto\n%s", before, got)
	}
}

// A refused ADD changes nothing, and DEL succeeds.
func TestKernelFirewallInvalidConf(t *testing.T) {
	w := newFixture(t)
	for _, keys := range []string{`"ingressPolicy":"closed"`, `"backend":"ipfw"`} {
		if err := w.verb(spec.Add, 1, keys); err == nil || spec.AsError(err).Code != spec.CodeConfig {
			t.Errorf("%s: %v", keys, err)
		}
	}
	_, err := w.Do(spec.Add, "firewall", w.callOf(1), "", "") // without prevResult
	w.WantCode(err, spec.CodeConfig)
	if got := w.rules(); got != "" {
		t.Errorf("a refused ADD made\n%s", got)
	}
	w.NoError(w.verb(spec.Add, 1, isolated))
	w.Result(w.Do(spec.Del, "firewall", w.callOf(1), `"ingressPolicy":"closed","backend":{}`, ""))
	if got := w.owned(); got != "" {
		t.Errorf("after DEL: %s", got)
	}
}

// ADD leaves nothing, whichever call firewalld fails. TestKernelRollback makes the plugin's own
// changes fail.
func TestKernelFirewallRefusedByFirewalld(t *testing.T) {
	socket := dbustest.Bus(t)
	f := dbustest.Start(t, socket)
	keys := `"backend":"firewalld","ingressPolicy":"isolated","dbusSocket":"` + socket + `"`
	w := newFixture(t)
	w.NoError(w.verb(spec.Add, 2, keys))
	state := func() string { return w.rules() + f.Sources() + kerneltest.Snapshot(t, w.NS) }
	before := state()
	add := func() error { return w.verb(spec.Add, 1, keys) }
	for k := 1; k <= 2; k++ { // one call for each address
		f.FailNth(k, "NOT_RUNNING")
		if err := add(); err == nil || state() != before {
			t.Errorf("call %d failed (%v) and left\n%s\nwant\n%s", k, err, state(), before)
		}
	}
	f.Fail("")
	w.NoError(add())
	w.NoError(w.verb(spec.Check, 1, keys))
	w.NoError(w.verb(spec.Del, 1, keys))
	w.NoError(w.verb(spec.Del, 2, keys))
	if got := f.Sources() + w.owned(); got != "" {
		t.Errorf("after DEL: %s", got)
	}
}

// CHECK compares the zone in firewalld. DEL removes only the addresses of its attachment, succeeds
// without firewalld, and keeps the record if a call fails.
func TestKernelFirewallZone(t *testing.T) {
	w, socket := newFixture(t), dbustest.Bus(t)
	keys := `"backend":"firewalld","dbusSocket":"` + socket + `"`
	status := func() error {
		_, err := w.Do(spec.Status, "firewall", spec.Call{}, keys, "")
		return err
	}
	if err := status(); err == nil || spec.AsError(err).Code != spec.CodeNotReady {
		t.Errorf("STATUS without firewalld: %v", err)
	}
	if err := w.verb(spec.Add, 1, keys); err == nil || !strings.Contains(err.Error(), `failed to add the address 10.9.0.11 to zone "trusted"`) {
		t.Errorf("ADD without firewalld: %v", err)
	}
	if got := w.rules(); got != "" {
		t.Errorf("it left\n%s", got)
	}
	f := dbustest.Start(t, socket)
	w.NoError(status())
	w.NoError(w.verb(spec.Add, 1, keys))
	w.NoError(w.verb(spec.Add, 1, keys)) // ZONE_ALREADY_SET
	w.NoError(w.verb(spec.Add, 2, keys+`,"firewalldZone":"public"`))
	w.NoError(w.verb(spec.Check, 1, keys))
	want := "trusted 10.9.0.11/32, trusted fd00:9::11/128, public 10.9.0.12/32, public fd00:9::12/128"
	if got := f.Sources(); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if err := w.verb(spec.Add, 3, keys+`,"firewalldZone":"nowhere"`); err == nil || spec.AsError(err).Code != spec.CodeConfig || !strings.Contains(err.Error(), "INVALID_ZONE") {
		t.Errorf("unknown zone: %v", err)
	}
	f.Fail("ZONE_CONFLICT: already bound to a zone")
	if err := w.verb(spec.Add, 3, keys); err == nil || spec.AsError(err).Code != spec.CodeBusy {
		t.Errorf("address of another zone: %v", err)
	}
	f.Fail("NOT_RUNNING")
	if err := w.verb(spec.Del, 1, keys); err == nil || !strings.Contains(w.owned(), "c1 zone") {
		t.Errorf("DEL that failed: %v; %s", err, w.owned())
	}
	f.Fail("")
	w.Result(w.Do(spec.Del, "firewall", w.callOf(1), keys, "")) // again without addresses
	if got := f.Sources(); got != "public 10.9.0.12/32, public fd00:9::12/128" {
		t.Errorf("after DEL: %s", got)
	}
	f.Reload()
	if err := w.verb(spec.Check, 2, keys+`,"firewalldZone":"public"`); err == nil || !strings.Contains(err.Error(), "is not in zone") {
		t.Errorf("CHECK after a reload: %v", err)
	}
	w.NoError(w.verb(spec.Add, 1, keys))
	f.Stop()
	kerneltest.Eventually(t, "firewalld gone from the bus", func() error {
		if status() == nil {
			return errors.New("firewalld is still on the bus")
		}
		return nil
	})
	w.NoError(w.verb(spec.Del, 1, keys))
	w.Result(w.Do(spec.GC, "firewall", spec.Call{}, `"cni.dev/valid-attachments":[],`+keys, ""))
	if got := w.owned(); got != "" {
		t.Errorf("after GC: %s", got)
	}
}

// GC removes the addresses of stale attachments from the zone. Those of the reference are removed
// by DEL with prevResult.
func TestKernelFirewallZoneGC(t *testing.T) {
	w, socket := newFixture(t), dbustest.Bus(t)
	f := dbustest.Start(t, socket)
	keys := `"backend":"firewalld","dbusSocket":"` + socket + `"`
	w.NoError(w.verb(spec.Add, 1, keys))
	w.NoError(w.verb(spec.Add, 2, keys))
	w.Result(w.Do(spec.GC, "firewall", spec.Call{}, `"cni.dev/valid-attachments":[{"containerID":"c2","ifname":"eth0"}],`+keys, ""))
	if got := f.Sources() + w.owned(); !strings.HasPrefix(got, "trusted 10.9.0.12/32, trusted fd00:9::12/128c2 ") {
		t.Errorf("after GC: %s", got)
	}
	w.Result(w.Do(spec.Del, "firewall", w.callOf(1), keys, w.result(2))) // addresses of another attachment
	if got := f.Sources(); got != "trusted 10.9.0.12/32, trusted fd00:9::12/128" {
		t.Errorf("a late DEL left %s", got)
	}
	w.Tool("", "nft", "delete", "table", "inet", "cnibox") // as with addresses from the reference
	w.NoError(w.verb(spec.Del, 2, keys))
	if got := f.Sources(); got != "" {
		t.Errorf("the reference's stayed: %s", got)
	}
}
