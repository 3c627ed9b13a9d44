package bridge

import (
	"context"

	"cnibox/applets/attach"
	"cnibox/nft"
	"cnibox/rtnl"
)

// restoreBridge makes the bridge again, with the MAC address and the MTU of before, so that the
// containers go on with the gateway that they know; then the port's place in it, the gateway
// and the rules.
func restoreBridge(ctx context.Context, op *attach.Op, c *bridge) (err error) {
	if c.host, err = op.HostEnd(); err != nil {
		return op.LostHostEnd(err)
	}
	mac, mtu := op.Recorded(c.Bridge, true)
	c.mac = mac
	if c.MTU == 0 {
		c.MTU = mtu
	}
	if err := ensureBridge(op, c); err != nil {
		return err
	}
	if err := restorePort(op, c); err != nil {
		return err
	}
	if c.IsGateway && len(op.Result.IPs) > 0 {
		if err := setGateways(op, c); err != nil {
			return err
		}
		if err := attach.SwitchForwarding(op, func(func() error) error { return nil }); err != nil {
			return err
		}
	}
	if err := restoreGuard(ctx, op, c); err != nil {
		return err
	}
	return addRules(ctx, op, c)
}

// restorePort puts the port into the bridge, and sets the flags and VLANs that are not as they
// should be. Port isolation that is on may be the firewall plugin's.
func restorePort(op *attach.Op, c *bridge) error {
	var ops []rtnl.Op
	host, index := c.host, c.host.Index
	joins := host.Master != c.link.Index
	if joins {
		ops = append(ops, rtnl.ChangeLink(index, rtnl.LinkChange{Master: &c.link.Index}))
	}
	if joins && (c.HairpinMode || c.PortIsolation) || host.Hairpin != c.HairpinMode || c.PortIsolation && !host.Isolated {
		isolated := c.PortIsolation || host.Isolated && !joins
		ops = append(ops, rtnl.ChangeLink(index, rtnl.LinkChange{Hairpin: &c.HairpinMode, Isolated: &isolated}))
	}
	if joins || c.filtersVLANs() && checkVLANs(op, c, host) != nil {
		ops = append(ops, portVLANs(c)...)
	}
	if !host.Up {
		ops = append(ops, rtnl.ChangeLink(index, rtnl.LinkChange{Up: new(true)}))
	}
	if err := op.Host.Do(ops...); err != nil {
		return err
	}
	if err := op.IgnoreRouters(host.Name); err != nil || !joins || c.made {
		return err
	}
	return afterJoin(op, c)
}

// restoreGuard lets the port send from the address that the container has by the result.
func restoreGuard(ctx context.Context, op *attach.Op, c *bridge) error {
	mac, _ := op.Recorded(op.IfName, false)
	if !c.MACSpoofChk || mac == nil {
		return nil
	}
	return nft.Open(rtnl.Host()).Update(ctx, func(x *nft.Tx) error {
		x.GuardMAC(op.Attachment, c.host.Name, mac)
		return nil
	})
}
