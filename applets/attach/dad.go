package attach

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Duplicate detection begins after up to a second (net.ipv6.conf.*.router_solicitation_delay) and
// takes another (neigh.*.retrans_time_ms), if the link can carry packets.
const (
	carrierTime = time.Second
	dadTime     = 5 * time.Second
)

// waitDAD waits for the end of duplicate detection. A tentative address cannot be used, and an ADD
// with the address of another host must fail (code 100).
//
// On a link without carrier, as that of a master without a cable, detection does not begin. The ADD
// then succeeds with a warning, and the kernel detects duplicates when the carrier comes. The
// condition is the kernel's own, IFF_RUNNING: an ipvlan has a carrier and the operational state
// unknown.
func (op *Op) waitDAD() error {
	err := op.waitDADWithin(carrierTime)
	if !errors.Is(err, context.DeadlineExceeded) {
		return op.dadError(err)
	}
	link, lerr := op.Cont.LinkAt(op.Link.Index)
	if lerr != nil {
		return lerr
	}
	if link.Flags&unix.IFF_RUNNING == 0 {
		op.Warn("%s in %s has no carrier: its addresses are tentative until it has", op.IfName, op.Call.NetNS)
		return nil
	}
	return op.dadError(op.waitDADWithin(dadTime))
}

// waitDADWithin waits at most as long as bound. When the verb's context has ended, the error is the
// cause of that, as everywhere in the flow.
func (op *Op) waitDADWithin(bound time.Duration) error {
	within, cancel := context.WithTimeout(op.Context(), bound)
	defer cancel()
	err := op.Cont.WaitAddrs(within, op.Link.Index)
	if err != nil && op.Context().Err() != nil {
		return spec.Errorf(spec.CodeTryAgain, "ADD was interrupted: %w", context.Cause(op.Context()))
	}
	return err
}

// dadError explains an error of waitDADWithin. The text begins with the reference's.
func (op *Op) dadError(err error) error {
	switch {
	case errors.Is(err, rtnl.ErrDuplicateAddress):
		return spec.Errorf(spec.CodeBusy, "failed to settle addresses of %s: another host on the segment uses it, so keep it out of the address range: %w", op.IfName, err)
	case errors.Is(err, context.DeadlineExceeded):
		return spec.Errorf(spec.CodeTryAgain, "failed to settle addresses of %s within %s: %w", op.IfName, dadTime, err)
	}
	return err
}
