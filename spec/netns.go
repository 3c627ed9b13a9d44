package spec

import (
	"errors"
	"fmt"
	"os"

	"github.com/cnibox/cnibox/internal/netns"
)

// ErrOwnNS reports that CNI_NETNS is the plugin's own namespace, such as /proc/PID/ns/net of a
// container that has ended and whose PID is now a host process.
var ErrOwnNS = errors.New("plugin's netns and netns from CNI_NETNS should not be the same")

// OpenNS opens the network namespace at CNI_NETNS, and rejects the process's own unless
// CNI_NETNS_OVERRIDE allows it. Errors have code 8 and begin with the phrases of the reference
// plugins; in GET a missing namespace has code 3, unknown container.
//
// The session of the call keeps it open, and closes it.
func (c Call) OpenNS() (*netns.NS, error) {
	if ns := c.Session.NS(c.NetNS); ns != nil {
		return ns, nil
	}
	ns, err := netns.Open(c.NetNS)
	if err != nil {
		if c.Verb == Get && errors.Is(err, os.ErrNotExist) {
			return nil, Errorf(CodeUnknown, "unknown container %q: its network namespace is gone: %w", c.ContainerID, err)
		}
		return nil, NetNSError(c.NetNS, err)
	}
	own := false
	if !c.NetNSOverride {
		own, err = ns.Same(netns.Host())
	}
	switch {
	case err != nil:
		err = fmt.Errorf("compare network namespaces: %w", err)
	case own:
		err = Errorf(CodeNetNS, "%w (CNI_NETNS is %q)", ErrOwnNS, c.NetNS)
	default:
		c.Session.Own(ns)
		return ns, nil
	}
	ns.Close()
	return nil, err
}

// OpenNSIfExists is OpenNS for DEL, which continues without a namespace: nil if the path has none.
func (c Call) OpenNSIfExists() (*netns.NS, error) {
	ns, err := c.OpenNS()
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, netns.ErrNotNS) {
		return nil, nil
	}
	return ns, err
}

// NetNSError turns an error of [netns.Open] for a path into one for the runtime.
func NetNSError(path string, err error) *Error {
	return &Error{Code: CodeNetNS, Msg: fmt.Sprintf("failed to open netns %q: %v", path, netns.Reason(err)), Err: err}
}
