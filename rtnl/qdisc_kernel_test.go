package rtnl_test

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
)

// vethAndIFB returns a socket, a veth and an IFB.
func vethAndIFB(t *testing.T) (c *rtnl.Conn, veth, ifb *rtnl.Link) {
	t.Helper()
	c = kerneltest.Dial(t, kerneltest.NS(t))
	veth = create(t, c, rtnl.LinkSpec{Name: "v0", Peer: &rtnl.LinkSpec{Name: "v1"}, Up: true})
	ifb = create(t, c, rtnl.LinkSpec{Name: "ifb9", Kind: rtnl.IFB{}, TxQLen: new(0), MTU: 1400, Up: true})
	if ifb.Kind != "ifb" || ifb.MTU != 1400 || !ifb.Up {
		t.Errorf("IFB in one send: got %+v", ifb)
	}
	return c, veth, ifb
}

func TestKernelTokenBucket(t *testing.T) {
	c, veth, _ := vethAndIFB(t)
	root, ingress, err := c.Qdiscs(veth.Index)
	if err != nil || root != nil || ingress != nil {
		t.Fatalf("before: got %+v, %+v, %v", root, ingress, err)
	}
	first := rtnl.TBF{Rate: 1e6, Burst: 10000, Limit: 35000}
	if err := c.Do(rtnl.NewTBF(veth.Index, first)); err != nil {
		t.Fatal(err)
	}
	wantErr(t, c.Do(rtnl.NewTBF(veth.Index, first)), os.ErrExist)
	for name, want := range map[string]rtnl.TBF{
		"first": first, "64 bits": {Rate: 1e10, Burst: 1 << 20, Limit: 1 << 30}, "slow": {Rate: 125, Burst: 1 << 31, Limit: 1 << 31},
		"odd": {Rate: 123456789, Burst: 98765, Limit: 1234567},
	} {
		if err := c.Do(rtnl.ReplaceTBF(veth.Index, want)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		root, _, err := c.Qdiscs(veth.Index)
		if err != nil || root == nil || root.Kind != "tbf" || !want.Same(root.TBF) {
			t.Errorf("%s: got %+v, %v, want %+v", name, root, err, want)
		}
	}
	if err := c.Do(rtnl.DropRootQdisc(veth.Index)); err != nil {
		t.Fatal(err)
	}
	wantErr(t, c.Do(rtnl.DropRootQdisc(veth.Index)), os.ErrNotExist)
	wantErr(t, c.Do(rtnl.DropIngress(veth.Index)), os.ErrNotExist)
	if root, _, _ := c.Qdiscs(veth.Index); root != nil {
		t.Errorf("after: got %+v", root)
	}
}

func TestKernelRedirect(t *testing.T) {
	c, veth, ifb := vethAndIFB(t)
	if to, err := c.Redirects(veth.Index); err != nil || to != nil {
		t.Errorf("without anything: got %v, %v", to, err)
	}
	if err := c.Do(rtnl.NewIngress(veth.Index), rtnl.NewRedirect(veth.Index, ifb.Index)); err != nil {
		t.Fatal(err)
	}
	_, ingress, err := c.Qdiscs(veth.Index)
	if err != nil || ingress == nil || ingress.Kind != "ingress" {
		t.Errorf("ingress: got %+v, %v", ingress, err)
	}
	if links, err := c.IngressLinks(); err != nil || !slices.Equal(links, []uint32{veth.Index}) {
		t.Errorf("links: got %v, %v", links, err)
	}
	if to, err := c.Redirects(veth.Index); err != nil || !slices.Equal(to, []uint32{ifb.Index}) {
		t.Errorf("redirects: got %v, %v", to, err)
	}
	wantErr(t, c.Do(rtnl.NewIngress(veth.Index)), os.ErrExist)
	if err := c.Do(rtnl.DropRedirects(veth.Index)); err != nil {
		t.Error(err)
	}
	wantErr(t, c.Do(rtnl.DropRedirects(veth.Index)), os.ErrNotExist)
	if err := c.Do(rtnl.DropIngress(veth.Index)); err != nil {
		t.Error(err)
	}
}

// fq_codel is added below the token bucket filter, which keeps its settings.
func TestKernelFQCodel(t *testing.T) {
	c, veth, _ := vethAndIFB(t)
	want := rtnl.TBF{Rate: 1e6, Burst: 10000, Limit: 35000}
	if err := c.Do(rtnl.NewTBF(veth.Index, want)); err != nil {
		t.Fatal(err)
	}
	kerneltest.Need(t, "CONFIG_NET_SCH_FQ_CODEL", func() error { return c.Do(rtnl.NewFQCodel(veth.Index, 1<<20)) })
	for range 2 {
		if err := c.Do(rtnl.NewFQCodel(veth.Index, 1<<21), rtnl.ReplaceTBF(veth.Index, want)); err != nil {
			t.Fatal(err)
		}
		if root, _, err := c.Qdiscs(veth.Index); err != nil || root == nil || !want.Same(root.TBF) {
			t.Errorf("got %+v, %v", root, err)
		}
	}
}

func TestKernelVRF(t *testing.T) {
	c := kerneltest.Dial(t, kerneltest.NS(t))
	vrf := create(t, c, rtnl.LinkSpec{Name: "blue", Kind: rtnl.VRF{Table: 1000}, Up: true})
	if vrf.Kind != "vrf" || vrf.Data != (rtnl.VRF{Table: 1000}) || !vrf.Up {
		t.Errorf("got %+v", vrf)
	}
	big := int64(1) << 40 // 0 as a 32-bit int
	for _, table := range []int{0, -1, int(big)} {
		wantErr(t, c.AddLink(rtnl.LinkSpec{Name: "red", Kind: rtnl.VRF{Table: table}}), unix.EINVAL)
	}
}

// The ID of a namespace leads to the peer of a veth.
func TestKernelNSID(t *testing.T) {
	host, cont, other := kerneltest.NS(t), kerneltest.NS(t), kerneltest.NS(t)
	c := kerneltest.Dial(t, host)
	l := create(t, c, rtnl.LinkSpec{Name: "v0", Peer: &rtnl.LinkSpec{Name: "eth0", NS: cont}})
	if id, err := c.NSID(cont); err != nil || id < 0 || id != l.LinkNetNSID {
		t.Errorf("got %d, %v, want %d", id, err, l.LinkNetNSID)
	}
	if id, err := c.NSID(other); err != nil || id != -1 {
		t.Errorf("without a link: got %d, %v", id, err)
	}
}
