package tuning

import (
	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/spec"
)

// Check compares each configured value with the live one. It ignores the allowlist, since it writes
// nothing.
func (c *conf) Check(op *chained.Op) error {
	if err := checkSysctls(op.NS, c.sysctls, func() map[string]string {
		if _, rec := findTuned(op.Dir, op.Attachment); rec != nil {
			return rec.Data.Sysctls
		}
		return nil
	}); err != nil {
		return err
	}
	if c.off && op.Link.Promisc {
		return differs("promisc of "+op.IfName, false, true)
	}
	diff, now := c.link.change(op.Link), c.link.current(op.Link)
	switch {
	case diff.MAC != "":
		return differs("mac of "+op.IfName, c.mac, now.MAC)
	case diff.Promisc != nil:
		return differs("promisc of "+op.IfName, *diff.Promisc, *now.Promisc)
	case diff.MTU != 0:
		return differs("mtu of "+op.IfName, diff.MTU, now.MTU)
	case diff.AllMulti != nil:
		return differs("allmulti of "+op.IfName, *diff.AllMulti, *now.AllMulti)
	case diff.TxQLen != nil:
		return differs("txQLen of "+op.IfName, *diff.TxQLen, *now.TxQLen)
	}
	return nil
}

// differs returns the error of CHECK, a phrase of the reference.
func differs(what string, want, got any) error {
	return spec.Errorf(spec.CodeCheck, "Tuning configured %s is %v, current value is %v", what, want, got)
}
