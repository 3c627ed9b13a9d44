//go:build !no_bandwidth

package applets_test

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

const (
	bothLimits = `"ingressRate":8000000,"egressRate":8000000`
	ifbOfC1    = "bwpc2d892b58e87" // the reference's, of net1 and c1
	ownIFBOfC1 = "bwp294f9e4a4bb0" // of eth0 alone
)

// needsShaping skips where the kernel has not all parts.
func needsShaping(t *testing.T) {
	t.Helper()
	kerneltest.Need(t, "CONFIG_IFB, CONFIG_NET_SCH_TBF, CONFIG_NET_CLS_U32, CONFIG_NET_ACT_MIRRED", func() error {
		c := kerneltest.Dial(t, kerneltest.NS(t))
		ifb, err := c.CreateLink(rtnl.LinkSpec{Name: "ifb9", Kind: rtnl.IFB{}})
		if err != nil {
			return err
		}
		return c.Do(rtnl.NewTBF(ifb.Index, rtnl.TBF{Rate: 1000, Burst: 2000, Limit: 2000}),
			rtnl.NewIngress(ifb.Index), rtnl.NewRedirect(ifb.Index, ifb.Index))
	})
}

// shaping returns those lines of the host's snapshot that are about shaping.
func (w *wire) shaping() string {
	w.t.Helper()
	var out []string
	for line := range strings.Lines(kerneltest.Snapshot(w.t, w.host)) {
		if strings.HasPrefix(line, "qdisc") || strings.HasPrefix(line, "redirect") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

func TestKernelBandwidth(t *testing.T) {
	needsShaping(t)
	w := newWire(t)
	before := w.state()
	keys := `"ingressRate":8000000,"ingressBurst":800000,"egressRate":16000000,"egressBurst":1600000,"latency":50`
	res := w.must(w.run("bandwidth", spec.Add, w.call(), keys, w.prev("[]")))
	last := res.Interfaces[len(res.Interfaces)-1]
	ifb, err := w.h.Link(last.Name)
	w.ok(err)
	if len(res.Interfaces) != 3 || last.MAC != ifb.MAC.String() || last.Sandbox != "" || ifb.Kind != "ifb" || !ifb.Up || ifb.MTU != 1500 ||
		ifb.TxQLen != 0 || !strings.HasSuffix(ifb.Alias, " net1/c1/eth0") {
		t.Errorf("result %+v, link %+v", res.Interfaces, ifb)
	}
	want := "qdisc " + ifb.Name + " tbf 2000000 bytes/s, burst 200000, limit 300000\n" +
		"qdisc host0 ingress\nqdisc host0 tbf 1000000 bytes/s, burst 100000, limit 150000\nredirect host0 to " + ifb.Name + "\n"
	if got := w.shaping(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	w.must(w.run("bandwidth", spec.Check, w.call(), keys, w.prev("[]")))

	// ADD again, with the same limits and with lower ones, replaces them; the reference fails
	w.must(w.run("bandwidth", spec.Add, w.call(), keys, w.prev("[]")))
	if got := w.shaping(); got != want {
		t.Errorf("again: got\n%swant\n%s", got, want)
	}
	slower := strings.Replace(keys, "16000000", "8000000", 1)
	w.must(w.run("bandwidth", spec.Add, w.call(), slower, w.prev("[]")))
	w.must(w.run("bandwidth", spec.Check, w.call(), slower, w.prev("[]")))
	_, err = w.run("bandwidth", spec.Check, w.call(), keys, w.prev("[]"))
	w.refused(err, spec.CodeCheck, "Rate doesn't match")

	// a DEL that knows nothing, twice
	w.must(w.run("bandwidth", spec.Del, w.call(), `"ingressRate":7`, ""))
	if after := w.state(); after != before {
		t.Errorf("after DEL:\n%s", kerneltest.Diff(before, after))
	}
	w.must(w.run("bandwidth", spec.Del, w.call(), keys, w.prev("[]")))
}

// A second ADD leaves nothing of a direction that it does not limit.
func TestKernelBandwidthOfLess(t *testing.T) {
	needsShaping(t)
	for keys, want := range map[string]string{
		`"ingressRate":8000000`: "qdisc host0 tbf 1000000 bytes/s, burst 65536, limit 90536\n",
		`"egressRate":8000000`:  "qdisc " + ifbOfC1 + " tbf 1000000 bytes/s, burst 65536, limit 90536\nqdisc host0 ingress\nredirect host0 to " + ifbOfC1 + "\n",
		`"ingressRate":0`:       "",
	} {
		w := newWire(t)
		before := w.state()
		w.must(w.run("bandwidth", spec.Add, w.call(), bothLimits, w.prev("[]")))
		w.must(w.run("bandwidth", spec.Add, w.call(), keys, w.prev("[]")))
		if got := w.shaping(); got != want {
			t.Errorf("%s: got\n%swant\n%s", keys, got, want)
		}
		w.must(w.run("bandwidth", spec.Check, w.call(), keys, w.prev("[]")))
		w.must(w.run("bandwidth", spec.Del, w.call(), keys, w.prev("[]")))
		if after := w.state(); after != before {
			t.Errorf("%s: after DEL:\n%s", keys, kerneltest.Diff(before, after))
		}
	}
}

// Two interfaces of a container on one network have an IFB each; in the reference they collide.
func TestKernelBandwidthTwoInterfaces(t *testing.T) {
	needsShaping(t)
	w := newWire(t)
	w.pair("host1", "eth1")
	second := w.call()
	second.IfName = "eth1"
	w.must(w.run("bandwidth", spec.Add, w.call(), bothLimits, w.prev("[]")))
	w.must(w.run("bandwidth", spec.Add, second, bothLimits, w.prev("[]")))
	w.must(w.run("bandwidth", spec.Del, w.call(), bothLimits, ""))
	w.must(w.run("bandwidth", spec.Check, second, bothLimits, w.prev("[]")))
	if got := w.shaping(); strings.Contains(got, "host0") || strings.Count(got, "\n") != 4 {
		t.Errorf("got\n%s", got)
	}
}

// CHECK sees each part that is missing or another, and changes nothing.
func TestKernelBandwidthCheck(t *testing.T) {
	needsShaping(t)
	tests := map[string]struct {
		spoil func(w *wire, ifb *rtnl.Link) rtnl.Op
		want  string
	}{
		"no bucket":        {func(w *wire, _ *rtnl.Link) rtnl.Op { return rtnl.DropRootQdisc(w.veth.Index) }, "Failed to find qdisc: host0"},
		"no bucket of IFB": {func(_ *wire, ifb *rtnl.Link) rtnl.Op { return rtnl.DropRootQdisc(ifb.Index) }, "Failed to find qdisc: bwp"},
		"no ingress":       {func(w *wire, _ *rtnl.Link) rtnl.Op { return rtnl.DropIngress(w.veth.Index) }, "Failed to find qdisc: host0 has no ingress qdisc"},
		"no filter":        {func(w *wire, _ *rtnl.Link) rtnl.Op { return rtnl.DropRedirects(w.veth.Index) }, "is not redirected to bwp"},
		"IFB down": {func(_ *wire, ifb *rtnl.Link) rtnl.Op {
			return rtnl.ChangeLink(ifb.Index, rtnl.LinkChange{Up: new(false)})
		}, "is down"},
		"IFB gone": {func(_ *wire, ifb *rtnl.Link) rtnl.Op { return rtnl.DropLink(ifb.Index) }, "is missing"},
		"other rate of IFB": {func(_ *wire, ifb *rtnl.Link) rtnl.Op {
			return rtnl.ReplaceTBF(ifb.Index, rtnl.TBF{Rate: 9, Burst: 65536, Limit: 90536})
		}, "Rate"},
		"other limit": {func(w *wire, _ *rtnl.Link) rtnl.Op {
			return rtnl.ReplaceTBF(w.veth.Index, rtnl.TBF{Rate: 1e6, Burst: 65536, Limit: 9})
		}, "Limit"},
		"other burst": {func(w *wire, _ *rtnl.Link) rtnl.Op {
			return rtnl.ReplaceTBF(w.veth.Index, rtnl.TBF{Rate: 1e6, Burst: 65000, Limit: 90536})
		}, "Buffer"},
		"the container's":    {func(w *wire, _ *rtnl.Link) rtnl.Op { return rtnl.DropLink(w.veth.Index) }, "eth0"},
		"nothing is spoiled": {func(*wire, *rtnl.Link) rtnl.Op { return rtnl.Op{} }, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWire(t)
			w.must(w.run("bandwidth", spec.Add, w.call(), bothLimits, w.prev("[]")))
			ifb, err := w.h.Link(ifbOfC1)
			w.ok(err)
			w.ok(w.h.Do(tt.spoil(w, ifb)))
			before := w.state()
			_, err = w.run("bandwidth", spec.Check, w.call(), bothLimits, w.prev("[]"))
			if tt.want == "" {
				w.ok(err)
			} else {
				w.refused(err, spec.CodeCheck, tt.want)
			}
			if after := w.state(); after != before {
				t.Errorf("CHECK changed something:\n%s", kerneltest.Diff(before, after))
			}
			w.must(w.run("bandwidth", spec.Check, w.call(), "", w.prev("[]"))) // nothing is limited, nothing is looked at
		})
	}
}

func TestKernelBandwidthRefused(t *testing.T) {
	needsShaping(t)
	w := newWire(t)
	before := w.state()
	// the reference crashes without a prevResult, also when nothing is limited
	for _, keys := range []string{bothLimits, ""} {
		_, err := w.run("bandwidth", spec.Add, w.call(), keys, "")
		w.refused(err, spec.CodeConfig, "must be called as chained plugin")
	}
	_, err := w.run("bandwidth", spec.Add, w.call(), `"ingressBurst":1`, w.prev("[]"))
	w.refused(err, spec.CodeConfig, "rate must also be set")
	other := w.call()
	other.IfName = "lo"
	_, err = w.run("bandwidth", spec.Add, other, bothLimits, w.prev("[]"))
	w.refused(err, spec.CodeConfig, "no veth peer")
	other.IfName = "eth7"
	_, err = w.run("bandwidth", spec.Add, other, bothLimits, w.prev("[]"))
	w.refused(err, spec.CodeConfig, "eth7")
	other.NetNS = ""
	_, err = w.run("bandwidth", spec.Add, other, bothLimits, w.prev("[]"))
	w.refused(err, spec.CodeNetNS, "netns")
	if res := w.must(w.run("bandwidth", spec.Add, w.call(), `"egressRate":0`, w.prev("[]"))); len(res.Interfaces) != 2 {
		t.Errorf("no limit: got %+v", res)
	}
	if after := w.state(); after != before {
		t.Errorf("it changed something:\n%s", kerneltest.Diff(before, after))
	}
	w.must(w.run("bandwidth", spec.Status, spec.Call{}, bothLimits, ""))
	_, err = w.run("bandwidth", spec.Status, spec.Call{}, `"latency":-1`, "")
	w.refused(err, spec.CodeConfig, "latency")
}

// A pair between two containers has no end on the host, whatever link of the host has
// the index of the peer.
func TestKernelBandwidthForeignPeer(t *testing.T) {
	needsShaping(t)
	w := newWire(t)
	third := kerneltest.NS(t)
	w.ok(w.c.AddLink(rtnl.LinkSpec{Name: "eth5", Index: 77, Peer: &rtnl.LinkSpec{Name: "far", NS: third, Index: 88}}))
	fourth := kerneltest.NS(t)
	w.ok(w.h.AddLink(rtnl.LinkSpec{Name: "near", Index: 88, Peer: &rtnl.LinkSpec{Name: "other", NS: fourth, Index: 77}}))
	call := w.call()
	call.IfName = "eth5"
	_, err := w.run("bandwidth", spec.Add, call, bothLimits, w.prev("[]"))
	w.refused(err, spec.CodeConfig, "no veth peer")
}

// What others have put on the pair stays, and the error says what to do.
func TestKernelBandwidthBusy(t *testing.T) {
	needsShaping(t)
	w := newWire(t)
	ifb, err := w.h.CreateLink(rtnl.LinkSpec{Name: "ifb9", Kind: rtnl.IFB{}})
	w.ok(err)
	w.ok(w.h.Do(rtnl.NewIngress(w.veth.Index), rtnl.NewRedirect(w.veth.Index, ifb.Index)))
	before := w.state()
	_, err = w.run("bandwidth", spec.Add, w.call(), bothLimits, w.prev("[]"))
	w.refused(err, spec.CodeBusy, "is redirected")
	if after := w.state(); after != before {
		t.Errorf("it changed something:\n%s", kerneltest.Diff(before, after))
	}
	w.must(w.run("bandwidth", spec.Del, w.call(), bothLimits, ""))
	if after := w.state(); after != before {
		t.Errorf("DEL changed something:\n%s", kerneltest.Diff(before, after))
	}
	// a filter to a link that is gone would lose every packet
	w.ok(w.h.Do(rtnl.DropLink(ifb.Index)))
	w.must(w.run("bandwidth", spec.Add, w.call(), bothLimits, w.prev("[]")))
	w.must(w.run("bandwidth", spec.Check, w.call(), bothLimits, w.prev("[]")))
}

func TestKernelBandwidthRollback(t *testing.T) {
	needsShaping(t)
	needless := func(what string) bool { return strings.Contains(what, "fq_codel") }
	w := newWire(t)
	w.rollback("bandwidth", bothLimits, w.prev("[]"), needless)
	// an ingress qdisc that was there stays
	w.ok(w.h.Do(rtnl.NewIngress(w.veth.Index)))
	w.rollback("bandwidth", bothLimits, w.prev("[]"), needless)
}

// A second ADD that fails leaves what the first one made.
func TestKernelBandwidthRollbackOfAgain(t *testing.T) {
	needsShaping(t)
	w := newWire(t)
	w.must(w.run("bandwidth", spec.Add, w.call(), bothLimits, w.prev("[]")))
	before := w.shaping()
	w.ok(w.h.Do(rtnl.DropRedirects(w.veth.Index)))
	other, err := w.h.CreateLink(rtnl.LinkSpec{Name: "ifb9", Kind: rtnl.IFB{}})
	w.ok(err)
	w.ok(w.h.Do(rtnl.NewRedirect(w.veth.Index, other.Index)))
	_, err = w.run("bandwidth", spec.Add, w.call(), `"ingressRate":80000,"egressRate":80000`, w.prev("[]"))
	w.refused(err, spec.CodeBusy, "is redirected")
	if got := strings.Replace(w.shaping(), "ifb9", ifbOfC1, 1); !sameBut(got, before, 2) {
		t.Errorf("got\n%swant\n%s", got, before)
	}
}

// sameBut compares lines whose burst, which the kernel rounds each time it is set,
// may differ by some bytes.
func sameBut(got, want string, slack int) bool {
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

// DEL with the namespace or the pair missing deletes the IFB; one of the reference goes
// too, unless another interface of the container uses it.
func TestKernelBandwidthDelOfGone(t *testing.T) {
	needsShaping(t)
	for name, path := range goneNetNS(t) {
		t.Run(name, func(t *testing.T) {
			w := newWire(t)
			old, err := w.h.CreateLink(rtnl.LinkSpec{Name: ifbOfC1, Kind: rtnl.IFB{}})
			w.ok(err)
			user, _ := w.pair("host1", "eth1")
			w.ok(w.h.Do(rtnl.NewIngress(user.Index), rtnl.NewRedirect(user.Index, old.Index)))
			w.must(w.run("bandwidth", spec.Add, w.call(), bothLimits, w.prev("[]")))
			w.must(w.run("bandwidth", spec.Check, w.call(), bothLimits, w.prev("[]")))
			w.ok(w.h.Do(rtnl.DropLink(w.veth.Index)))
			call := w.call()
			call.NetNS = path
			w.must(w.run("bandwidth", spec.Del, call, "", ""))
			if s := kerneltest.Snapshot(t, w.host); strings.Contains(s, ownIFBOfC1) || !strings.Contains(s, "redirect host1 to "+ifbOfC1) {
				t.Errorf("left:\n%s", s)
			}
			w.ok(w.h.Do(rtnl.DropLink(user.Index)))
			w.must(w.run("bandwidth", spec.Del, call, `"egressBurst":1`, ""))
			if s := kerneltest.Snapshot(t, w.host); strings.Contains(s, "bwp") {
				t.Errorf("left:\n%s", s)
			}
		})
	}
}

// An attachment that the reference made is checked and released.
func TestKernelBandwidthOfReference(t *testing.T) {
	needsShaping(t)
	w := newWire(t)
	before := w.state()
	old, err := w.h.CreateLink(rtnl.LinkSpec{Name: ifbOfC1, Kind: rtnl.IFB{}, MTU: 1500, TxQLen: new(0), Up: true})
	w.ok(err)
	tbf := rtnl.TBF{Rate: 1e6, Burst: 10000, Limit: 35000}
	w.ok(w.h.Do(rtnl.NewTBF(w.veth.Index, tbf), rtnl.NewIngress(w.veth.Index),
		rtnl.NewRedirect(w.veth.Index, old.Index), rtnl.NewRedirect(w.veth.Index, old.Index), rtnl.NewTBF(old.Index, tbf)))
	keys := `"ingressRate":8000000,"ingressBurst":80000,"egressRate":8000000,"egressBurst":80000`
	w.must(w.run("bandwidth", spec.Check, w.call(), keys, w.prev("[]")))
	w.must(w.run("bandwidth", spec.Del, w.call(), keys, w.prev("[]")))
	if after := w.state(); after != before {
		t.Errorf("after DEL:\n%s", kerneltest.Diff(before, after))
	}
}

// GC deletes the IFBs of the network's attachments that are gone, and what the reference
// has left without a pair; other networks' and other people's IFBs stay.
func TestKernelBandwidthGC(t *testing.T) {
	needsShaping(t)
	w := newWire(t)
	w.must(w.run("bandwidth", spec.Add, w.call(), bothLimits, w.prev("[]")))
	for name, owner := range map[string]string{"bwp000000000001": "", "ifb9": "", "bwp000000000002": "net1", "bwp000000000003": "net2"} {
		ifb, err := w.h.CreateLink(rtnl.LinkSpec{Name: name, Kind: rtnl.IFB{}})
		w.ok(err)
		if owner != "" {
			label := spec.Attachment{Network: owner, ContainerID: "c2", IfName: "eth0"}.Label(255)
			w.ok(w.h.SetLink(ifb.Index, rtnl.LinkChange{Alias: &label}))
		}
	}
	names := func() (names []string) {
		all, err := w.h.Links()
		w.ok(err)
		for _, l := range all {
			if l.Kind == "ifb" {
				names = append(names, l.Name)
			}
		}
		slices.Sort(names)
		return names
	}
	w.must(w.run("bandwidth", spec.GC, spec.Call{}, `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`, ""))
	if got, want := fmt.Sprint(names()), "[bwp000000000003 "+ifbOfC1+" ifb9]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	w.must(w.run("bandwidth", spec.GC, spec.Call{}, `"cni.dev/valid-attachments":[]`, ""))
	if got, want := fmt.Sprint(names()), "[bwp000000000003 ifb9]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A megabyte at 8 Mbit/s takes a second, less what the burst lets through at once,
// in both directions, and so does a flood of UDP.
func TestKernelBandwidthTransfers(t *testing.T) {
	needsShaping(t)
	const size, rate, burst = 1 << 20, 1e6, 64 << 10
	w := newWire(t)
	w.must(w.run("bandwidth", spec.Add, w.call(), bothLimits, w.prev("[]")))
	least := time.Duration((size - burst) * 0.85 / rate * 1e9)
	for _, tt := range []struct {
		name     string
		from, to *rtnl.NS
		addr     string
	}{{"ingress", w.host, w.cont, "10.9.0.2:7001"}, {"egress", w.cont, w.host, "10.9.0.1:7001"}, {"egress IPv6", w.cont, w.host, "[fd09::1]:7002"}} {
		if took := transfer(t, tt.from, tt.to, tt.addr, size); took < least || took > patience {
			t.Errorf("%s: %d bytes took %s, want %s and more", tt.name, size, took, least)
		}
		const flood = 300 * time.Millisecond
		most := int(burst + 35_000 + rate*(flood+time.Second).Seconds())
		if got := datagrams(t, tt.from, tt.to, tt.addr, flood); got > most || got < 10_000 {
			t.Errorf("%s: %d bytes of UDP arrived, want 10,000 to %d", tt.name, got, most)
		}
	}
	w.must(w.run("bandwidth", spec.Del, w.call(), "", ""))
	const big = 32 << 20 // half a minute at the rate that is no more
	if took := transfer(t, w.host, w.cont, "10.9.0.2:7003", big); took > big/size*least {
		t.Errorf("after DEL %d bytes took %s", big, took)
	}
}

// transfer sends bytes over TCP and returns how long it takes until all have arrived.
func transfer(t *testing.T, from, to *rtnl.NS, addr string, size int64) time.Duration {
	t.Helper()
	var l net.Listener
	open := func() (err error) { l, err = net.Listen("tcp", addr); return err }
	if err := to.Do(open); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := connect(from, "tcp", addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	go func() {
		io.CopyN(c, zeroes{}, size)
		c.Close()
	}()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	in.SetDeadline(start.Add(4 * patience))
	if n, err := io.Copy(io.Discard, in); err != nil || n != size {
		t.Fatalf("%d bytes of %d arrived: %v", n, size, err)
	}
	return time.Since(start)
}

// zeroes is an endless file.
type zeroes struct{}

func (zeroes) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// datagrams sends UDP as fast as it can for some time, and however short that is some 40 KB,
// and returns how many bytes arrive before a last datagram, which waits behind them.
func datagrams(t *testing.T, from, to *rtnl.NS, addr string, within time.Duration) (got int) {
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
	arrived := make(chan struct{})
	go func() {
		defer out.Close()
		end := time.Now().Add(within)
		for i := 0; i < 30 || time.Now().Before(end); i++ {
			out.Write(make([]byte, 1400))
		}
		for { // the queue may be full
			out.Write([]byte{0})
			select {
			case <-arrived:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	defer close(arrived)
	in.SetReadDeadline(time.Now().Add(patience))
	for b := make([]byte, 2000); ; {
		n, _, err := in.ReadFrom(b)
		if err != nil {
			t.Fatalf("after %d bytes: %v", got, err)
		}
		if n == 1 {
			return got
		}
		got += n
	}
}
