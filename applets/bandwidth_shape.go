//go:build !no_bandwidth

package applets

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"

	"cnibox/rtnl"
	"cnibox/spec"
)

const (
	ifbPrefix = "bwp" // the reference's; 12 hex digits fill the name up
	ifbDigits = 12
	aliasSize = 255 // bytes of a link alias: IFALIASZ less its NUL, include/uapi/linux/if.h
)

// ifbNames are the names that the attachment's IFB may have, in the order they are tried:
// first the one that the reference gives, so that its DEL finds it too. In that the
// interface is left out, so that two of a container on one network would get one name,
// and the second ADD fail; the other name is the attachment's alone.
func ifbNames(a spec.Attachment) [2]string {
	sum := sha512.Sum512([]byte(a.Network + a.ContainerID))
	return [2]string{ifbPrefix + hex.EncodeToString(sum[:ifbDigits/2]), ifbPrefix + a.Key()[8:8+ifbDigits]}
}

// A shaper is one verb at work on a pair.
type shaper struct {
	*chained
	r    *spec.Request
	host *rtnl.Conn
	veth *rtnl.Link // the host's end; nil at DEL: gone
	undo undoing
}

// openShaper finds both ends of the pair; none is the code of the error when one is
// missing, 0 for DEL.
// The caller closes it.
func openShaper(r *spec.Request, none int) (*shaper, error) {
	c, err := openChained(r, none)
	if err != nil {
		return nil, err
	}
	s := &shaper{chained: c, r: r}
	if s.host, err = rtnl.Dial(nil); err == nil {
		err = s.findVeth()
	}
	if errors.Is(err, os.ErrNotExist) {
		if none == 0 {
			return s, nil
		}
		err = spec.Errorf(none, "%w; bandwidth works on veth pairs", err)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// close gives the descriptors back.
func (s *shaper) close() {
	if s.host != nil {
		s.host.Close()
	}
	s.chained.close()
}

// findVeth finds the host's end.
func (s *shaper) findVeth() (err error) {
	if s.link != nil {
		s.veth, err = s.host.VethPeer(s.link, s.ns)
	}
	if s.link == nil || errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s in %s has no veth peer on the host: %w", s.r.IfName, s.r.Call.NetNS, os.ErrNotExist)
	}
	return err
}

// apply makes all changes, each with its undo. What an earlier ADD limited and this one
// does not goes last.
func (s *shaper) apply(p *bandwidthPlan) error {
	if err := s.claim(p.dir, s.r.Attachment, &s.undo); err != nil {
		return err
	}
	root, ingress, err := s.host.Qdiscs(s.veth.Index)
	if err != nil {
		return err
	}
	if p.ingress.rate != 0 {
		if err := s.limit(s.veth, root, p.ingress); err != nil {
			return err
		}
	}
	switch {
	case p.egress.rate != 0:
		err = s.limitSent(ingress, p.egress)
	case ingress != nil:
		err = s.unredirect(ingress)
	}
	if err == nil && p.ingress.rate == 0 {
		err = s.unlimit(root)
	}
	return err
}

// limitSent leads what the container sends through an IFB that is limited; ingress is
// what the host's end has.
func (s *shaper) limitSent(ingress *rtnl.Qdisc, want limit) error {
	ifb, root, err := s.ifb()
	if err != nil {
		return err
	}
	if err := s.limit(ifb, root, want); err != nil {
		return err
	}
	if err := s.redirect(ingress, ifb); err != nil {
		return err
	}
	same := func(i spec.Interface) bool { return i.Name == ifb.Name && i.Sandbox == "" }
	if !slices.ContainsFunc(s.r.Prev.Interfaces, same) {
		s.r.Prev.Interfaces = append(s.r.Prev.Interfaces, spec.Interface{Name: ifb.Name, MAC: ifb.MAC.String()})
	}
	return nil
}

// limit gives a link its token bucket, in place of the one of an earlier ADD. root is
// what the link has; another kind there is somebody else's.
func (s *shaper) limit(l *rtnl.Link, root *rtnl.Qdisc, want limit) error {
	t := want.tbf(l.MTU)
	if uint64(t.Burst) > want.burst {
		s.r.Warn("a burst of %d bytes would let no whole packet through %s: it is made %d", want.burst, l.Name, t.Burst)
	}
	op := rtnl.NewTBF(l.Index, t)
	back := rtnl.DropRootQdisc(l.Index)
	switch {
	case root == nil:
	case root.Kind != "tbf":
		return spec.Errorf(spec.CodeBusy, "create qdisc: %s has one of kind %s, which this plugin did not make: `tc qdisc del dev %s root` removes it",
			l.Name, root.Kind, l.Name)
	default:
		op, back = rtnl.ReplaceTBF(l.Index, t), rtnl.ReplaceTBF(l.Index, root.TBF)
	}
	s.undo.add("qdisc of "+l.Name, func() error { return s.host.Do(back) })
	if err := s.host.Do(op); err != nil {
		return fmt.Errorf("create qdisc of %s: %w", l.Name, err)
	}
	// The memory of a packet is about twice its length. A kernel without it is fine.
	memory := min(t.Limit, 1<<31-1) * 2
	if err := s.host.Do(rtnl.NewFQCodel(l.Index, memory)); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.r.Warn("no fair queueing on %s: %v", l.Name, err)
	}
	return nil
}

