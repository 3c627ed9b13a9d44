package dhcp

import (
	"context"
	"errors"
	"time"
)

// A step is a request of a client.
type step int

const (
	discover step = iota // ask all servers for an address, preferably that of the lease
	request              // request from one server what it has offered
	renew                // ask the lease's server to extend it
	rebind               // ask all servers to extend it
	reboot               // ask all servers whether a former address is still valid
)

var (
	// errTimeout is the error of a request without an answer.
	errTimeout = errors.New("no answer")

	// errRefused is a server's NAK: the address must not be used any more.
	errRefused = errors.New("the server refused the address")
)

// A client speaks DHCPv4 or DHCPv6 on an open interface, with sockets of its own.
type client interface {
	// ask sends one request and waits for the answer. The error is errRefused after a NAK,
	// errTimeout without an answer, or why no answer was accepted. Messages that do not answer the
	// request, or are of another server, are ignored.
	ask(ctx context.Context, s step, l *Lease, wait time.Duration) (*Lease, error)
	release(ctx context.Context, l *Lease) error
	close()
}

// requests is the number of REQUESTs to one server for its offer.
const requests = 4

// acquire tries to get a lease, preferably with the address of old, until the context ends. It records
// the offered lease before a REQUEST, after which the server may have a lease for us even without an
// answer, with lapsed as its Lapsed. The error is a [TimeoutError] with the best known cause.
// Each round takes its full time, since a server that always refuses must not be asked without a pause.
func (h *Holder) acquire(ctx context.Context, c client, old *Lease, lapsed bool) (*Lease, error) {
	rounds := backoff{firstWait, h.settings.Timeout}
	last := errors.New("no server answered on " + h.state.IfName +
		": look whether its network has a DHCP server, and whether a filter drops UDP ports 67 and 68, of IPv6 546 and 547")
	for {
		wait, begin := rounds.wait(), time.Now()
		offer, err := c.ask(ctx, discover, old, wait)
		timedOut := errors.Is(err, errTimeout)
		if err == nil {
			// recorded before the REQUEST, since the server records it too
			asked := *offer
			asked.Pending, asked.Lapsed = true, lapsed
			if err := h.put(&asked); err != nil {
				return nil, err
			}
			tries := backoff{firstWait, h.settings.Timeout}
			for n := 0; n == 0 || n < requests && errors.Is(err, errTimeout); n++ {
				var l *Lease
				if l, err = c.ask(ctx, request, offer, tries.wait()); err == nil {
					return l, nil
				}
			}
			err = wrap(offer.Address.String()+" was offered", err)
		}
		if !timedOut && ctx.Err() == nil {
			last = err
		}
		if !pause(ctx, wait-time.Since(begin)) {
			return nil, &TimeoutError{last}
		}
	}
}
