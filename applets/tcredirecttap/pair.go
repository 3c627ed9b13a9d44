package tcredirecttap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

const aliasSize = 255 // bytes of a link alias: IFALIASZ less its NUL, include/uapi/linux/if.h

// made is what the record of an attachment has: the name of the tap, which a killed ADD has not
// labelled yet.
type made struct {
	Tap string `json:"tap"`
}

// A pair is a verb on the interface and its tap.
type pair struct {
	*chained.Op
	tap     *rtnl.Link  // nil: none
	ingress *rtnl.Qdisc // of the interface; nil: none
	to      []uint32    // links to which the interface redirects what it receives; 0: one that is gone
	names   []string    // of the links of the container
}

// find finds the tap: the one with the attachment's label, or without a label the one on record, or
// the one to which the interface redirects, as after an ADD of the reference.
func find(op *chained.Op) (*pair, error) {
	p := &pair{Op: op}
	links, err := op.Cont.Links()
	if err != nil {
		return nil, err
	}
	if op.Link != nil {
		if p.ingress, p.to, err = p.redirects(op.Link); err != nil {
			return nil, err
		}
	}
	recorded, err := p.recorded()
	if err != nil {
		return nil, err
	}
	for i, l := range links {
		p.names = append(p.names, l.Name)
		unlabelled := l.Alias == "" && (l.Name == recorded || slices.Contains(p.to, l.Index))
		if l.Kind == "tun" && (spec.LabelKey(l.Alias) == op.Key() || unlabelled) {
			p.tap = &links[i]
		}
	}
	return p, nil
}

// recorded returns the name of the tap on record, if that is of this namespace.
func (p *pair) recorded() (name string, err error) {
	rec := record.Find[made](p.Dir, p.Attachment)
	if rec == nil {
		return "", nil
	}
	if id, err := p.ID(); err != nil || !rec.SameNS(id) {
		return "", err
	}
	return rec.Data.Tap, nil
}

// redirects returns the ingress qdisc of a link, nil if it has none, and the links to which it
// redirects what it receives; 0: a link that is gone.
func (p *pair) redirects(l *rtnl.Link) (ingress *rtnl.Qdisc, to []uint32, err error) {
	if _, ingress, err = p.Cont.Qdiscs(l.Index); err == nil && ingress != nil {
		to, err = p.Cont.Redirects(l.Index)
	}
	return ingress, to, rtnl.SkipAbsent(err)
}

// checkRedirect looks for the redirect from one link to the other.
func (p *pair) checkRedirect(from, to *rtnl.Link) error {
	_, now, err := p.redirects(from)
	if err == nil && (len(now) == 0 || now[0] != to.Index) {
		err = spec.Errorf(spec.CodeCheck, "what %s receives is not redirected to %s", from.Name, to.Name)
	}
	return err
}

// Apply makes the tap and both redirects. RESTORE keeps a tap that exists: a virtual machine may have
// it open.
func (c *conf) Apply(op *chained.Op) error {
	p, err := find(op)
	if err != nil {
		return err
	}
	foreign := func(index uint32) bool { return index != 0 && (p.tap == nil || index != p.tap.Index) }
	switch {
	case p.tap != nil && !op.Restoring():
		return spec.Errorf(spec.CodeBusy, "%s has the tap %s already: DEL its attachment first", op.IfName, p.tap.Name)
	case slices.ContainsFunc(p.to, foreign):
		return spec.Errorf(spec.CodeBusy, "what %s receives is redirected to link #%d already: `tc qdisc del dev %s ingress` ends that", op.IfName, p.to[0], op.IfName)
	}
	if err := p.setUpTap(c); err != nil {
		return err
	}
	if err := p.redirect(p.tap, op.Link); err != nil {
		return err
	}
	if err := p.redirect(op.Link, p.tap); err != nil {
		return err
	}
	if !op.Restoring() {
		p.report()
	}
	return nil
}

