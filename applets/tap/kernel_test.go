package tap_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// openTap opens a queue, as a virtual machine does, and does not close it.
func openTap(p applettest.Container, flags uint16) error {
	return p.NS.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		req, _ := unix.NewIfreq("eth0")
		req.SetUint16(flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		return errors.Join(err, unix.Close(fd))
	})
}

// Every key works together with every other one. The reference ignores MTU and address if both
// owner and group are set.
func TestKernelTapKeys(t *testing.T) {
	applettest.NeedTap(t)
	const vm = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR
	for name, keys := range map[string]string{
		"neither": ``, "owner": `"owner":107,`, "group": `"group":108,`, "both": `"owner":107,"group":108,`, "root": `"owner":0,"group":0,`,
	} {
		for _, multi := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/multiQueue %t", name, multi), func(t *testing.T) {
				h := applettest.NewHost(t)
				p := h.Container("vm")
				bridge := rtnl.LinkSpec{Name: "k6t", Kind: rtnl.Bridge{}, Up: true}
				c := kerneltest.Dial(t, p.NS)
				if err := c.AddLink(bridge); err != nil {
					t.Fatal(err)
				}
				conf := applettest.Conf("tap", keys+fmt.Sprintf(`"multiQueue":%t,"mtu":1300,"mac":"02:00:00:00:00:01","bridge":"k6t"`, multi))
				res := h.Must(spec.Add, "tap", conf, p)
				if !strings.Contains(res, `"mac": "02:00:00:00:00:01"`) || !strings.Contains(res, `"mtu": 1300`) {
					t.Errorf("result: %s", res)
				}
				l := kerneltest.Link(t, c, "eth0")
				if l.Kind != "tun" || l.MTU != 1300 || l.MAC.String() != "02:00:00:00:00:01" || !l.Up || l.Master != kerneltest.Link(t, c, "k6t").Index {
					t.Errorf("link: %+v", l)
				}
				for file, key := range map[string]string{"owner": "owner", "group": "group"} {
					want := "-1"
					if _, rest, ok := strings.Cut(keys, `"`+key+`":`); ok {
						want, _, _ = strings.Cut(rest, ",")
					}
					if got := tapFile(t, p, file); got != want {
						t.Errorf("%s: got %s, want %s", file, got, want)
					}
				}
				opener, other := uint16(vm), uint16(vm|unix.IFF_MULTI_QUEUE)
				if multi {
					opener, other = other, opener
				}
				if err := openTap(p, opener); err != nil {
					t.Errorf("opened as it was made: %v", err)
				}
				if err := openTap(p, other); err == nil {
					t.Error("opened with another number of queues")
				}
				h.Must(spec.Check, "tap", applettest.Prev(conf, res), p)
				h.Must(spec.Del, "tap", conf, p)
				if _, err := c.Link("eth0"); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("after DEL: %v", err)
				}
				h.Must(spec.Del, "tap", conf, p)
			})
		}
	}
}

// tapFile reads an attribute of eth0 from the sysfs of the namespace.
func tapFile(t *testing.T, p applettest.Container, name string) (value string) {
	t.Helper()
	dir := t.TempDir()
	err := netns.OnDiscardedThread(func() error { // the mounts end with the thread
		if err := p.NS.Enter(); err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("sysfs", dir, "sysfs", unix.MS_RDONLY, ""); err != nil {
			return err
		}
		b, err := os.ReadFile(dir + "/class/net/eth0/" + name)
		value = strings.TrimSpace(string(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// An existing interface name is an error, and ADD leaves nothing. The reference returns the
// existing link, and leaves its own.
func TestKernelTapNameTaken(t *testing.T) {
	applettest.NeedTap(t)
	for name, link := range map[string]func(c *rtnl.Conn, p applettest.Container) error{
		"by a veth": func(c *rtnl.Conn, _ applettest.Container) error {
			return c.AddLink(rtnl.LinkSpec{Name: "eth0", Peer: &rtnl.LinkSpec{Name: "peer"}})
		},
		"by a tap": func(_ *rtnl.Conn, p applettest.Container) error {
			return p.NS.Do(func() error { return rtnl.CreateTap("eth0", rtnl.Tap{}) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := applettest.NewHost(t)
			p := h.Container("vm")
			if err := link(kerneltest.Dial(t, p.NS), p); err != nil {
				t.Fatal(err)
			}
			before := h.Snapshot(p)
			code, out := h.Call(spec.Add, "tap", applettest.Conf("tap", `"owner":1,"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24"}`), p)
			if code != spec.CodeBusy || !strings.Contains(out, "already exists") {
				t.Errorf("got %d %s", code, out)
			}
			if after := h.Snapshot(p); after != before {
				t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
			}
		})
	}
}

// An invalid configuration is refused before anything is made.
func TestKernelTapInvalidConf(t *testing.T) {
	applettest.NeedTap(t)
	h := applettest.NewHost(t)
	p := h.Container("vm")
	c := kerneltest.Dial(t, p.NS)
	if err := c.AddLink(rtnl.LinkSpec{Name: "v0", Peer: &rtnl.LinkSpec{Name: "v1"}}); err != nil {
		t.Fatal(err)
	}
	before := h.Snapshot(p)
	for name, tt := range map[string]struct{ keys, want string }{
		"mtu":           {`"mtu":65522`, "is not within 68 to 65521"},
		"owner below 0": {`"owner":-1`, "owner"},
		"owner invalid": {`"owner":4294967295`, "must be below 4294967295"},
		"group too big": {`"group":4294967296`, "group"},
		"mac":           {`"mac":"01:00:5e:00:00:01"`, "multicast"},
		"bridge":        {`"bridge":"nowhere"`, "nowhere"},
		"no bridge":     {`"bridge":"v0"`, "a bridge"},
		"bridge name":   {`"bridge":"../x"`, "interface name"},
		"label":         {`"selinuxContext":"a:b:c\n"`, "is not a label"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out := h.Call(spec.Add, "tap", applettest.Conf("tap", tt.keys), p)
			if code != spec.CodeConfig || !strings.Contains(out, tt.want) {
				t.Errorf("got %d %s, want code 7 with %q", code, out, tt.want)
			}
		})
	}
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err != nil { // no SELinux
		code, out := h.Call(spec.Add, "tap", applettest.Conf("tap", `"selinuxContext":"system_u:system_r:container_t:s0"`), p)
		if code != spec.CodeConfig || !strings.Contains(out, "SELinux is disabled") {
			t.Errorf("without SELinux: %d %s", code, out)
		}
	}
	if after := h.Snapshot(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}

// DEL keeps a link of another plugin.
func TestKernelTapDelLeavesOtherLink(t *testing.T) {
	applettest.NeedTap(t)
	h := applettest.NewHost(t)
	p := h.Container("vm")
	conf := applettest.Conf("tap", `"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24"}`)
	kerneltest.AddLink(t, p.NS, rtnl.LinkSpec{Name: "eth0", Peer: &rtnl.LinkSpec{Name: "peer"}})
	h.Must(spec.Del, "tap", conf, p)
	kerneltest.Link(t, kerneltest.Dial(t, p.NS), "eth0")
}
