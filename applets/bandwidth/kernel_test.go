package bandwidth_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nlconn"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

const (
	ifbOfC1    = "bwpc2d892b58e87" // by the reference, from net1 and c1
	ownIFBOfC1 = "bwp294f9e4a4bb0" // by cnibox, also from eth0
)

// shaping returns the lines of the host's snapshot with qdiscs and redirects.
func shaping(w *applettest.Veth) string {
	w.Helper()
	var out []string
	for line := range strings.Lines(kerneltest.Snapshot(w.T, w.NS)) {
		if strings.HasPrefix(line, "qdisc") || strings.HasPrefix(line, "redirect") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

func TestKernelBandwidth(t *testing.T) {
	applettest.NeedShaping(t)
	w := applettest.NewVeth(t)
	before := w.State()
	keys := `"ingressRate":8000000,"ingressBurst":800000,"egressRate":16000000,"egressBurst":1600000,"latency":50`
	res := w.Result(w.Do(spec.Add, "bandwidth", w.Cont.Call(), keys, w.PrevResult("[]")))
	last := res.Interfaces[len(res.Interfaces)-1]
	ifb, err := w.HostConn.Link(last.Name)
	w.NoError(err)
	if len(res.Interfaces) != 3 || last.MAC != ifb.MAC.String() || last.Sandbox != "" || ifb.Kind != "ifb" || !ifb.Up || ifb.MTU != 1500 ||
		ifb.TxQLen != 0 || !strings.HasSuffix(ifb.Alias, " net1/c1/eth0") {
		t.Errorf("result %+v, link %+v", res.Interfaces, ifb)
	}
	want := "qdisc " + ifb.Name + " tbf 2000000 bytes/s, burst 200000, limit 300000\n" +
		"qdisc host0 ingress\nqdisc host0 tbf 1000000 bytes/s, burst 100000, limit 150000\nredirect host0 to " + ifb.Name + "\n"
	if got := shaping(w); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	w.Result(w.Do(spec.Check, "bandwidth", w.Cont.Call(), keys, w.PrevResult("[]")))

	// A second ADD replaces the limits; the reference fails.
	w.Result(w.Do(spec.Add, "bandwidth", w.Cont.Call(), keys, w.PrevResult("[]")))
	if got := shaping(w); got != want {
		t.Errorf("again: got\n%swant\n%s", got, want)
	}
	slower := strings.Replace(keys, "16000000", "8000000", 1)
	w.Result(w.Do(spec.Add, "bandwidth", w.Cont.Call(), slower, w.PrevResult("[]")))
	w.Result(w.Do(spec.Check, "bandwidth", w.Cont.Call(), slower, w.PrevResult("[]")))
	_, err = w.Do(spec.Check, "bandwidth", w.Cont.Call(), keys, w.PrevResult("[]"))
	w.WantError(err, spec.CodeCheck, "Rate doesn't match")

	// DEL without prevResult and with an invalid rate, then a second DEL
	w.Result(w.Do(spec.Del, "bandwidth", w.Cont.Call(), `"ingressRate":7`, ""))
	if after := w.State(); after != before {
		t.Errorf("after DEL:\n%s", kerneltest.Diff(before, after))
	}
	w.Result(w.Do(spec.Del, "bandwidth", w.Cont.Call(), keys, w.PrevResult("[]")))
}

// A second ADD removes the limit of a direction without one.
func TestKernelBandwidthAddWithFewerLimits(t *testing.T) {
	applettest.NeedShaping(t)
	for keys, want := range map[string]string{
		`"ingressRate":8000000`: "qdisc host0 tbf 1000000 bytes/s, burst 65536, limit 90536\n",
		`"egressRate":8000000`:  "qdisc " + ifbOfC1 + " tbf 1000000 bytes/s, burst 65536, limit 90536\nqdisc host0 ingress\nredirect host0 to " + ifbOfC1 + "\n",
		`"ingressRate":0`:       "",
	} {
		w := applettest.NewVeth(t)
		before := w.State()
		w.Result(w.Do(spec.Add, "bandwidth", w.Cont.Call(), applettest.BothLimits, w.PrevResult("[]")))
		w.Result(w.Do(spec.Add, "bandwidth", w.Cont.Call(), keys, w.PrevResult("[]")))
		if got := shaping(w); got != want {
			t.Errorf("%s: got\n%swant\n%s", keys, got, want)
		}
		w.Result(w.Do(spec.Check, "bandwidth", w.Cont.Call(), keys, w.PrevResult("[]")))
		w.Result(w.Do(spec.Del, "bandwidth", w.Cont.Call(), keys, w.PrevResult("[]")))
		if after := w.State(); after != before {
			t.Errorf("%s: after DEL:\n%s", keys, kerneltest.Diff(before, after))
		}
	}
}

// Two interfaces of a container in one network have an IFB each; in the reference the names
// collide.
func TestKernelBandwidthTwoInterfaces(t *testing.T) {
	applettest.NeedShaping(t)
	w := applettest.NewVeth(t)
	w.AddPair("host1", "eth1")
	second := w.Cont.Call()
	second.IfName = "eth1"
	w.Result(w.Do(spec.Add, "bandwidth", w.Cont.Call(), applettest.BothLimits, w.PrevResult("[]")))
	w.Result(w.Do(spec.Add, "bandwidth", second, applettest.BothLimits, w.PrevResult("[]")))
	w.Result(w.Do(spec.Del, "bandwidth", w.Cont.Call(), applettest.BothLimits, ""))
	w.Result(w.Do(spec.Check, "bandwidth", second, applettest.BothLimits, w.PrevResult("[]")))
	if got := shaping(w); strings.Contains(got, "host0") || strings.Count(got, "\n") != 4 {
		t.Errorf("got\n%s", got)
	}
}

// CHECK reports each missing or different part, and changes nothing.
func TestKernelBandwidthCheck(t *testing.T) {
	applettest.NeedShaping(t)
	tests := map[string]struct {
		spoil func(w *applettest.Veth, ifb *rtnl.Link) rtnl.Op
		want  string
	}{
		"no bucket":        {func(w *applettest.Veth, _ *rtnl.Link) rtnl.Op { return rtnl.DropRootQdisc(w.Host0.Index) }, "Failed to find qdisc: host0"},
		"no bucket of IFB": {func(_ *applettest.Veth, ifb *rtnl.Link) rtnl.Op { return rtnl.DropRootQdisc(ifb.Index) }, "Failed to find qdisc: bwp"},
		"no ingress":       {func(w *applettest.Veth, _ *rtnl.Link) rtnl.Op { return rtnl.DropIngress(w.Host0.Index) }, "Failed to find qdisc: host0 has no ingress qdisc"},
		"no filter":        {func(w *applettest.Veth, _ *rtnl.Link) rtnl.Op { return rtnl.DropRedirects(w.Host0.Index) }, "is not redirected to bwp"},
		"IFB down": {func(_ *applettest.Veth, ifb *rtnl.Link) rtnl.Op {
			return rtnl.ChangeLink(ifb.Index, rtnl.LinkChange{Up: new(false)})
		}, "is down"},
		"IFB gone": {func(_ *applettest.Veth, ifb *rtnl.Link) rtnl.Op { return rtnl.DropLink(ifb.Index) }, "is missing"},
		"other rate of IFB": {func(_ *applettest.Veth, ifb *rtnl.Link) rtnl.Op {
			return rtnl.ReplaceTBF(ifb.Index, rtnl.TBF{Rate: 9, Burst: 65536, Limit: 90536})
		}, "Rate"},
		"other limit": {func(w *applettest.Veth, _ *rtnl.Link) rtnl.Op {
			return rtnl.ReplaceTBF(w.Host0.Index, rtnl.TBF{Rate: 1e6, Burst: 65536, Limit: 9})
		}, "Limit"},
		"other burst": {func(w *applettest.Veth, _ *rtnl.Link) rtnl.Op {
			return rtnl.ReplaceTBF(w.Host0.Index, rtnl.TBF{Rate: 1e6, Burst: 65000, Limit: 90536})
		}, "Buffer"},
		"the container's": {func(w *applettest.Veth, _ *rtnl.Link) rtnl.Op { return rtnl.DropLink(w.Host0.Index) }, "eth0"},
		"unchanged":       {func(*applettest.Veth, *rtnl.Link) rtnl.Op { return rtnl.Op{} }, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := applettest.NewVeth(t)
			w.Result(w.Do(spec.Add, "bandwidth", w.Cont.Call(), applettest.BothLimits, w.PrevResult("[]")))
			ifb, err := w.HostConn.Link(ifbOfC1)
			w.NoError(err)
			w.NoError(w.HostConn.Do(tt.spoil(w, ifb)))
			before := w.State()
			_, err = w.Do(spec.Check, "bandwidth", w.Cont.Call(), applettest.BothLimits, w.PrevResult("[]"))
			if tt.want == "" {
				w.NoError(err)
			} else {
				w.WantError(err, spec.CodeCheck, tt.want)
			}
			if after := w.State(); after != before {
				t.Errorf("CHECK changed something:\n%s", kerneltest.Diff(before, after))
			}
			w.Result(w.Do(spec.Check, "bandwidth", w.Cont.Call(), "", w.PrevResult("[]"))) // without limits nothing is compared
		})
	}
}

func TestKernelBandwidthInvalidConf(t *testing.T) {
	applettest.NeedShaping(t)
	w := applettest.NewVeth(t)
	before := w.State()
	// The reference crashes without a prevResult, even without limits.
	for _, keys := range []string{applettest.BothLimits, ""} {
		_, err := w.Do(spec.Add, "bandwidth", w.Cont.Call(), keys, "")
		w.WantCode(err, spec.CodeConfig)
	}
	_, err := w.Do(spec.Add, "bandwidth", w.Cont.Call(), `"ingressBurst":1`, w.PrevResult("[]"))
	w.WantCode(err, spec.CodeConfig)
	other := w.Cont.Call()
	other.IfName = "lo"
	_, err = w.Do(spec.Add, "bandwidth", other, applettest.BothLimits, w.PrevResult("[]"))
	w.WantError(err, spec.CodeConfig, "no veth peer")
	other.IfName = "eth7"
	_, err = w.Do(spec.Add, "bandwidth", other, applettest.BothLimits, w.PrevResult("[]"))
	w.WantError(err, spec.CodeConfig, "eth7")
	other.NetNS = ""
	_, err = w.Do(spec.Add, "bandwidth", other, applettest.BothLimits, w.PrevResult("[]"))
	w.WantError(err, spec.CodeNetNS, "netns")
	if res := w.Result(w.Do(spec.Add, "bandwidth", w.Cont.Call(), `"egressRate":0`, w.PrevResult("[]"))); len(res.Interfaces) != 2 {
		t.Errorf("no limit: got %+v", res)
	}
	if after := w.State(); after != before {
		t.Errorf("it changed something:\n%s", kerneltest.Diff(before, after))
	}
	w.Result(w.Do(spec.Status, "bandwidth", spec.Call{}, applettest.BothLimits, ""))
	_, err = w.Do(spec.Status, "bandwidth", spec.Call{}, `"latency":-1`, "")
	w.WantError(err, spec.CodeConfig, "latency")
}

// A veth pair between two containers has no end on the host, even if a link of the host has the
// index of the peer.
func TestKernelBandwidthPairOfTwoContainers(t *testing.T) {
	applettest.NeedShaping(t)
	w := applettest.NewVeth(t)
	third := kerneltest.NS(t)
	w.NoError(w.ContConn.AddLink(rtnl.LinkSpec{Name: "eth5", Index: 77, Peer: &rtnl.LinkSpec{Name: "far", NS: third, Index: 88}}))
	fourth := kerneltest.NS(t)
	w.NoError(w.HostConn.AddLink(rtnl.LinkSpec{Name: "near", Index: 88, Peer: &rtnl.LinkSpec{Name: "other", NS: fourth, Index: 77}}))
	call := w.Cont.Call()
	call.IfName = "eth5"
	_, err := w.Do(spec.Add, "bandwidth", call, applettest.BothLimits, w.PrevResult("[]"))
	w.WantError(err, spec.CodeConfig, "no veth peer")
}

// Qdiscs of other programs remain, and the error says what to do.
func TestKernelBandwidthIngressInUse(t *testing.T) {
	applettest.NeedShaping(t)
	w := applettest.NewVeth(t)
	ifb, err := w.HostConn.CreateLink(rtnl.LinkSpec{Name: "ifb9", Kind: rtnl.IFB{}})
	w.NoError(err)
	w.NoError(w.HostConn.Do(rtnl.NewIngress(w.Host0.Index), rtnl.NewRedirect(w.Host0.Index, ifb.Index)))
	before := w.State()
	_, err = w.Do(spec.Add, "bandwidth", w.Cont.Call(), applettest.BothLimits, w.PrevResult("[]"))
	w.WantError(err, spec.CodeBusy, "is redirected")
	if after := w.State(); after != before {
		t.Errorf("it changed something:\n%s", kerneltest.Diff(before, after))
	}
	w.Result(w.Do(spec.Del, "bandwidth", w.Cont.Call(), applettest.BothLimits, ""))
	if after := w.State(); after != before {
		t.Errorf("DEL changed something:\n%s", kerneltest.Diff(before, after))
	}
	// A redirect to a deleted link drops every packet, so it is replaced.
	w.NoError(w.HostConn.Do(rtnl.DropLink(ifb.Index)))
	w.Result(w.Do(spec.Add, "bandwidth", w.Cont.Call(), applettest.BothLimits, w.PrevResult("[]")))
	w.Result(w.Do(spec.Check, "bandwidth", w.Cont.Call(), applettest.BothLimits, w.PrevResult("[]")))
}

// A failed second ADD keeps the limits of the first.
func TestKernelBandwidthSecondAddFails(t *testing.T) {
	applettest.NeedShaping(t)
	w := applettest.NewVeth(t)
	w.Result(w.Do(spec.Add, "bandwidth", w.Cont.Call(), applettest.BothLimits, w.PrevResult("[]")))
	before := shaping(w)
	w.NoError(w.HostConn.Do(rtnl.DropRedirects(w.Host0.Index)))
	other, err := w.HostConn.CreateLink(rtnl.LinkSpec{Name: "ifb9", Kind: rtnl.IFB{}})
	w.NoError(err)
	w.NoError(w.HostConn.Do(rtnl.NewRedirect(w.Host0.Index, other.Index)))
	_, err = w.Do(spec.Add, "bandwidth", w.Cont.Call(), `"ingressRate":80000,"egressRate":80000`, w.PrevResult("[]"))
	w.WantError(err, spec.CodeBusy, "is redirected")
	if got := strings.Replace(shaping(w), "ifb9", ifbOfC1, 1); !equalWithin(got, before, 2) {
		t.Errorf("got\n%swant\n%s", got, before)
	}
}

// equalWithin compares text in which numbers may differ by slack, since the kernel rounds the burst
// each time it is set.
func equalWithin(got, want string, slack int) bool {
	g, w := strings.Fields(got), strings.Fields(want)
	if len(g) != len(w) {
		return false
	}
	for i := range g {
		var a, b int
		na, _ := fmt.Sscanf(g[i], "%d", &a)
		nb, _ := fmt.Sscanf(w[i], "%d", &b)
		if g[i] != w[i] && (na+nb != 2 || max(a-b, b-a) > slack) {
			return false
		}
	}
	return true
}

// DEL deletes the IFB even without the namespace or the pair; an IFB of the reference too, unless
// another interface of the container uses it.
func TestKernelBandwidthDelWithoutNamespace(t *testing.T) {
	applettest.NeedShaping(t)
	for name, path := range applettest.MissingNetNS(t) {
		t.Run(name, func(t *testing.T) {
			w := applettest.NewVeth(t)
			old, err := w.HostConn.CreateLink(rtnl.LinkSpec{Name: ifbOfC1, Kind: rtnl.IFB{}})
			w.NoError(err)
			user, _ := w.AddPair("host1", "eth1")
			w.NoError(w.HostConn.Do(rtnl.NewIngress(user.Index), rtnl.NewRedirect(user.Index, old.Index)))
			w.Result(w.Do(spec.Add, "bandwidth", w.Cont.Call(), applettest.BothLimits, w.PrevResult("[]")))
			w.Result(w.Do(spec.Check, "bandwidth", w.Cont.Call(), applettest.BothLimits, w.PrevResult("[]")))
			w.NoError(w.HostConn.Do(rtnl.DropLink(w.Host0.Index)))
			call := w.Cont.Call()
			call.NetNS = path
			w.Result(w.Do(spec.Del, "bandwidth", call, "", ""))
			if s := kerneltest.Snapshot(t, w.NS); strings.Contains(s, ownIFBOfC1) || !strings.Contains(s, "redirect host1 to "+ifbOfC1) {
				t.Errorf("left:\n%s", s)
			}
			w.NoError(w.HostConn.Do(rtnl.DropLink(user.Index)))
			w.Result(w.Do(spec.Del, "bandwidth", call, `"egressBurst":1`, ""))
			if s := kerneltest.Snapshot(t, w.NS); strings.Contains(s, "bwp") {
				t.Errorf("left:\n%s", s)
			}
		})
	}
}

// CHECK and DEL accept an attachment of the reference.
func TestKernelBandwidthOfReference(t *testing.T) {
	applettest.NeedShaping(t)
	w := applettest.NewVeth(t)
	before := w.State()
	old, err := w.HostConn.CreateLink(rtnl.LinkSpec{Name: ifbOfC1, Kind: rtnl.IFB{}, MTU: 1500, TxQLen: new(0), Up: true})
	w.NoError(err)
	tbf := rtnl.TBF{Rate: 1e6, Burst: 10000, Limit: 35000}
	w.NoError(w.HostConn.Do(rtnl.NewTBF(w.Host0.Index, tbf), rtnl.NewIngress(w.Host0.Index),
		rtnl.NewRedirect(w.Host0.Index, old.Index), rtnl.NewRedirect(w.Host0.Index, old.Index), rtnl.NewTBF(old.Index, tbf)))
	keys := `"ingressRate":8000000,"ingressBurst":80000,"egressRate":8000000,"egressBurst":80000`
	w.Result(w.Do(spec.Check, "bandwidth", w.Cont.Call(), keys, w.PrevResult("[]")))
	w.Result(w.Do(spec.Del, "bandwidth", w.Cont.Call(), keys, w.PrevResult("[]")))
	if after := w.State(); after != before {
		t.Errorf("after DEL:\n%s", kerneltest.Diff(before, after))
	}
}

// GC deletes the IFBs of stale attachments of the network, and the reference's without a pair. IFBs
// of other networks and programs remain.
func TestKernelBandwidthGC(t *testing.T) {
	applettest.NeedShaping(t)
	w := applettest.NewVeth(t)
	w.Result(w.Do(spec.Add, "bandwidth", w.Cont.Call(), applettest.BothLimits, w.PrevResult("[]")))
	for name, owner := range map[string]string{"bwp000000000001": "", "ifb9": "", "bwp000000000002": "net1", "bwp000000000003": "net2"} {
		ifb, err := w.HostConn.CreateLink(rtnl.LinkSpec{Name: name, Kind: rtnl.IFB{}})
		w.NoError(err)
		if owner != "" {
			label := spec.Attachment{Network: owner, ContainerID: "c2", IfName: "eth0"}.Label(255)
			w.NoError(w.HostConn.SetLink(ifb.Index, rtnl.LinkChange{Alias: &label}))
		}
	}
	names := func() (names []string) {
		all, err := w.HostConn.Links()
		w.NoError(err)
		for _, l := range all {
			if l.Kind == "ifb" {
				names = append(names, l.Name)
			}
		}
		slices.Sort(names)
		return names
	}
	w.Result(w.Do(spec.GC, "bandwidth", spec.Call{}, `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`, ""))
	if got, want := fmt.Sprint(names()), "[bwp000000000003 "+ifbOfC1+" ifb9]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	w.Result(w.Do(spec.GC, "bandwidth", spec.Call{}, `"cni.dev/valid-attachments":[]`, ""))
	if got, want := fmt.Sprint(names()), "[bwp000000000003 ifb9]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// In both directions the kernel holds back, or drops, what is more than the burst: of 420 KB, of which a limit of
// 1000 bytes a second lets 40 KB pass, some arrive, and not all. A megabyte over TCP arrives under a limit that has
// time for it, and without one.
func TestKernelBandwidthLimitsRate(t *testing.T) {
	applettest.NeedShaping(t)
	const few, many = 20, 300 // datagrams within the burst and beyond it
	w := applettest.NewVeth(t)
	directions := []struct {
		name     string
		from, to *netns.NS
		addr     string
	}{{"ingress", w.NS, w.Cont.NS, "10.9.0.2:7001"}, {"egress", w.Cont.NS, w.NS, "10.9.0.1:7001"}, {"egress IPv6", w.Cont.NS, w.NS, "[fd09::1]:7002"}}
	w.Result(w.Do(spec.Add, "bandwidth", w.Cont.Call(), applettest.BothLimits, w.PrevResult("[]")))
	for _, d := range directions {
		transfer(t, d.from, d.to, d.addr, 1<<20)
	}
	for _, d := range directions {
		w.Result(w.Do(spec.Del, "bandwidth", w.Cont.Call(), "", ""))
		res := w.Result(w.Do(spec.Add, "bandwidth", w.Cont.Call(),
			`"ingressRate":8000,"ingressBurst":320000,"egressRate":8000,"egressBurst":320000`, w.PrevResult("[]")))
		link := w.Host0.Name
		if d.to == w.NS {
			link = res.Interfaces[len(res.Interfaces)-1].Name
		}
		datagrams(t, d.from, d.to, d.addr, many, few)
		passed, held := bucket(w, link)
		t.Logf("%s: %d datagrams were sent, %d packets passed, and the bucket of %s was empty %d times", d.name, many, passed, link, held)
		if passed < few || passed >= many || held == 0 {
			t.Errorf("%s: of %d datagrams %d packets passed, and the bucket of %s was empty %d times", d.name, many, passed, link, held)
		}
	}
	w.Result(w.Do(spec.Del, "bandwidth", w.Cont.Call(), "", ""))
	transfer(t, w.NS, w.Cont.NS, "10.9.0.2:7003", 1<<20)
}

// bucket returns how many packets the token bucket of a link has let pass, and how often it had no tokens for
// the next one: struct tc_stats, include/uapi/linux/pkt_sched.h.
func bucket(w *applettest.Veth, link string) (passed, held int) {
	w.Helper()
	l, err := w.HostConn.Link(link)
	w.NoError(err)
	c, err := nlconn.Open(w.NS, unix.NETLINK_ROUTE)
	w.NoError(err)
	defer c.Close()
	ms, err := c.Dump(netlink.Message{Header: netlink.Header{Type: unix.RTM_GETQDISC}, Data: make([]byte, 20)}) // struct tcmsg
	w.NoError(err)
	for _, m := range ms {
		kind, stats := nlconn.Attribute(m.Data[20:], unix.TCA_KIND), nlconn.Attribute(m.Data[20:], unix.TCA_STATS)
		if binary.NativeEndian.Uint32(m.Data[4:]) == l.Index && string(kind) == "tbf\x00" && len(stats) >= 20 {
			return int(binary.NativeEndian.Uint32(stats[8:])), int(binary.NativeEndian.Uint32(stats[16:]))
		}
	}
	w.Fatalf("%s has no token bucket", link)
	return 0, 0
}

// transfer sends bytes over TCP, all of which must arrive.
func transfer(t *testing.T, from, to *netns.NS, addr string, size int64) {
	t.Helper()
	var l net.Listener
	open := func() (err error) { l, err = net.Listen("tcp", addr); return err }
	if err := to.Do(open); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := applettest.Connect(from, "tcp", addr, applettest.Timeout)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		io.CopyN(c, zeroes{}, size)
		c.Close()
	}()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	in.SetDeadline(time.Now().Add(hang))
	if n, err := io.Copy(io.Discard, in); err != nil || n != size {
		t.Fatalf("%d bytes of %d arrived: %v", n, size, err)
	}
}

// hang is when what does not arrive counts as lost.
var hang = kerneltest.Timeout(3 * time.Minute)

// zeroes is an endless reader.
type zeroes struct{}

func (zeroes) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// datagrams sends datagrams of 1400 bytes and returns when the first of them have arrived.
func datagrams(t *testing.T, from, to *netns.NS, addr string, count, first int) {
	t.Helper()
	var in net.PacketConn
	var out net.Conn
	open := func() (err error) { in, err = net.ListenPacket("udp", addr); return err }
	dial := func() (err error) { out, err = net.Dial("udp", addr); return err }
	if err := to.Do(open); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := from.Do(dial); err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in.SetReadDeadline(time.Now().Add(hang))
	for range count {
		out.Write(make([]byte, 1400)) // an error: the queue is full
	}
	for n, b := 0, make([]byte, 2000); n < first; n++ {
		if _, _, err := in.ReadFrom(b); err != nil {
			t.Fatalf("after %d datagrams: %v", n, err)
		}
	}
}
