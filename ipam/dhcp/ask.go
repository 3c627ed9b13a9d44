package dhcp

import (
	"context"
	"errors"
	"time"
)

// A step is what a client asks.
type step int

const (
	discover step = iota // everyone for an address; that of the lease, if one is given
	request              // a server for what it has offered
	renew                // the lease's server for more time
	rebind               // everyone for more time
	reboot               // everyone whether an address that was ours still is
)

var (
	// errSilent is about a question that nobody answered.
	errSilent = errors.New("no answer")

	// errRefused is a server's no: the address must not be used any more.
	errRefused = errors.New("the server refused the address")
)

// A client is one of the two protocols on an open interface. The sockets are its own.
type client interface {
	// ask asks once and waits for the answer. The error is errRefused after a no,
	// errSilent after silence, or says why no answer was taken. What does not answer the
	// question, or is of another server than the one asked, is passed over.
	ask(ctx context.Context, s step, l *Lease, wait time.Duration) (*Lease, error)
	release(ctx context.Context, l *Lease) error
	close()
}

// requests is how often one server is asked for what it has offered.
const requests = 4

// acquire gets a lease, if possible of the address of an old one, until the context ends.
// offered is called with what is going to be asked for; after that a server may have a
// lease for us, whether we learn of it or not. The error is a [TimeoutError] with what is
// known best of why there is none. No round ends before its time: a server that always
// says no must not be asked without a pause.
func (h *Holder) acquire(ctx context.Context, c client, old *Lease, lapsed bool) (*Lease, error) {
	rounds := backoff{firstWait, h.settings.Timeout}
	last := errors.New("no server answered on " + h.state.IfName +
		": look whether its network has a DHCP server, and whether a filter drops UDP ports 67 and 68, of IPv6 546 and 547")
	for {
		wait, begin := rounds.wait(), time.Now()
		offer, err := c.ask(ctx, discover, old, wait)
		silent := errors.Is(err, errSilent)
		if err == nil {
			// First the record: the server writes its own.
			asked := *offer
			asked.Pending, asked.Lapsed = true, lapsed
			if err := h.put(&asked); err != nil {
				return nil, err
			}
			tries := backoff{firstWait, h.settings.Timeout}
			for n := 0; n == 0 || n < requests && errors.Is(err, errSilent); n++ {
				var l *Lease
				if l, err = c.ask(ctx, request, offer, tries.wait()); err == nil {
					return l, nil
				}
			}
			err = wrap(offer.Address.String()+" was offered", err)
		}
		if !silent && ctx.Err() == nil {
			last = err
		}
		if !pause(ctx, wait-time.Since(begin)) {
			return nil, &TimeoutError{last}
		}
	}
}
