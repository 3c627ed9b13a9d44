package bandwidth

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

const (
	ifbPrefix = "bwp" // the reference's; 12 hex digits follow
	ifbDigits = 12
	aliasSize = 255 // bytes of a link alias: IFALIASZ less its NUL, include/uapi/linux/if.h
)

// ifbNames returns the possible names of the attachment's IFB in the order of attempts. The first
// is the reference's, so that its DEL finds the link. It does not depend on CNI_IFNAME: a second
// interface of the container on the network gets the other name.
func ifbNames(a spec.Attachment) [2]string {
	sum := sha512.Sum512([]byte(a.Network + a.ContainerID))
	return [2]string{ifbPrefix + hex.EncodeToString(sum[:ifbDigits/2]), ifbPrefix + a.Key()[8:8+ifbDigits]}
}

// isIFBName reports whether a name has the form of the plugin's and the reference's names.
func isIFBName(name string) bool { return spec.Hashed(name, ifbPrefix, ifbDigits) }

// A shaper is a verb on a veth pair.
type shaper struct {
	*chained.Op
	host *rtnl.Conn
	veth *rtnl.Link // host-side veth; nil at DEL: gone, or another attachment's
}

// A shaping is the state of a pair's limits in the kernel.
type shaping struct {
	root, ingress *rtnl.Qdisc  // of the host-side veth; nil: none
	to            []uint32     // links to which it redirects what it receives; 0: a link that is gone
	ifbs          []*rtnl.Link // of the attachment
}

// openShaper finds the host-side veth. missing is the code of the error for a missing one; 0, for
// DEL: it is not an error.
func openShaper(op *chained.Op, missing int) (*shaper, error) {
	s := &shaper{Op: op}
	var err error
	if s.host, err = op.OnHost(); err != nil {
		return nil, err
	}
	err = s.findVeth()
	if errors.Is(err, os.ErrNotExist) {
		if missing == 0 {
			return s, nil
		}
		err = spec.Errorf(missing, "%w; bandwidth works on veth pairs", err)
	}
	return s, err
}

func (s *shaper) findVeth() (err error) {
	if s.Link != nil {
		s.veth, err = s.host.VethPeer(s.Link, s.NS)
	}
	if s.Link == nil || errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s in %s has no veth peer on the host: %w", s.IfName, s.Call.NetNS, os.ErrNotExist)
	}
	return err
}

// read returns the present limits of the pair. For DEL the result of an error may be incomplete.
func (s *shaper) read() (*shaping, error) {
	now := &shaping{}
	ifbs, ifbErr := s.findIFBs()
	now.ifbs = ifbs
	if s.veth == nil {
		return now, ifbErr
	}
	var err error
	if now.root, now.ingress, err = s.host.Qdiscs(s.veth.Index); err == nil && now.ingress != nil {
		now.to, err = s.host.Redirects(s.veth.Index)
	}
	return now, errors.Join(ifbErr, rtnl.SkipAbsent(err))
}

// uses reports whether the pair's traffic is redirected to an IFB of the attachment.
func (now *shaping) uses(index uint32) bool {
	return slices.ContainsFunc(now.ifbs, func(l *rtnl.Link) bool { return l.Index == index })
}

// findIFBs returns the attachment's IFBs: those with its label, and the reference's, which has no
// label, unless another interface of the container uses that.
func (s *shaper) findIFBs() (found []*rtnl.Link, err error) {
	for _, name := range ifbNames(s.Attachment) {
		l, linkErr := s.host.Link(name)
		switch {
		case linkErr != nil:
			err = errors.Join(err, rtnl.SkipAbsent(linkErr))
		case l.Kind != "ifb":
		case spec.LabelKey(l.Alias) == s.Key():
			found = append(found, l)
		case l.Alias == "":
			users, usersErr := redirectSources(s.host)
			devices := users[l.Index]
			if usersErr == nil && len(devices) == 0 || s.veth != nil && slices.Contains(devices, s.veth.Index) {
				found = append(found, l)
			}
			err = errors.Join(err, usersErr)
		}
	}
	return found, err
}

// redirectSources returns, for each link to which others redirect ingress traffic, the indexes of
// those.
func redirectSources(host *rtnl.Conn) (map[uint32][]uint32, error) {
	links, err := host.IngressLinks()
	sources := make(map[uint32][]uint32)
	for _, index := range links {
		to, toErr := host.Redirects(index)
		err = errors.Join(err, rtnl.SkipAbsent(toErr))
		for _, target := range to {
			sources[target] = append(sources[target], index)
		}
	}
	return sources, err
}

