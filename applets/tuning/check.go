package tuning

import (
	"context"

	"cnibox/spec"
)

// check compares each configured value with the live one, without the allowlist, since nothing is
// written. The code is 102.
func check(_ context.Context, r *spec.Request) error {
	p, err := readPlan(r)
	if err != nil {
		return err
	}
	t, err := openTuned(r, p, spec.CodeCheck)
	if err != nil {
		return err
	}
	defer t.Close()
	if err := checkSysctls(t.NS, p.sysctls); err != nil {
		return err
	}
	if p.off && t.Link.Promisc {
		return differs("promisc of "+r.IfName, false, true)
	}
	diff, now := p.link.change(t.Link), p.link.current(t.Link)
	switch {
	case diff.MAC != "":
		return differs("mac of "+r.IfName, p.mac, now.MAC)
	case diff.Promisc != nil:
		return differs("promisc of "+r.IfName, *diff.Promisc, *now.Promisc)
	case diff.MTU != 0:
		return differs("mtu of "+r.IfName, diff.MTU, now.MTU)
	case diff.AllMulti != nil:
		return differs("allmulti of "+r.IfName, *diff.AllMulti, *now.AllMulti)
	case diff.TxQLen != nil:
		return differs("txQLen of "+r.IfName, *diff.TxQLen, *now.TxQLen)
	}
	return nil
}

// differs is the error of CHECK, a phrase of the reference.
func differs(what string, want, got any) error {
	return spec.Errorf(spec.CodeCheck, "Tuning configured %s is %v, current value is %v", what, want, got)
}