// ifb makes the IFB, or takes that of an earlier ADD, and returns the discipline it has.
func (s *shaper) ifb() (*rtnl.Link, *rtnl.Qdisc, error) {
	found, err := s.ifbs()
	if err != nil {
		return nil, nil, err
	}
	if len(found) > 0 {
		return s.adopt(found[0])
	}
	label := rtnl.LinkChange{Alias: new(s.r.Label(aliasSize))}
	for _, name := range ifbNames(s.r.Attachment) {
		l, makeErr := s.host.CreateLink(rtnl.LinkSpec{Name: name, Kind: rtnl.IFB{}, MTU: s.veth.MTU, TxQLen: new(0), Up: true})
		if makeErr == nil {
			s.undo.add("link "+name, func() error { return s.host.Do(rtnl.DropLink(l.Index)) })
			// Not with the link: by its name, another's of that name would be labelled.
			return l, nil, s.host.SetLink(l.Index, label)
		}
		if err = fmt.Errorf("adding link: %w", makeErr); !errors.Is(err, os.ErrExist) {
			return nil, nil, err
		}
	}
	return nil, nil, spec.Errorf(spec.CodeBusy, "%w: it is not of %s", err, s.r.Attachment)
}

// adopt brings an IFB into the state of a new one.
func (s *shaper) adopt(l *rtnl.Link) (*rtnl.Link, *rtnl.Qdisc, error) {
	was := rtnl.LinkChange{MTU: new(l.MTU), Up: &l.Up, Alias: &l.Alias}
	s.undo.add("link "+l.Name, func() error { return s.host.SetLink(l.Index, was) })
	now := rtnl.LinkChange{MTU: &s.veth.MTU, Up: new(true), Alias: new(s.r.Label(aliasSize))}
	if err := s.host.SetLink(l.Index, now); err != nil {
		return nil, nil, err
	}
	l.MTU = s.veth.MTU
	root, _, err := s.host.Qdiscs(l.Index)
	return l, root, err
}

// redirect leads what the container sends through the IFB. ingress is what the
// host's end has; filters of others that redirect everything stay and are an error.
func (s *shaper) redirect(ingress *rtnl.Qdisc, ifb *rtnl.Link) error {
	index := s.veth.Index
	add := rtnl.NewRedirect(index, ifb.Index)
	if ingress == nil {
		s.undo.add("ingress qdisc of "+s.veth.Name, func() error { return s.host.Do(rtnl.DropIngress(index)) })
		return s.host.Do(rtnl.NewIngress(index), add)
	}
	to, err := s.host.Redirects(index)
	switch {
	case err != nil:
		return err
	case len(to) > 0 && to[0] == ifb.Index:
		return nil
	case len(to) > 0 && to[0] != 0:
		return spec.Errorf(spec.CodeBusy, "what %s receives is redirected to link #%d already; DEL the attachment that did it first", s.veth.Name, to[0])
	}
	s.undo.add("filters of "+s.veth.Name, func() error { return s.host.Do(rtnl.DropRedirects(index)) })
	if len(to) > 0 { // to a link that is gone
		if err := s.host.Do(rtnl.DropRedirects(index)); err != nil {
			return err
		}
	}
	return s.host.Do(add)
}

