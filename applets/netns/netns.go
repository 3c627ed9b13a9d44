// Package netns opens the network namespace of a verb, CNI_NETNS, and refuses the host's own.
package netns

import (
	"errors"
	"fmt"
	"os"

	"cnibox/internal/nsid"
	"cnibox/rtnl"
	"cnibox/spec"
)

// errOwn is for /proc/PID/ns/net of a container that has ended and whose PID now belongs to
// the host.
var errOwn = errors.New("plugin's netns and netns from CNI_NETNS should not be the same")

// Open opens it. Errors have code 8 and begin with the phrases of the reference plugins; in GET a missing
// namespace is code 3, unknown container.
// CNI_NETNS_OVERRIDE allows the host's own.
//
// One that is open for the call is not opened again, and not closed by the caller.
func Open(c spec.Call) (*rtnl.NS, error) {
	if c.NS != nil && c.NS.Path() == c.NetNS {
		return rtnl.In(c.NS), nil
	}
	ns, err := rtnl.OpenNS(c.NetNS)
	if err != nil {
		if c.Verb == spec.Get && errors.Is(err, os.ErrNotExist) {
			return nil, spec.Errorf(spec.CodeUnknown, "unknown container %q: its network namespace is gone: %w", c.ContainerID, err)
		}
		return nil, &spec.Error{Code: spec.CodeNetNS, Msg: fmt.Sprintf("failed to open netns %q: %v", c.NetNS, nsid.Reason(err)), Err: err}
	}
	if c.NetNSOverride {
		return ns, nil
	}
	own, err := ns.Same(rtnl.Host())
	switch {
	case err != nil:
		err = fmt.Errorf("compare network namespaces: %w", err)
	case own:
		err = spec.Errorf(spec.CodeNetNS, "%w (CNI_NETNS is %q)", errOwn, c.NetNS)
	default:
		return ns, nil
	}
	ns.Close()
	return nil, err
}

// Share opens it for all that is run for a call in this process, which close ends. Nothing is shared
// where it cannot be opened, or is the host's own: each that needs it finds out why.
func Share(c *spec.Call) (close func()) {
	ns, err := nsid.OpenNS(c.NetNS)
	if err == nil {
		own, cerr := nsid.Current()
		if cerr == nil && own != ns.ID() {
			c.NS = ns
			return func() { ns.Close() }
		}
		ns.Close()
	}
	return func() {}
}

// Host is the host's, with the sockets that the plugins of the call share.
func Host(c spec.Call) *rtnl.NS { return rtnl.HostOf(c.NS) }

// At reports whether a sandbox of prevResult is ns, which was opened at CNI_NETNS.
func At(c spec.Call, ns *rtnl.NS, sandbox string) bool { return sandbox == c.NetNS || ns.At(sandbox) }

// Elsewhere reports whether a sandbox of prevResult is another namespace than ns: the host's, or one
// that can be opened. A runtime may have unmounted the path by which an earlier plugin knew ns.
func Elsewhere(c spec.Call, ns *rtnl.NS, sandbox string) bool {
	if sandbox == "" || sandbox == c.NetNS {
		return sandbox == ""
	}
	_, err := rtnl.IDAt(sandbox)
	return err == nil && !ns.At(sandbox)
}

// OpenIfThere is Open for DEL, which goes on without a namespace: nil if there is none at the path,
// or not any more.
func OpenIfThere(c spec.Call) (*rtnl.NS, error) {
	ns, err := Open(c)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, nsid.ErrNotNS) {
		return nil, nil
	}
	return ns, err
}

// Check is for plugins that do not enter it. One that cannot be opened is an error only if it is
// needed; the host's own always is.
func Check(c spec.Call, needed bool) error {
	ns, err := Open(c)
	switch {
	case err == nil:
		return ns.Close()
	case needed || errors.Is(err, errOwn):
		return err
	}
	return nil
}
