package netns

import (
	"errors"
	"io"
)

// A shared has the state that all plugins of a call in this process share for a namespace and the
// host's.
type shared struct {
	host *NS
	home home              // of the host, for both
	kept map[int]io.Closer // by netlink protocol
}

// ShareHost returns the namespace of the process for consecutive calls: connections that [Keep]
// opens in it stay open until end, if the calls share theirs by [NS.ShareWith].
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

// Share makes all plugins of a call in this process use ns: connections that [Keep] opens in it,
// and in [NS.Host], stay open, and Close does nothing, until end. The namespace of the process is
// not shared: then ok is false.
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

// Host returns the namespace of the process, shared as ns is. Nil has no sharing.
func (ns *NS) Host() *NS {
	if ns == nil || ns.shared == nil {
		return Host()
	}
	return ns.shared.host
}

// Keep returns the kept connection of a shared namespace for a netlink protocol. The first call
// opens it with open; it is closed at the end. If the namespace is not shared, Keep returns a new
// one from open, which the caller closes.
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
	if c, err = open(true); err != nil { // without the lock, which open may need
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
