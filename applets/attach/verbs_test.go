package attach_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// DEL deletes everything that ADD made, and releases the lease last. A second DEL succeeds.
func TestKernelDel(t *testing.T) {
	f := newFake(t)
	before := f.state()
	prev := f.add("")
	for range 2 {
		f.must(spec.Del, prev)
		if f.wantSteps("release, lease DEL"); len(f.warns) > 0 {
			t.Errorf("warned: %q", f.warns)
		}
		if after := f.state(); after != before {
			t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
		}
	}
}

// DEL succeeds whatever is missing, and releases the rest.
func TestKernelDelWithMissingParts(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(f *fake)
		keys  string
		left  string // links of the container
		warn  string
	}{
		"link":          {func(f *fake) { delLink(f, "eth0") }, "", "", ""},
		"no netns":      {func(f *fake) { f.Cont.Path = "" }, "", "eth0", ""},
		"netns gone":    {func(f *fake) { f.Cont.Path = "/nowhere" }, "", "eth0", ""},
		"a file":        {func(f *fake) { f.Cont.Path = applettest.MissingNetNS(t)["stale file"] }, "", "eth0", ""},
		"no prevResult": {func(*fake) {}, "", "", ""},
		"config":        {func(*fake) {}, `,"mtu":-1`, "", "ignored for DEL: mtu is negative"},
		"config's type": {func(*fake) {}, `,"mtu":"x"`, "", "ignored for DEL: "},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.add("")
			tt.spoil(f)
			f.must(spec.Del, tt.keys)
			f.wantSteps("release, lease DEL")
			if got := links(t, f.Cont.NS); got != tt.left || f.leases != 0 {
				t.Errorf("left: links %q, %d leases", got, f.leases)
			}
			if got := strings.Join(f.warns, "\n"); !strings.Contains(got, tt.warn) || tt.warn == "" && got != "" {
				t.Errorf("warned %q, want %q", got, tt.warn)
			}
		})
	}
}

// delLink deletes a link of the container.
func delLink(f *fake, name string) {
	f.T.Helper()
	if err := kerneltest.Dial(f.T, f.Cont.NS).DelLink(name); err != nil {
		f.T.Fatal(err)
	}
}

// DEL runs every step and joins the errors. It does not release the lease while the link may exist,
// since the address is in use.
func TestKernelDelContinuesAfterErrors(t *testing.T) {
	f := newFake(t)
	f.add("")
	f.fail["release"], f.fail["lease DEL"] = errors.New("release fails"), errors.New("store fails")
	_, err := f.call(t.Context(), spec.Del, f.plugin(), "")
	f.wantSteps("release, lease DEL")
	if err == nil || !strings.Contains(err.Error(), "release fails") || !strings.Contains(err.Error(), "store fails") {
		t.Errorf("got %v", err)
	}
	if got := links(t, f.Cont.NS); got != "" {
		t.Errorf("the container has %s", got)
	}

	f.fail = map[string]error{}
	f.add("")
	p := f.plugin()
	f.instead["remove"] = func(*attach.Op, *driver) error { return errors.New("link fails") }
	_, err = f.call(t.Context(), spec.Del, p, "")
	f.WantError(err, spec.CodeInternal, "link fails")
	if f.wantSteps("release"); f.leases != 1 {
		t.Error("the address of a link that is still there was given back")
	}
	f.instead["remove"] = func(*attach.Op, *driver) error { panic("at once") }
	_, err = f.call(t.Context(), spec.Del, p, "")
	f.WantError(err, spec.CodeInternal, "panic: at once")
}

// A lease whose release is sent over the link is released while the link exists, also by an external
// program of such a plugin's name.
func TestKernelDelReleasesOverLinkFirst(t *testing.T) {
	for _, external := range []bool{false, true} {
		f := newFake(t)
		f.leaves = external
		f.add("")
		f.must(spec.Del, `,"ipam":{"type":"overlink"}`)
		f.wantSteps("overlink DEL, release")
	}
}

// A link of the same name is left if it is of another kind or has the label of another attachment.
// One without a label may be the reference's and is deleted.
func TestKernelDelOwnership(t *testing.T) {
	other := spec.Attachment{Network: "other", ContainerID: "ctr", IfName: "eth0"}
	own := spec.Attachment{Network: "net", ContainerID: "ctr", IfName: "eth0"}
	for name, tt := range map[string]struct {
		veth  bool
		alias string
		stays bool
	}{
		"own":          {false, own.Label(255), false},
		"reference":    {false, "", false},
		"user's alias": {false, "uplink of the lab", false},
		"other":        {false, other.Label(255), true},
		"other's kind": {true, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			c := kerneltest.Dial(t, f.Cont.NS)
			made := rtnl.LinkSpec{Name: "eth0", Kind: rtnl.Bridge{}}
			if tt.veth {
				made = rtnl.LinkSpec{Name: "eth0", Peer: &rtnl.LinkSpec{Name: "peer0", NS: f.NS}}
			}
			link, err := c.CreateLink(made)
			if err == nil && tt.alias != "" {
				err = c.SetLink(link.Index, rtnl.LinkChange{Alias: &tt.alias})
			}
			if err != nil {
				t.Fatal(err)
			}
			f.must(spec.Del, "")
			if stays := links(t, f.Cont.NS) == "eth0"; stays != tt.stays || stays != (len(f.warns) == 1) {
				t.Errorf("it stays: %t; warned %q", stays, f.warns)
			}
		})
	}
}

