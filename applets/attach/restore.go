package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"cnibox/applets/netns"
	"cnibox/spec"
)

// restore runs the plugin's step with the addresses of prevResult in op.Result. The container
// is entered only where the step needs it.
func (p *Interface[P]) restore(ctx context.Context, r *spec.Request) error {
	c, err := p.conf(r)
	if err = cmp.Or(err, r.CheckIndexes()); err != nil {
		return err
	}
	ns, err := netns.Open(r.Call)
	if err != nil {
		return err
	}
	op, err := open(r, nil)
	if err != nil {
		ns.Close()
		return err
	}
	defer op.close()
	op.NS = ns
	op.Result.IPs = op.Own()
	return p.Restore(ctx, op, c)
}

// prepare runs the plugin's step.
func (p *Interface[P]) prepare(ctx context.Context, r *spec.Request) error {
	c, err := p.conf(r)
	if err != nil {
		return err
	}
	op, err := open(r, nil)
	if err != nil {
		return err
	}
	defer op.close()
	return p.Prepare(ctx, op, c)
}

// LostHostEnd explains that there is no host-side veth, with which the container's interface
// has gone as well.
func (op *Op) LostHostEnd(err error) error {
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return fmt.Errorf("%w; %s of the container went with it: DEL and ADD make both anew", err, op.IfName)
}

// Recorded returns the MAC address and the MTU that prevResult has of an interface on the host,
// or in the container's namespace; nil and 0: none.
func (op *Op) Recorded(name string, onHost bool) (mac net.HardwareAddr, mtu int) {
	for _, i := range op.Prev.Interfaces {
		if i.Name == name && (i.Sandbox == "") == onHost {
			mac, _ = spec.HardwareAddr(i.MAC) // what a foreign plugin wrote may be none
			return mac, i.MTU
		}
	}
	return nil, 0
}
