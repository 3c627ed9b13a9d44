package firewall

import (
	"context"

	"cnibox/internal/undo"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// restore sets port isolation, makes the elements and the rules in the tables filter,
// and puts the addresses into the zone, which firewalld forgets when it reloads.
func restore(ctx context.Context, r *spec.Request) error {
	p, err := readPlan(r)
	if err == nil {
		err = p.aim(r.Prev, spec.CodeConfig)
	}
	if err != nil {
		return err
	}
	if err := p.isolate(&undo.Stack{}); err != nil { // it stays, whatever comes after it
		return err
	}
	err = nft.Open(rtnl.Host()).Update(ctx, func(x *nft.Tx) error {
		x.Enlist(r.Attachment)
		return p.plan(r)(x)
	})
	if err != nil || !p.firewalld || len(p.ips) == 0 {
		return err
	}
	z, err := dialZone(ctx, p)
	if err != nil {
		return err
	}
	defer z.close()
	return z.addAll(p.ips)
}