// CHECK succeeds after ADD, reports differences, and calls the IPAM plugin and the plugin.
func TestKernelCheck(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(f *fake, c *rtnl.Conn, link *rtnl.Link) error
		want  string
	}{
		"nothing": {func(*fake, *rtnl.Conn, *rtnl.Link) error { return nil }, ""},
		"link": {func(_ *fake, c *rtnl.Conn, _ *rtnl.Link) error {
			return c.DelLink("eth0")
		}, "no interface eth0 in "},
		"kind": {func(f *fake, c *rtnl.Conn, _ *rtnl.Link) error {
			return errors.Join(c.DelLink("eth0"), c.AddLink(rtnl.LinkSpec{Name: "eth0", Peer: &rtnl.LinkSpec{Name: "peer0", NS: f.NS}}))
		}, `is of kind "veth", not "bridge"`},
		"MAC": {func(_ *fake, c *rtnl.Conn, l *rtnl.Link) error {
			return c.SetLink(l.Index, rtnl.LinkChange{MAC: attach.RandomMAC()})
		}, "MAC address"},
		"address": {func(_ *fake, c *rtnl.Conn, l *rtnl.Link) error {
			return c.Do(rtnl.DropAddr(l.Index, rtnl.Addr{Prefix: prefix("192.0.2.5/24")}))
		}, "does not have address 192.0.2.5/24"},
		"route": {func(_ *fake, c *rtnl.Conn, l *rtnl.Link) error {
			return c.Do(rtnl.DropRoute(rtnl.Route{Dst: prefix("0.0.0.0/0"), Link: l.Index}))
		}, "route 0.0.0.0/0"},
		"IPAM": {func(f *fake, _ *rtnl.Conn, _ *rtnl.Link) error {
			f.fail["lease CHECK"] = attach.Mismatch("no lease")
			return nil
		}, "no lease"},
		"check": {func(f *fake, _ *rtnl.Conn, _ *rtnl.Link) error {
			f.fail["check"] = attach.Mismatch("made to fail")
			return nil
		}, "made to fail"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			prev := f.add("")
			c := kerneltest.Dial(t, f.Cont.NS)
			link, err := c.Link("eth0")
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.spoil(f, c, link); err != nil {
				t.Fatal(err)
			}
			before := f.state()
			_, err = f.call(t.Context(), spec.Check, f.plugin(), prev)
			if tt.want == "" {
				if f.wantSteps("lease CHECK, check"); err != nil {
					t.Error(err)
				}
			} else {
				f.WantError(err, spec.CodeCheck, tt.want)
			}
			if after := f.state(); after != before {
				t.Errorf("CHECK changed:\n%s", kerneltest.Diff(before, after))
			}
		})
	}
}

// The sandbox of prevResult is compared as a namespace and not as a path.
func TestKernelCheckComparesNamespaces(t *testing.T) {
	f := newFake(t)
	prev := f.add("")
	f.Cont.Path = kerneltest.NSPath(t, f.Cont.NS)
	f.must(spec.Check, prev)
	f.Cont.Path = kerneltest.NSPath(t, kerneltest.NS(t))
	_, err := f.call(t.Context(), spec.Check, f.plugin(), prev)
	f.WantError(err, spec.CodeCheck, "prevResult")
}

// GET returns the result of ADD from the kernel. Without the link the attachment is unknown.
func TestKernelGet(t *testing.T) {
	f := newFake(t)
	f.add("")
	res := f.must(spec.Get, "")
	f.wantSteps("lease GET, gateways")
	if len(res.Interfaces) != 1 || res.Interfaces[0].Name != "eth0" || len(res.IPs) != 1 || len(res.Routes) != 1 {
		t.Errorf("got %+v", res)
	}
	f.fail["lease GET"] = spec.Errorf(spec.CodeUnknown, "no lease")
	_, err := f.call(t.Context(), spec.Get, f.plugin(), "")
	f.WantError(err, spec.CodeUnknown, "no lease")
	delLink(f, "eth0")
	_, err = f.call(t.Context(), spec.Get, f.plugin(), "")
	f.WantError(err, spec.CodeUnknown, "no bridge interface eth0")
}