// apply sets the limits of a plan in place of those of an earlier ADD or of the reference. Another
// program's qdisc on the pair is an error before the first change.
func (s *shaper) apply(c *conf) error {
	now, err := s.read()
	if err != nil {
		return err
	}
	if c.ingress.rate != 0 && now.root != nil && now.root.Kind != "tbf" {
		return spec.Errorf(spec.CodeBusy, "create qdisc: %s has one of kind %s, which this plugin did not make: `tc qdisc del dev %s root` removes it",
			s.veth.Name, now.root.Kind, s.veth.Name)
	}
	if c.egress.rate != 0 && len(now.to) > 0 && now.to[0] != 0 && !now.uses(now.to[0]) {
		return spec.Errorf(spec.CodeBusy, "ingress traffic of %s is redirected to link #%d already: DEL the attachment that did it first", s.veth.Name, now.to[0])
	}
	if err := s.Record(); err != nil {
		return err
	}
	if c.ingress.rate != 0 {
		if err := s.limit(s.veth, now.root, c.ingress); err != nil {
			return err
		}
	}
	if c.egress.rate != 0 {
		if err := s.limitEgress(now, c.egress); err != nil {
			return err
		}
	}
	// Limits that only an earlier ADD had are removed last, when nothing else can fail.
	if c.ingress.rate == 0 && now.root != nil && now.root.Kind == "tbf" {
		s.Undo("qdisc of "+s.veth.Name, func(context.Context) error { return s.setBucket(s.veth, now.root.TBF) })
		err = s.dropBucket(now)
	}
	if err != nil {
		return err
	}
	former := now.to
	s.Undo("redirect of "+s.veth.Name, func(context.Context) error {
		if now.to != nil || former == nil { // dropIFBs has not deleted it
			return nil
		}
		if now.ingress == nil {
			if err := s.host.Do(rtnl.NewIngress(s.veth.Index)); err != nil {
				return err
			}
		}
		return s.restoreRedirect(former)
	})
	return s.dropIFBs(now)
}

// limit adds a token bucket to a link, or changes the existing one.
func (s *shaper) limit(l *rtnl.Link, root *rtnl.Qdisc, want limit) error {
	t := want.tbf(l.MTU)
	if uint64(t.Burst) > want.burst {
		s.Warn("a burst of %d bytes is less than a packet of %s: it is set to %d", want.burst, l.Name, t.Burst)
	}
	s.Undo("qdisc of "+l.Name, func(context.Context) error {
		if root != nil && root.Kind == "tbf" {
			return s.setBucket(l, root.TBF)
		}
		return s.host.Do(rtnl.DropRootQdisc(l.Index))
	})
	return s.setBucket(l, t)
}

// setBucket gives a link a token bucket with fair queueing, if the kernel supports that.
func (s *shaper) setBucket(l *rtnl.Link, t rtnl.TBF) error {
	if err := s.host.Do(rtnl.ReplaceTBF(l.Index, t)); err != nil {
		return fmt.Errorf("create qdisc of %s: %w", l.Name, err)
	}
	memory := min(t.Limit, 1<<31-1) * 2 // a packet needs about twice its length
	if err := s.host.Do(rtnl.NewFQCodel(l.Index, memory)); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.Warn("no fair queueing on %s: %v", l.Name, err)
	}
	return nil
}

// limitEgress limits what the container sends, on the attachment's IFB or on a new one. It removes
// an IFB that it uses from now.ifbs.
func (s *shaper) limitEgress(now *shaping, want limit) error {
	ifb, err := s.takeIFB(now)
	if err == nil && ifb == nil {
		ifb, err = s.makeIFB()
	}
	if err != nil {
		return err
	}
	root, _, err := s.host.Qdiscs(ifb.Index)
	if err != nil {
		return err
	}
	if err := s.limit(ifb, root, want); err != nil {
		return err
	}
	if len(now.to) != 1 || now.to[0] != ifb.Index {
		if err := s.redirect(now, ifb); err != nil {
			return err
		}
	}
	now.to = nil
	s.Prev.Interfaces = slices.DeleteFunc(s.Prev.Interfaces, func(i spec.Interface) bool { return i.Name == ifb.Name && i.Sandbox == "" })
	s.Prev.Interfaces = append(s.Prev.Interfaces, spec.Interface{Name: ifb.Name, MAC: ifb.MAC.String()})
	return nil
}

// takeIFB removes the IFB of an earlier ADD from now.ifbs and configures it as makeIFB does; nil:
// there is none.
func (s *shaper) takeIFB(now *shaping) (*rtnl.Link, error) {
	if len(now.ifbs) == 0 {
		return nil, nil
	}
	former := now.ifbs[0]
	now.ifbs = now.ifbs[1:]
	label := s.Label(aliasSize)
	if former.Up && former.MTU == s.veth.MTU && former.Alias == label {
		return former, nil
	}
	s.Undo("link "+former.Name, func(context.Context) error {
		return s.host.SetLink(former.Index, rtnl.LinkChange{Alias: &former.Alias, MTU: &former.MTU, Up: &former.Up})
	})
	ifb := *former
	ifb.Up, ifb.MTU, ifb.Alias = true, s.veth.MTU, label
	return &ifb, s.host.SetLink(ifb.Index, rtnl.LinkChange{Alias: &ifb.Alias, MTU: &ifb.MTU, Up: &ifb.Up})
}

