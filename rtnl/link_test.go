package rtnl_test

import (
	"bytes"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
)

// create creates a link, which must succeed. It skips the test if the kernel lacks the link type.
func create(t *testing.T, c *rtnl.Conn, s rtnl.LinkSpec) *rtnl.Link {
	t.Helper()
	l, err := c.CreateLink(s)
	if errors.Is(err, unix.EOPNOTSUPP) {
		kerneltest.Need(t, "link type of "+s.Name, func() error { return err })
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
}

// A veth pair with all attributes is made by one message: the host-side veth as a port of a bridge,
// the peer in another namespace. The peer is not up, since the kernel refuses that.
func TestKernelVethInOneSend(t *testing.T) {
	host, cont := kerneltest.NS(t), kerneltest.NS(t)
	h, c := kerneltest.Dial(t, host), kerneltest.Dial(t, cont)
	br := create(t, h, rtnl.LinkSpec{Name: "cni0", Kind: rtnl.Bridge{}, Up: true})
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	port := create(t, h, rtnl.LinkSpec{
		Name: "port0", Master: br.Index, Up: true, MTU: 1400, TxQLen: new(0),
		Peer: &rtnl.LinkSpec{Name: "eth0", NS: cont, MTU: 1300, MAC: mac, TxQLen: new(77), Up: true},
	})
	eth, err := c.Link("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if port.Kind != "veth" || port.Master != br.Index || !port.Up || port.MTU != 1400 || port.TxQLen != 0 ||
		port.Parent != eth.Index || !port.PeerNS {
		t.Errorf("host end: got %+v", port)
	}
	if eth.MTU != 1300 || !bytes.Equal(eth.MAC, mac) || eth.TxQLen != 77 || eth.Up || eth.Parent != port.Index {
		t.Errorf("container end: got %+v", eth)
	}
	if _, err := h.Link("eth0"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the container end is on the host: %v", err)
	}
}

// Peer reports that the peer is gone as soon as its namespace ends, although the kernel deletes the
// link later.
func TestKernelPeerGone(t *testing.T) {
	host := kerneltest.NS(t)
	h := kerneltest.Dial(t, host)
	cont := kerneltest.NS(t)
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	port := create(t, h, rtnl.LinkSpec{Name: "port0", Peer: &rtnl.LinkSpec{Name: "eth0", NS: cont, MAC: mac}})
	pair := create(t, h, rtnl.LinkSpec{Name: "a", Peer: &rtnl.LinkSpec{Name: "b", MAC: mac}})
	for _, l := range []*rtnl.Link{port, pair} {
		peer, err := h.Peer(l)
		if err != nil || !bytes.Equal(peer.MAC, mac) || peer.Parent != l.Index {
			t.Errorf("%s: %+v, %v", l.Name, peer, err)
		}
	}
	cont.Close()
	_, err := h.Peer(port)
	wantErr(t, err, os.ErrNotExist)
}

func TestKernelPairInOneNamespace(t *testing.T) {
	c := kerneltest.Dial(t, kerneltest.NS(t))
	a := create(t, c, rtnl.LinkSpec{Name: "a", Peer: &rtnl.LinkSpec{Name: "b"}})
	b, err := c.Link("b")
	if err != nil {
		t.Fatal(err)
	}
	if a.PeerNS || a.LinkNetNSID != -1 || a.Parent != b.Index {
		t.Errorf("got %+v, want the peer #%d here", a, b.Index)
	}
}

func TestKernelKinds(t *testing.T) {
	tests := map[string]struct {
		spec rtnl.LinkSpec
		want rtnl.Kind
	}{
		"bridge":  {rtnl.LinkSpec{Kind: rtnl.Bridge{}}, rtnl.Bridge{}},
		"filters": {rtnl.LinkSpec{Kind: rtnl.Bridge{VLANFiltering: true}}, rtnl.Bridge{VLANFiltering: true}},
		"macvlan": {rtnl.LinkSpec{Kind: rtnl.Macvlan{Mode: rtnl.MacvlanPrivate}, Parent: 50}, rtnl.Macvlan{Mode: rtnl.MacvlanPrivate, BCQueueLen: 1000}},
		"queue":   {rtnl.LinkSpec{Kind: rtnl.Macvlan{Mode: rtnl.MacvlanBridge, BCQueueLen: 77}, Parent: 50}, rtnl.Macvlan{Mode: rtnl.MacvlanBridge, BCQueueLen: 77}},
		"ipvlan":  {rtnl.LinkSpec{Kind: rtnl.Ipvlan{}, Parent: 50}, rtnl.Ipvlan{}},
		"l3s":     {rtnl.LinkSpec{Kind: rtnl.Ipvlan{Mode: rtnl.IpvlanL3S, Flag: rtnl.IpvlanPrivate}, Parent: 50}, rtnl.Ipvlan{Mode: rtnl.IpvlanL3S, Flag: rtnl.IpvlanPrivate}},
		"vlan":    {rtnl.LinkSpec{Kind: rtnl.Vlan{ID: 42}, Parent: 50}, rtnl.Vlan{ID: 42}},
		"dummy":   {rtnl.LinkSpec{Kind: rtnl.Dummy{}}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := kerneltest.Dial(t, kerneltest.NS(t))
			parent := create(t, c, rtnl.LinkSpec{Name: "low", Index: 50, Peer: &rtnl.LinkSpec{Name: "low1"}})
			tt.spec.Name = "x." + name
			l := create(t, c, tt.spec)
			if m, ok := l.Data.(rtnl.Macvlan); ok && m.BCQueueLen == 0 { // not reported before Linux 5.11
				want := tt.want.(rtnl.Macvlan)
				want.BCQueueLen = 0
				tt.want = want
			}
			if l.Data != tt.want || l.Name != tt.spec.Name {
				t.Errorf("got %+v of %s, want %+v", l.Data, l.Name, tt.want)
			}
			if tt.spec.Parent != 0 && l.Parent != parent.Index {
				t.Errorf("got parent #%d, want #%d", l.Parent, parent.Index)
			}
		})
	}
}

// A macvlan can be created in the container under a name that exists on the host.
func TestKernelMacvlanInContainer(t *testing.T) {
	host, cont := kerneltest.NS(t), kerneltest.NS(t)
	h, c := kerneltest.Dial(t, host), kerneltest.Dial(t, cont)
	low := create(t, h, rtnl.LinkSpec{Name: "eth0", Peer: &rtnl.LinkSpec{Name: "other"}})
	err := h.AddLink(rtnl.LinkSpec{Name: "eth0", NS: cont, Parent: low.Index, Kind: rtnl.Macvlan{Mode: rtnl.MacvlanBridge}})
	if errors.Is(err, unix.EOPNOTSUPP) {
		kerneltest.Need(t, "CONFIG_MACVLAN", func() error { return err })
	}
	if err != nil {
		t.Fatal(err)
	}
	if l, err := c.Link("eth0"); err != nil || l.Kind != "macvlan" {
		t.Errorf("got %+v, %v", l, err)
	}
}

func TestKernelLinkChange(t *testing.T) {
	ns, other := kerneltest.NS(t), kerneltest.NS(t)
	c, o := kerneltest.Dial(t, ns), kerneltest.Dial(t, other)
	br := create(t, c, rtnl.LinkSpec{Name: "br", Kind: rtnl.Bridge{}})
	l := create(t, c, rtnl.LinkSpec{Name: "a", Peer: &rtnl.LinkSpec{Name: "b"}})
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	err := c.Do(
		rtnl.ChangeLink(l.Index, rtnl.LinkChange{
			MTU: new(1280), MAC: mac, Up: new(true), Promisc: new(true), AllMulti: new(true), ARP: new(false), TxQLen: new(3),
			Alias: new("x"), ARPNotify: new(true), AddrGenModeNone: true, Master: &br.Index,
		}),
		rtnl.ChangeLink(l.Index, rtnl.LinkChange{Hairpin: new(true)}),
		rtnl.ChangeLink(l.Index, rtnl.LinkChange{Isolated: new(true)}))
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.LinkAt(l.Index)
	if err != nil {
		t.Fatal(err)
	}
	if got.MTU != 1280 || !bytes.Equal(got.MAC, mac) || !got.Up || !got.Promisc || !got.AllMulti ||
		got.Flags&unix.IFF_NOARP == 0 || got.TxQLen != 3 || got.Alias != "x" || got.Master != br.Index || !got.Hairpin || !got.Isolated {
		t.Errorf("got %+v", got)
	}
	if v, err := ns.Sysctl("net/ipv4/conf/a/arp_notify"); v != "1" || err != nil {
		t.Errorf("arp_notify: got %q, %v", v, err)
	}
	if addrs, err := c.Addrs(l.Index); len(addrs) != 0 || err != nil {
		t.Errorf("addrgenmode none: got %v, %v", addrs, err)
	}
	// Each change leaves all other settings unchanged.
	if err := c.SetLink(l.Index, rtnl.LinkChange{Promisc: new(false), ARP: new(true), Alias: new("")}); err != nil {
		t.Fatal(err)
	}
	if got, err = c.LinkAt(l.Index); err != nil || got.Promisc || got.Flags&unix.IFF_NOARP != 0 || !got.AllMulti || !got.Up || got.Alias != "" || got.MTU != 1280 {
		t.Errorf("after promisc off: got %+v, %v", got, err)
	}
	if err := c.SetLink(l.Index, rtnl.LinkChange{Master: new(uint32(0)), NS: other, Name: new("moved")}); err != nil {
		t.Fatal(err)
	}
	if got, err := o.Link("moved"); err != nil || got.Master != 0 {
		t.Errorf("moved: got %+v, %v", got, err)
	}
}

func TestKernelLinkNotExist(t *testing.T) {
	c := kerneltest.Dial(t, kerneltest.NS(t))
	for _, name := range []string{"", "none", "sixteen-bytes-xx", strings.Repeat("x", 300)} {
		_, err := c.Link(name)
		wantErr(t, err, os.ErrNotExist)
		if err := c.DelLink(name); err != nil {
			t.Errorf("delete %q: %v", name, err)
		}
	}
	for _, index := range []uint32{0, 4711} {
		_, err := c.LinkAt(index)
		wantErr(t, err, os.ErrNotExist)
		wantErr(t, c.Do(rtnl.DropLink(index)), os.ErrNotExist)
		wantErr(t, c.SetLink(index, rtnl.LinkChange{Up: new(true)}), os.ErrNotExist)
	}
	_, err := c.LinkAt(4711)
	if err == nil || !strings.Contains(err.Error(), "no such") {
		t.Errorf("the kernel's text is lost: %v", err)
	}
}

// Invalid links are refused before a message is sent.
func TestKernelBadLinks(t *testing.T) {
	ns := kerneltest.NS(t)
	c := kerneltest.Dial(t, ns)
	before := kerneltest.Snapshot(t, ns)
	tests := map[string]rtnl.LinkSpec{
		"no kind":        {Name: "x"},
		"no name":        {Kind: rtnl.Bridge{}},
		"template":       {Name: "x%d", Kind: rtnl.Bridge{}},
		"NUL":            {Name: "lo\x00", Kind: rtnl.Bridge{}},
		"16 bytes":       {Name: "sixteen-bytes-xx", Kind: rtnl.Bridge{}},
		"slash":          {Name: "a/b", Kind: rtnl.Bridge{}},
		"dots":           {Name: "..", Kind: rtnl.Bridge{}},
		"peer template":  {Name: "x", Peer: &rtnl.LinkSpec{Name: "y%d"}},
		"peer's master":  {Name: "x", Peer: &rtnl.LinkSpec{Name: "y", Master: 1}},
		"negative MTU":   {Name: "x", Kind: rtnl.Bridge{}, MTU: -1},
		"short MAC":      {Name: "x", Kind: rtnl.Bridge{}, MAC: net.HardwareAddr{1, 2}},
		"negative queue": {Name: "x", Kind: rtnl.Bridge{}, TxQLen: new(-1)},
		"VLAN 65541":     {Name: "x", Kind: rtnl.Vlan{ID: 65541}, Parent: 1},
		"VLAN 5000":      {Name: "x", Kind: rtnl.Vlan{ID: 5000}, Parent: 1},
	}
	for name, s := range tests {
		t.Run(name, func(t *testing.T) {
			if l, err := c.CreateLink(s); err == nil {
				t.Errorf("made %+v", l)
			}
			if got := kerneltest.Snapshot(t, ns); got != before {
				t.Errorf("got\n%s\nwant\n%s", got, before)
			}
		})
	}
}

// CreateLink returns os.ErrExist for an existing link, and does not change it.
func TestKernelCreateLinkFails(t *testing.T) {
	ns := kerneltest.NS(t)
	c := kerneltest.Dial(t, ns)
	spec := rtnl.LinkSpec{Name: "br", Kind: rtnl.Bridge{}}
	br := create(t, c, spec)
	_, err := c.CreateLink(spec)
	wantErr(t, err, os.ErrExist)
	if l, err := c.Link("br"); err != nil || l.Index != br.Index {
		t.Errorf("after EEXIST: got %+v, %v", l, err)
	}
}

func TestKernelLinks(t *testing.T) {
	c := kerneltest.Dial(t, kerneltest.NS(t))
	const pairs = 150 // more than one datagram and one batch have
	ops := make([]rtnl.Op, pairs)
	for i := range ops {
		ops[i] = rtnl.NewLink(rtnl.LinkSpec{Name: "v" + string(rune('a'+i/26)) + string(rune('a'+i%26)), Peer: &rtnl.LinkSpec{}})
	}
	if err := c.Do(ops...); err != nil {
		t.Fatal(err)
	}
	links, err := c.Links()
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, l := range links {
		if len(l.Name) == 3 && l.Kind == "veth" {
			named++
		}
	}
	if named != pairs || len(links) < 2*pairs {
		t.Errorf("got %d links, %d of ours; want %d", len(links), named, pairs)
	}
}

// Changes before a failed one are made, later ones are not.
func TestKernelDoStopsAtFault(t *testing.T) {
	c := kerneltest.Dial(t, kerneltest.NS(t))
	boom := errors.New("boom")
	fault.Hook = func(what string) error {
		if strings.Contains(what, "br1") {
			return boom
		}
		return nil
	}
	defer func() { fault.Hook = nil }()
	var ops []rtnl.Op
	for _, name := range []string{"br0", "br1", "br2"} {
		ops = append(ops, rtnl.NewLink(rtnl.LinkSpec{Name: name, Kind: rtnl.Bridge{}}))
	}
	err := c.Do(ops...)
	wantErr(t, err, boom)
	if want := "link add br1 type bridge: boom"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := c.Link("br0"); err != nil {
		t.Error(err)
	}
	_, err = c.Link("br2")
	wantErr(t, err, os.ErrNotExist)
	_, err = c.CreateLink(rtnl.LinkSpec{Name: "br1", Kind: rtnl.Bridge{}})
	wantErr(t, err, boom)
}

// The error has the text of each failed change. The others are made.
func TestKernelDoJoinsErrors(t *testing.T) {
	c := kerneltest.Dial(t, kerneltest.NS(t))
	err := c.Do(
		rtnl.DropLink(4711),
		rtnl.NewLink(rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{}}),
		rtnl.NewLink(rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{}}))
	wantErr(t, err, os.ErrNotExist)
	wantErr(t, err, os.ErrExist)
	for _, part := range []string{"link delete #4711: no such device", "link add br0 type bridge: file exists"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got %q, want %q in it", err, part)
		}
	}
	if _, err := c.Link("br0"); err != nil {
		t.Error(err)
	}
}