// STATUS calls the plugin, whose errors get code 50, and the IPAM plugin, whose code is kept.
func TestKernelStatus(t *testing.T) {
	f := newFake(t)
	f.Cont.Path = ""
	f.must(spec.Status, "")
	f.wantSteps("probe, lease STATUS")
	f.fail["lease STATUS"] = spec.Errorf(spec.CodeLimited, "nearly full")
	_, err := f.call(t.Context(), spec.Status, f.plugin(), "")
	f.WantError(err, spec.CodeLimited, "nearly full")
	f.fail["probe"] = errors.New("no such links")
	_, err = f.call(t.Context(), spec.Status, f.plugin(), "")
	f.WantError(err, spec.CodeNotReady, "no such links")
}

// GC deletes host-side veths with labels of stale attachments of the network, and no others. An
// error does not stop it.
func TestKernelGC(t *testing.T) {
	f := newFake(t)
	host := kerneltest.Dial(t, f.NS)
	label := func(network, id string) string {
		return spec.Attachment{Network: network, ContainerID: id, IfName: "eth0"}.Label(255)
	}
	for name, alias := range map[string]string{
		"live": label("net", "live"), "stale": label("net", "stale"), "other": label("net2", "stale"), "user": "",
	} {
		link, err := host.CreateLink(rtnl.LinkSpec{Name: name, Peer: &rtnl.LinkSpec{Name: name + "-end", NS: f.Cont.NS}})
		if err == nil && alias != "" {
			err = host.SetLink(link.Index, rtnl.LinkChange{Alias: &alias})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	bridge, err := host.CreateLink(rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{}})
	if err == nil { // host and container in one namespace
		err = host.SetLink(bridge.Index, rtnl.LinkChange{Alias: new(label("net", "stale"))})
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Cont.Path = ""
	f.fail["collect"], f.fail["lease GC"] = errors.New("collect fails"), errors.New("store fails")
	_, err = f.call(t.Context(), spec.GC, f.plugin(), `,"cni.dev/valid-attachments":[{"containerID":"live","ifname":"eth0"}]`)
	f.wantSteps("collect, lease GC")
	if err == nil || !strings.Contains(err.Error(), "collect fails") || !strings.Contains(err.Error(), "store fails") {
		t.Errorf("got %v", err)
	}
	if got, want := links(t, f.NS), "br0 live other user"; got != want {
		t.Errorf("links of the host: %s, want %s", got, want)
	}
}

// A veth pair is found by the label of its host-side veth, and deleted even if the path of the
// namespace is gone. The pair of another attachment is left.
func TestKernelVethOwnership(t *testing.T) {
	f := newFake(t)
	p := f.plugin()
	p.Kind, p.Veth = "veth", true
	f.instead["link"] = func(op *attach.Op, d *driver) error { return op.CreateVeth(d.MTU, 0) }
	before := f.state()
	f.fail["link"] = errors.New("made to fail")
	if _, err := f.call(t.Context(), spec.Add, p, ""); err == nil {
		t.Error("ADD succeeds")
	}
	if after := f.state(); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}

	delete(f.fail, "link")
	if _, err := f.call(t.Context(), spec.Add, p, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := f.call(t.Context(), spec.Add, p, ""); err == nil || spec.AsError(err).Code != spec.CodeBusy {
		t.Errorf("a second ADD: %v", err)
	}
	own := attach.HostNames(spec.Attachment{Network: "net", ContainerID: "ctr", IfName: "eth0"})[0]
	if got := links(t, f.NS); got != "fake0 "+own {
		t.Errorf("links of the host: %s", got)
	}
	f.Cont.Path = "/nowhere"
	if _, err := f.call(t.Context(), spec.Del, p, ""); err != nil {
		t.Fatal(err)
	}
	if got := links(t, f.NS) + links(t, f.Cont.NS); got != "" {
		t.Errorf("left behind: %s", got)
	}

	foreign := spec.Attachment{Network: "net2", ContainerID: "ctr", IfName: "eth0"}
	host := kerneltest.Dial(t, f.NS)
	link, err := host.CreateLink(rtnl.LinkSpec{Name: "veth12345678", Peer: &rtnl.LinkSpec{Name: "eth0", NS: f.Cont.NS}})
	if err == nil {
		err = host.SetLink(link.Index, rtnl.LinkChange{Alias: new(foreign.Label(255))})
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Cont.Path = kerneltest.NSPath(t, f.Cont.NS)
	if _, err := f.call(t.Context(), spec.Del, p, ""); err != nil {
		t.Fatal(err)
	}
	if got := links(t, f.NS); got != "veth12345678" {
		t.Errorf("links of the host: %s", got)
	}
}
