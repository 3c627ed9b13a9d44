// Package tcredirecttap is the CNI plugin tc-redirect-tap: tap for a virtual machine that takes the place of an interface.
package tcredirecttap

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "tc-redirect-tap",
	Conf:    conf{},
	Summary: "tap for a virtual machine that takes the place of an interface",
	Help: `
key       type    default       meaning
tap_name  string  first free    name of the tap in the container: tap0, tap1, …
uid       int     the plugin's  user ID that may open the tap
gid       int     the plugin's  group ID that may open the tap
dataDir   string  (below)       stores the name of the tap until DEL; the default is
                                /run/cnibox/tc-redirect-tap

TC_REDIRECT_TAP_NAME, TC_REDIRECT_TAP_UID and TC_REDIRECT_TAP_GID of CNI_ARGS replace the first
three keys.

The tap has the MTU of the interface. What one of the two receives, the other sends: the virtual
machine needs the MAC address, the addresses and the routes of the interface, which processes in
the container can use no longer. The result has the tap, and the interface of the virtual machine,
with the name of the tap and the container ID as sandbox.`,
	Plugin: func() spec.Plugin { return flow.Spec() },
}

var flow = chained.Plugin{
	Facts: spec.Facts{Since: spec.Version{Minor: 3}, Args: true}, DataDir: dataDir,
	Unchained: "no previous result was found, was this plugin chained with a previous one?",
	Restores:  true, Restored: "tap set up",
	New: func() chained.Driver { return new(conf) },
}

const dataDir = "/run/cnibox/tc-redirect-tap"

// conf has the keys; Help describes each.
type conf struct {
	chained.Defaults
	chained.Stored
	TapName string  `json:"tap_name"`
	UID     *uint32 `json:"uid"` // nil: the plugin's
	GID     *uint32 `json:"gid"`
}

// Validate checks the keys and replaces them by those of CNI_ARGS, whose errors have code 4.
func (c *conf) Validate(r *spec.Request) error {
	if name, _ := r.Arg("TC_REDIRECT_TAP_NAME"); name != "" {
		if err := spec.CheckIfName(name); err != nil {
			return spec.Errorf(spec.CodeEnv, "ARGS: TC_REDIRECT_TAP_NAME %q: %s", name, err.Error()) // not wrapped: its code is that of CNI_IFNAME
		}
		c.TapName = name
	} else if c.TapName != "" {
		if err := spec.CheckIfName(c.TapName); err != nil {
			return spec.KeyErrorf("tap_name", `"tap_name" %q: %s`, c.TapName, err.Error())
		}
	}
	for _, id := range []struct {
		key, arg, phrase string
		to               **uint32
	}{{"uid", "TC_REDIRECT_TAP_UID", "tapUID", &c.UID}, {"gid", "TC_REDIRECT_TAP_GID", "tapGID", &c.GID}} {
		if text, ok := r.Arg(id.arg); ok {
			n, err := strconv.ParseUint(text, 10, 32)
			if err != nil {
				return spec.Errorf(spec.CodeEnv, "%s should be numeric convertible, got %q", id.phrase, text).
					WithDetails("%s of CNI_ARGS must be within 0 to %d", id.arg, uint32(noID-1))
			}
			*id.to = new(uint32(n))
		}
		if *id.to != nil && **id.to == noID {
			return spec.KeyErrorf(id.key, "%q must be below %d", id.key, uint32(noID))
		}
	}
	return nil
}

// noID is what the kernel takes for no user and no group.
const noID = math.MaxUint32

// Check looks for the tap and for the redirects of both links.
func (c *conf) Check(op *chained.Op) error {
	p, err := find(op)
	if err != nil {
		return err
	}
	guest := guestOf(op.Request)
	switch {
	case p.tap == nil:
		return spec.Errorf(spec.CodeCheck, "the tap of %s is missing", op.IfName)
	case guest != nil && guest.Name != p.tap.Name:
		return spec.Errorf(spec.CodeCheck, "the tap of %s is %s, not %s", op.IfName, p.tap.Name, guest.Name)
	case !p.tap.Up:
		return spec.Errorf(spec.CodeCheck, "%s is down", p.tap.Name)
	}
	return errors.Join(p.checkRedirect(op.Link, p.tap), p.checkRedirect(p.tap, op.Link))
}

// Probe tries what ADD needs from the kernel.
func (c *conf) Probe(op *chained.Op) error {
	err := op.Dir.CheckWritable()
	if err == nil {
		err = rtnl.ProbeTap()
	}
	if err != nil {
		return err
	}
	err = rtnl.InNewNS(func(c *rtnl.Conn) error {
		lo, err := c.Link("lo")
		if err != nil {
			return err
		}
		return c.Do(rtnl.NewIngress(lo.Index), rtnl.NewRedirect(lo.Index, lo.Index))
	})
	if err != nil {
		return spec.Errorf(spec.CodeNotReady, "tc-redirect-tap: this kernel cannot redirect packets: %w", err)
	}
	return nil
}

// Holds returns the tap.
func (c *conf) Holds(op *chained.Op) []spec.Holding {
	guest := guestOf(op.Request)
	if guest == nil {
		return nil
	}
	return []spec.Holding{{
		Kind: "tap", Text: fmt.Sprintf("tap %s in place of %s, MAC %s", guest.Name, op.IfName, guest.MAC),
		Data: map[string]string{"tap": guest.Name, "mac": guest.MAC},
	}}
}

// guestOf returns the interface of the virtual machine in prevResult; nil: there is none. It has the
// name of the tap.
func guestOf(r *spec.Request) *spec.Interface {
	if r.Prev == nil {
		return nil
	}
	for i, ifc := range r.Prev.Interfaces {
		if ifc.Sandbox == r.ContainerID {
			return &r.Prev.Interfaces[i]
		}
	}
	return nil
}
