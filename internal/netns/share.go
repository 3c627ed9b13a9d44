package netns

import (
	"errors"
	"io"
)

// A shared is what all that runs for a call in this process has of a namespace, and of the host's.
type shared struct {
	host *NS
	home home              // of the host, for both
	kept map[int]io.Closer // by netlink protocol
}

// ShareHost returns the namespace of the process for calls that come one after another: what [Keep] opens in
// it stays open until end, if they share theirs by [NS.ShareWith].
func ShareHost() (host *NS, end func() error, err error) {
	host = Host()
	own, err := host.ID()
	if err != nil {
		return nil, nil, err
	}
	host.id = own
	host.shared = &shared{host: host, kept: map[int]io.Closer{}}
	return host, func() error { return errors.Join(host.shared.close(), host.close()) }, nil
}

// Share has all that runs for a call in this process use ns: what [Keep] opens in it, and in
// [NS.Host], stays open, and Close does nothing, until end. The namespace of the process is not
// shared: ok is false.
func (ns *NS) Share() (end func() error, ok bool) {
	host, endHost, err := ShareHost()
	if err != nil {
		return nil, false
	}
	own, ok := ns.ShareWith(host)
	if !ok {
		return nil, false
	}
	return func() error { return errors.Join(own(), endHost()) }, true
}

// ShareWith is Share with the host of [ShareHost], which stays open at end.
func (ns *NS) ShareWith(host *NS) (end func() error, ok bool) {
	if same, err := ns.Same(host); err != nil || same {
		return nil, false
	}
	ns.shared = &shared{host: host, kept: map[int]io.Closer{}}
	return func() error { return errors.Join(ns.shared.close(), ns.close()) }, true
}

// Host returns the one of the process, shared as ns is. Nil is none, which is not shared.
func (ns *NS) Host() *NS {
	if ns == nil || ns.shared == nil {
		return Host()
	}
	return ns.shared.host
}

// Keep returns what a shared namespace keeps for a netlink protocol: the first time, what open returns,
// which is kept and closed at the end. Of one that is not shared it is what open returns, which the
// caller closes.
func Keep[C io.Closer](ns *NS, protocol int, open func(kept bool) (C, error)) (c C, err error) {
	if ns.shared == nil {
		return open(false)
	}
	ns.mu.Lock()
	if c, ok := ns.shared.kept[protocol].(C); ok {
		ns.mu.Unlock()
		return c, nil
	}
	ns.mu.Unlock()
	if c, err = open(true); err != nil { // without the lock, which it may need
		return c, err
	}
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if first, ok := ns.shared.kept[protocol].(C); ok { // opened by another goroutine meanwhile
		c.Close()
		return first, nil
	}
	ns.shared.kept[protocol] = c
	return c, nil
}

func (s *shared) close() error {
	var errs []error
	for _, c := range s.kept {
		errs = append(errs, c.Close())
	}
	s.kept = nil
	return errors.Join(append(errs, s.home.close())...)
}
