//go:build !no_bandwidth

package applets

import (
	"context"
	"errors"

	"cnibox/rtnl"
	"cnibox/spec"
)

// bandwidthCheck compares both token buckets and the way to the IFB with the
// configuration, and changes nothing. What is not limited may be anything.
// The reference stops at the first discipline of another kind, and looks at no filter.
func bandwidthCheck(_ context.Context, r *spec.Request) error {
	p, err := readBandwidth(r)
	if err != nil || p.empty() {
		return err
	}
	s, err := openShaper(r, spec.CodeCheck)
	if err != nil {
		return err
	}
	defer s.close()
	root, ingress, err := s.host.Qdiscs(s.veth.Index)
	if err != nil {
		return err
	}
	if p.ingress.rate != 0 {
		if err := p.ingress.check(s.veth, root); err != nil {
			return err
		}
	}
	if p.egress.rate == 0 {
		return nil
	}
	ifb, err := s.liveIFB()
	if err != nil {
		return err
	}
	if ingress == nil {
		return spec.Errorf(spec.CodeCheck, "Failed to find qdisc: %s has none for what it receives", s.veth.Name)
	}
	to, err := s.host.Redirects(s.veth.Index)
	if err != nil {
		return err
	}
	if len(to) == 0 || to[0] != ifb.Index {
		return spec.Errorf(spec.CodeCheck, "what %s receives is not redirected to %s", s.veth.Name, ifb.Name)
	}
	if root, _, err = s.host.Qdiscs(ifb.Index); err != nil {
		return err
	}
	return p.egress.check(ifb, root)
}

// liveIFB returns the attachment's IFB, which must be up. One that the reference made
// is as good.
func (s *shaper) liveIFB() (*rtnl.Link, error) {
	ifbs, err := s.ifbs()
	if err != nil {
		return nil, err
	}
	if len(ifbs) == 0 {
		return nil, spec.Errorf(spec.CodeCheck, "the IFB %s is missing: nothing limits what %s sends", ifbNames(s.r.Attachment)[0], s.r.IfName)
	}
	if l := ifbs[0]; !l.Up {
		return nil, spec.Errorf(spec.CodeCheck, "link %s is down: what %s sends is lost", l.Name, s.r.IfName)
	}
	return ifbs[0], nil
}

// check compares the discipline of a link with the limit.
// The words are the reference's, by which people find the error.
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
	return spec.Errorf(spec.CodeCheck, "%s doesn't match: %s lets through %d bytes/s, %d at once and keeps %d, configured are %d, %d and %d",
		what, link.Name, have.Rate, have.Burst, have.Limit, want.Rate, want.Burst, want.Limit)
}

// probeShaping makes all parts on a link.
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