// setUpTap creates the tap unless it exists, and sets it up with the MTU of the interface. RESTORE
// creates it with the name and the address that prevResult has.
func (p *pair) setUpTap(c *conf) error {
	var addr net.HardwareAddr
	name := c.TapName
	if guest := guestOf(p.Request); guest != nil && p.Restoring() {
		name = guest.Name
		for _, ifc := range p.Prev.Interfaces {
			if ifc.Name == name && ifc.Sandbox != p.ContainerID {
				addr, _ = spec.HardwareAddr(ifc.MAC) // else a random one
			}
		}
	}
	if p.tap != nil {
		name = p.tap.Name
	}
	for n := 0; name == ""; n++ {
		if free := fmt.Sprint("tap", n); !slices.Contains(p.names, free) {
			name = free
		}
	}
	if err := chained.WriteRecord(p.Op, record.Name(p.Attachment), made{name}); err != nil {
		return err
	}
	if p.tap == nil {
		if err := p.createTap(c, name); err != nil {
			return err
		}
	}
	p.tap.MTU, p.tap.Up = p.Link.MTU, true
	return p.Cont.SetLink(p.tap.Index, rtnl.LinkChange{MAC: addr, MTU: &p.tap.MTU, Up: &p.tap.Up, Alias: new(p.Label(aliasSize))})
}

func (p *pair) createTap(c *conf, name string) error {
	owner := rtnl.Tap{Owner: cmp.Or(c.UID, new(uint32(unix.Geteuid()))), Group: cmp.Or(c.GID, new(uint32(unix.Getegid())))}
	err := p.NS.Do(func() error { return rtnl.CreateTap(name, owner) })
	if errors.Is(err, os.ErrExist) {
		return spec.Errorf(spec.CodeBusy, "failed to create tap device: %s already exists in %s: choose another name", name, p.Call.NetNS)
	}
	if err != nil {
		return fmt.Errorf("failed to create tap device: %w", err)
	}
	p.Undo("link "+name, func(context.Context) error { return p.Cont.DelLink(name) })
	p.tap, err = p.Cont.Link(name)
	return err
}

// redirect makes a link redirect what it receives, to the other one alone.
func (p *pair) redirect(from, to *rtnl.Link) error {
	ingress, now, err := p.redirects(from)
	if err != nil || slices.Equal(now, []uint32{to.Index}) {
		return err
	}
	var ops []rtnl.Op
	undo := rtnl.DropRedirects(from.Index)
	switch {
	case ingress == nil:
		ops, undo = []rtnl.Op{rtnl.NewIngress(from.Index)}, rtnl.DropIngress(from.Index)
	case len(now) > 0:
		ops = []rtnl.Op{undo}
	}
	p.Undo("redirect of "+from.Name, func(context.Context) error { return p.Cont.Do(undo) })
	return p.Cont.Do(append(ops, rtnl.NewRedirect(from.Index, to.Index))...)
}

// report adds to the result what the reference does: the tap, and the interface of the virtual
// machine, which has the name of the tap, the container ID as sandbox, and the MAC address and the addresses of
// the interface.
func (p *pair) report() {
	ips := p.Prev.Addresses(p.IfName, spec.AnySandbox)
	guest := len(p.Prev.Interfaces) + 1
	p.Prev.Interfaces = append(p.Prev.Interfaces,
		spec.Interface{Name: p.tap.Name, MAC: p.tap.MAC.String(), MTU: p.tap.MTU, Sandbox: p.Call.NetNS},
		spec.Interface{Name: p.tap.Name, MAC: p.Link.MAC.String(), MTU: p.tap.MTU, Sandbox: p.ContainerID})
	for _, ip := range ips {
		p.Prev.IPs = append(p.Prev.IPs, spec.IP{Address: ip.Address, Gateway: ip.Gateway, Interface: &guest})
	}
}

// Release deletes the redirect of the interface, if that belongs to the attachment, and the tap.
func (c *conf) Release(op *chained.Op) error {
	if op.NS == nil {
		return nil
	}
	_, ownErr := op.Owned(op.Dir.Head(op.Attachment))
	p, err := find(op)
	if err != nil {
		return errors.Join(ownErr, err)
	}
	return errors.Join(ownErr, p.dropRedirect(), p.dropTap())
}

// dropRedirect deletes the redirect of the interface to the tap, or to one that is gone, since with that
// every packet would be lost. An ingress qdisc with other filters stays.
func (p *pair) dropRedirect() error {
	if p.Link == nil || !slices.ContainsFunc(p.to, func(index uint32) bool { return index == 0 || p.tap != nil && index == p.tap.Index }) {
		return nil
	}
	drop := rtnl.DropRedirects(p.Link.Index)
	if p.ingress.Kind == "ingress" {
		drop = rtnl.DropIngress(p.Link.Index)
	}
	return rtnl.SkipAbsent(p.Cont.Do(drop))
}

func (p *pair) dropTap() error {
	if p.tap == nil {
		return nil
	}
	return rtnl.SkipAbsent(p.Cont.Do(rtnl.DropLink(p.tap.Index)))
}