// bandwidthDel takes the shaping off the host's end, if that is still there and the
// attachment's, and deletes the IFB. Neither prevResult nor a valid configuration is needed.
func bandwidthDel(_ context.Context, r *spec.Request) error {
	s, err := openShaper(r, 0)
	if err != nil {
		return err
	}
	defer s.close()
	dir := recordsOf(r, bandwidthDataDir)
	own, ownErr := s.owns(r, dir, readOwn[claim](dir, r.Attachment))
	if !own {
		s.veth = nil
	}
	var root, ingress *rtnl.Qdisc
	if s.veth != nil {
		root, ingress, err = s.host.Qdiscs(s.veth.Index)
	}
	if err := errors.Join(ownErr, rtnl.SkipAbsent(err), s.unlimit(root), s.unredirect(ingress)); err != nil {
		return err
	}
	return dir.remove(recordName(r.Attachment))
}

// unlimit gives the host's end its own discipline back, if it has a token bucket.
func (s *shaper) unlimit(root *rtnl.Qdisc) error {
	if root == nil || root.Kind != "tbf" {
		return nil
	}
	return rtnl.SkipAbsent(s.host.Do(rtnl.DropRootQdisc(s.veth.Index)))
}

// unredirect deletes the IFBs, and the filters of the host's end if they lead to one of
// these. ingress is what that has; nil: nothing.
func (s *shaper) unredirect(ingress *rtnl.Qdisc) error {
	ifbs, err := s.ifbs()
	errs := []error{err}
	var to []uint32
	if ingress != nil {
		to, err = s.host.Redirects(s.veth.Index)
		errs = append(errs, rtnl.SkipAbsent(err))
	}
	for _, l := range ifbs {
		if slices.Contains(to, l.Index) {
			drop := rtnl.DropRedirects(s.veth.Index)
			if ingress.Kind == "ingress" {
				drop = rtnl.DropIngress(s.veth.Index)
			}
			errs = append(errs, rtnl.SkipAbsent(s.host.Do(drop)))
			to = nil
		}
		errs = append(errs, rtnl.SkipAbsent(s.host.Do(rtnl.DropLink(l.Index))))
	}
	return errors.Join(errs...)
}

// ifbs returns the attachment's IFB, which its label tells, and the one that the reference
// made without a label, unless another interface of the container is the one that uses it.
func (s *shaper) ifbs() (found []*rtnl.Link, err error) {
	var old *rtnl.Link
	for _, name := range ifbNames(s.r.Attachment) {
		l, linkErr := s.host.Link(name)
		switch {
		case linkErr != nil:
			err = errors.Join(err, rtnl.SkipAbsent(linkErr))
		case l.Kind != "ifb":
		case spec.LabelKey(l.Alias) == s.r.Key():
			found = append(found, l)
		case l.Alias == "":
			old = l
		}
	}
	if old == nil {
		return found, err
	}
	users, usersErr := redirected(s.host)
	by := users[old.Index]
	if usersErr == nil && len(by) == 0 || s.veth != nil && slices.Contains(by, s.veth.Index) {
		found = append(found, old)
	}
	return found, errors.Join(err, usersErr)
}

// redirected returns for each link that packets are redirected to the links that they
// come from.
func redirected(host *rtnl.Conn) (map[uint32][]uint32, error) {
	links, err := host.IngressLinks()
	users := make(map[uint32][]uint32)
	for _, index := range links {
		to, toErr := host.Redirects(index)
		err = errors.Join(err, rtnl.SkipAbsent(toErr))
		for _, target := range to {
			users[target] = append(users[target], index)
		}
	}
	return users, err
}

// bandwidthGC deletes the IFBs of attachments of the network that are gone, and those of
// the reference that no packet can come to any more, whose attachments nothing tells.
func bandwidthGC(_ context.Context, r *spec.Request) error {
	host, err := rtnl.Dial(nil)
	if err != nil {
		return err
	}
	defer host.Close()
	links, err := host.Links()
	if err != nil {
		return err
	}
	var ops []rtnl.Op
	var old []uint32
	stale := r.Stale()
	for _, l := range links {
		switch {
		case l.Kind != "ifb":
		case stale(l.Alias):
			ops = append(ops, rtnl.DropLink(l.Index))
		case l.Alias == "" && isIFBName(l.Name):
			old = append(old, l.Index)
		}
	}
	var users map[uint32][]uint32
	if old != nil {
		users, err = redirected(host)
	}
	for _, index := range old {
		if err == nil && len(users[index]) == 0 {
			ops = append(ops, rtnl.DropLink(index))
		}
	}
	return errors.Join(err, rtnl.SkipAbsent(host.Do(ops...)), recordsOf(r, bandwidthDataDir).keep(r.Network, r.Valid))
}

// isIFBName tells the names that the plugin and the reference give.
func isIFBName(name string) bool { return spec.Hashed(name, ifbPrefix, ifbDigits) }