// makeIFB creates the link that queues what the container sends.
func (s *shaper) makeIFB() (*rtnl.Link, error) {
	var err error
	for _, name := range ifbNames(s.Attachment) {
		var l *rtnl.Link
		l, err = s.host.CreateLink(rtnl.LinkSpec{Name: name, Kind: rtnl.IFB{}, MTU: s.veth.MTU, TxQLen: new(0), Up: true})
		if err == nil {
			s.Undo("link "+name, func(context.Context) error { return s.host.Do(rtnl.DropLink(l.Index)) })
			// Not in the same request: that goes by name, and could label another link of that
			// name.
			return l, s.host.SetLink(l.Index, rtnl.LinkChange{Alias: new(s.Label(aliasSize))})
		}
		if err = fmt.Errorf("adding link: %w", err); !errors.Is(err, os.ErrExist) {
			return nil, err
		}
	}
	return nil, spec.Errorf(spec.CodeBusy, "%w: it is not of %s", err, s.Attachment)
}

// redirect makes the host-side veth redirect what it receives to the IFB.
func (s *shaper) redirect(now *shaping, ifb *rtnl.Link) error {
	index := s.veth.Index
	add := rtnl.NewRedirect(index, ifb.Index)
	if now.ingress == nil {
		s.Undo("ingress qdisc of "+s.veth.Name, func(context.Context) error { return s.host.Do(rtnl.DropIngress(index)) })
		return s.host.Do(rtnl.NewIngress(index), add)
	}
	former := now.to
	s.Undo("filters of "+s.veth.Name, func(context.Context) error {
		return errors.Join(rtnl.SkipAbsent(s.host.Do(rtnl.DropRedirects(index))), s.restoreRedirect(former))
	})
	if len(former) > 0 { // to a link that is gone, or to another IFB of the attachment
		if err := s.host.Do(rtnl.DropRedirects(index)); err != nil {
			return err
		}
	}
	return s.host.Do(add)
}

// restoreRedirect makes the host-side veth redirect to its former targets.
func (s *shaper) restoreRedirect(former []uint32) error {
	for _, to := range former {
		if to == 0 { // gone
			continue
		}
		if err := s.host.Do(rtnl.NewRedirect(s.veth.Index, to)); err != nil {
			return err
		}
	}
	return nil
}

// dropBucket removes the token bucket of the host-side veth.
func (s *shaper) dropBucket(now *shaping) error {
	if now.root == nil || now.root.Kind != "tbf" {
		return nil
	}
	return rtnl.SkipAbsent(s.host.Do(rtnl.DropRootQdisc(s.veth.Index)))
}

// dropIFBs deletes the attachment's IFBs, and the redirect to one of them, since without the IFB
// every packet would be lost. An ingress qdisc with other filters stays.
func (s *shaper) dropIFBs(now *shaping) error {
	if slices.ContainsFunc(now.to, now.uses) {
		noFilters := now.ingress.Kind == "ingress"
		drop := rtnl.DropRedirects(s.veth.Index)
		if noFilters {
			drop = rtnl.DropIngress(s.veth.Index)
		}
		if err := rtnl.SkipAbsent(s.host.Do(drop)); err != nil {
			return err
		}
		if now.to = nil; noFilters {
			now.ingress = nil
		}
	}
	var errs []error
	for _, l := range now.ifbs {
		errs = append(errs, rtnl.DelLater(s.Call.Session, l))
	}
	return errors.Join(errs...)
}

// Release removes the limits of the host-side veth, if it exists and belongs to the attachment, and
// deletes the IFB.
func (c *conf) Release(op *chained.Op) error {
	s, err := openShaper(op, 0)
	if err != nil {
		return err
	}
	own, ownErr := s.Owned(op.Dir.Head(op.Attachment))
	if !own {
		s.veth = nil
	}
	now, err := s.read()
	return errors.Join(ownErr, err, s.dropBucket(now), s.dropIFBs(now))
}

// Collect deletes the IFBs of the network's stale attachments, and those of the reference to which
// no link redirects: these do not name their attachment.
func (c *conf) Collect(op *chained.Op) error {
	host, err := op.OnHost()
	if err != nil {
		return err
	}
	links, err := host.Links()
	if err != nil {
		return err
	}
	var ops []rtnl.Op
	var unlabelled []uint32
	stale := op.Stale()
	for _, l := range links {
		switch {
		case l.Kind != "ifb":
		case stale(l.Alias):
			ops = append(ops, rtnl.DropLink(l.Index))
		case l.Alias == "" && isIFBName(l.Name):
			unlabelled = append(unlabelled, l.Index)
		}
	}
	var users map[uint32][]uint32
	if unlabelled != nil {
		users, err = redirectSources(host)
	}
	for _, index := range unlabelled {
		if err == nil && len(users[index]) == 0 {
			ops = append(ops, rtnl.DropLink(index))
		}
	}
	return errors.Join(err, rtnl.SkipAbsent(host.Do(ops...)), op.Dir.DeleteStale(op.Network, op.Valid))
}
