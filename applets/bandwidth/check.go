package bandwidth

import (
	"errors"

	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Check compares both token buckets and the redirect to the IFB with the
// configuration. A direction without a limit is not checked.
func (c *conf) Check(op *chained.Op) error {
	if c.empty() {
		return nil
	}
	s, err := openShaper(op, spec.CodeCheck)
	if err != nil {
		return err
	}
	now, err := s.read()
	if err != nil {
		return err
	}
	if c.ingress.rate != 0 {
		if err := c.ingress.check(s.veth, now.root); err != nil {
			return err
		}
	}
	if c.egress.rate == 0 {
		return nil
	}
	if len(now.ifbs) == 0 {
		return spec.Errorf(spec.CodeCheck, "the IFB %s is missing: nothing limits what %s sends", ifbNames(s.Attachment)[0], s.IfName)
	}
	ifb := now.ifbs[0]
	switch {
	case !ifb.Up:
		return spec.Errorf(spec.CodeCheck, "link %s is down: what %s sends is lost", ifb.Name, s.IfName)
	case now.ingress == nil:
		return spec.Errorf(spec.CodeCheck, "Failed to find qdisc: %s has no ingress qdisc", s.veth.Name)
	case len(now.to) == 0 || now.to[0] != ifb.Index:
		return spec.Errorf(spec.CodeCheck, "ingress traffic of %s is not redirected to %s", s.veth.Name, ifb.Name)
	}
	root, _, err := s.host.Qdiscs(ifb.Index)
	if err != nil {
		return err
	}
	return c.egress.check(ifb, root)
}

// check compares the root qdisc of a link with the limit. The errors begin with the
// reference's phrases.
func (l limit) check(link *rtnl.Link, root *rtnl.Qdisc) error {
	want := l.tbf(link.MTU)
	var what string
	switch {
	case root == nil:
		return spec.Errorf(spec.CodeCheck, "Failed to find qdisc: %s has no token bucket", link.Name)
	case root.Kind != "tbf":
		return spec.Errorf(spec.CodeCheck, "Failed to find qdisc: that of %s is of kind %s, not tbf", link.Name, root.Kind)
	case want.Same(root.TBF):
		return nil
	case want.Rate != root.TBF.Rate:
		what = "Rate"
	case want.Limit != root.TBF.Limit:
		what = "Limit"
	default:
		what = "Buffer"
	}
	have := root.TBF
	return spec.Errorf(spec.CodeCheck, "%s doesn't match: %s has rate %d bytes/s, burst %d and limit %d, configured are %d, %d and %d",
		what, link.Name, have.Rate, have.Burst, have.Limit, want.Rate, want.Burst, want.Limit)
}

// probeShaping tries each part in a new namespace.
func probeShaping() error {
	return rtnl.InNewNS(func(c *rtnl.Conn) error {
		ifb, err := c.CreateLink(rtnl.LinkSpec{Name: ifbPrefix + "0", Kind: rtnl.IFB{}})
		if err != nil {
			return err
		}
		lo, err := c.Link("lo")
		if err != nil {
			return err
		}
		t := limit{rate: leastBurst, burst: leastBurst}.tbf(ifb.MTU)
		return errors.Join(c.Do(rtnl.NewTBF(ifb.Index, t)), c.Do(rtnl.NewIngress(lo.Index), rtnl.NewRedirect(lo.Index, ifb.Index)))
	})
}