// All errors are reported, even of more messages than are sent at once.
func TestKernelDoReportsAllErrors(t *testing.T) {
	c := kerneltest.Dial(t, kerneltest.NS(t))
	const n = 300
	ops := make([]rtnl.Op, n)
	for i := range ops {
		ops[i] = rtnl.DropLink(uint32(10000 + i))
	}
	err := c.Do(ops...)
	wantErr(t, err, os.ErrNotExist)
	if got := strings.Count(err.Error(), "no such"); got != n {
		t.Errorf("got %d refusals, want %d", got, n)
	}
	if _, err := c.Link("lo"); err != nil {
		t.Errorf("the socket afterwards: %v", err)
	}
	if err := c.Do(); err != nil {
		t.Errorf("nothing to do: %v", err)
	}
}

func TestKernelPortVLANs(t *testing.T) {
	c := kerneltest.Dial(t, kerneltest.NS(t))
	br := create(t, c, rtnl.LinkSpec{Name: "br", Kind: rtnl.Bridge{}})
	port := create(t, c, rtnl.LinkSpec{Name: "p", Master: br.Index, Peer: &rtnl.LinkSpec{}})
	kerneltest.Need(t, "CONFIG_BRIDGE_VLAN_FILTERING", func() error {
		err := c.SetLink(br.Index, rtnl.LinkChange{VLANFiltering: new(true)})
		if err != nil { // and a port returns the same error
			wantErr(t, c.Do(rtnl.NewPortVLANs(port.Index, []rtnl.VLANRange{{From: 5}})), unix.EOPNOTSUPP)
		}
		return err
	})
	if l, err := c.LinkAt(br.Index); err != nil || !l.VLANFiltering {
		t.Fatalf("got %+v, %v; want a bridge that filters", l, err)
	}
	all := []rtnl.VLANRange{{From: 1, To: 1, PVID: true, Untagged: true}, {From: 10, To: 20}, {From: 4094, To: 4094}}
	steps := []struct {
		op   rtnl.Op
		want []rtnl.VLANRange
	}{
		{rtnl.NewPortVLANs(port.Index, all[1:]), all},
		{rtnl.DropPortVLANs(port.Index, all[:2]), all[2:]},
		{rtnl.DropPortVLANs(port.Index, []rtnl.VLANRange{{From: 4094}}), nil},
	}
	for _, step := range steps {
		if err := c.Do(step.op); err != nil {
			t.Fatal(err)
		}
		got, err := c.PortVLANs(port.Index)
		if err != nil || !slices.Equal(got, step.want) {
			t.Errorf("after %s: got %+v, %v; want %+v", step.op, got, err, step.want)
		}
	}
}
