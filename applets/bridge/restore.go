package bridge

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"cnibox/applets/attach"
	"cnibox/internal/once"
	"cnibox/nft"
	"cnibox/rtnl"
)

// restore makes the bridge again, then the port's place in it, the gateway and the rules.
// Of many ports, each bridge and each gateway is looked at once.
func restore(ctx context.Context, op *attach.Op, c *port) (err error) {
	if c.host, err = op.HostVeth(); err != nil {
		return attach.Lost("host interface: %w", err)
	}
	if err := restoreMaster(ctx, op, c); err != nil {
		return err
	}
	if err := restorePort(op, c); err != nil {
		return err
	}
	if err := restoreGateway(ctx, op, c); err != nil {
		return err
	}
	if err := restoreGuard(ctx, op, c); err != nil {
		return err
	}
	return addRules(ctx, op, c)
}

// restoreMaster makes the bridge with the MAC address and the MTU of before, so that containers
// go on with the gateway that they know.
func restoreMaster(ctx context.Context, op *attach.Op, c *port) (err error) {
	mac, mtu := op.Recorded(c.Bridge, true)
	c.mac = mac
	if c.MTU == 0 {
		c.MTU = mtu
	}
	key := fmt.Sprintf("bridge %s %t %t", c.Bridge, c.PromiscMode, c.filtersVLANs())
	if err := once.Do(ctx, key, func() error { return remakeBridge(op, c) }); err != nil || c.link != nil {
		return err
	}
	c.link, err = op.Host.Link(c.Bridge)
	return err
}

// remakeBridge makes the bridge. One without any port was made anew by others, or by a restore
// that was killed here: it gets what a new one has.
func remakeBridge(op *attach.Op, c *port) error {
	if err := ensureBridge(op, c); err != nil || c.made {
		return err
	}
	links, err := op.Host.Links()
	if err != nil || slices.ContainsFunc(links, func(l rtnl.Link) bool { return l.Master == c.link.Index }) {
		return err
	}
	if c.mac != nil && !bytes.Equal(c.mac, c.link.MAC) {
		if err := op.Host.Do(rtnl.ChangeLink(c.link.Index, rtnl.LinkChange{MAC: c.mac})); err != nil {
			return err
		}
		c.link.MAC = c.mac
	}
	return attach.SkipDAD(op, c.Bridge)
}

// restoreGateway gives the bridge its addresses, and the host its setting for forwarding.
func restoreGateway(ctx context.Context, op *attach.Op, c *port) error {
	if !c.IsGateway || len(op.Result.IPs) == 0 {
		return nil
	}
	key := fmt.Sprintf("gateway %s %d", c.Bridge, c.VLAN)
	for _, ip := range op.Result.IPs {
		key += fmt.Sprintf(" %s/%d", ip.Gateway, ip.Address.Bits())
	}
	return once.Do(ctx, key, func() error {
		if err := setGateways(ctx, op, c); err != nil {
			return err
		}
		return attach.SwitchForwarding(op, func(func() error) error { return nil })
	})
}

// restorePort puts the port into the port, and sets the flags and VLANs that are not as they
// should be. Port isolation that is on may be the firewall plugin's.
func restorePort(op *attach.Op, c *port) error {
	var ops []rtnl.Op
	host, index := c.host, c.host.Index
	joins := host.Master != c.link.Index
	var did []string
	if joins {
		ops = append(ops, rtnl.ChangeLink(index, rtnl.LinkChange{Master: &c.link.Index}))
		did = append(did, "put on "+c.Bridge)
	}
	if joins && (c.HairpinMode || c.PortIsolation) || host.Hairpin != c.HairpinMode || c.PortIsolation && !host.Isolated {
		isolated := c.PortIsolation || host.Isolated && !joins
		ops = append(ops, rtnl.ChangeLink(index, rtnl.LinkChange{Hairpin: &c.HairpinMode, Isolated: &isolated}))
		did = append(did, "flags of the port set")
	}
	if joins || c.filtersVLANs() && checkVLANs(op, c, host) != nil {
		if vlans := portVLANs(c); vlans != nil {
			ops = append(ops, vlans...)
			did = append(did, "VLANs set")
		}
	}
	if !host.Up {
		ops = append(ops, rtnl.ChangeLink(index, rtnl.LinkChange{Up: new(true)}))
		did = append(did, "up")
	}
	if err := op.Host.Do(ops...); err != nil {
		return err
	}
	if did != nil {
		op.Did("%s %s", host.Name, strings.Join(did, " and "))
	}
	if host.AcceptsRA {
		if err := op.IgnoreRouters(host.Name); err != nil {
			return err
		}
	}
	if !joins || c.made {
		return nil
	}
	return afterJoin(op, c)
}

// restoreGuard lets the port send from the address that the container has by the result.
func restoreGuard(ctx context.Context, op *attach.Op, c *port) error {
	mac, _ := op.Recorded(op.IfName, false)
	if !c.MACSpoofChk || mac == nil {
		return nil
	}
	return nft.Open(op.Call.HostNS()).Update(ctx, func(x *nft.Tx) error {
		x.GuardMAC(op.Attachment, c.host.Name, mac)
		return nil
	})
}
