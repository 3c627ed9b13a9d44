package dhcp

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"
)

// Keep begins to keep the leases, until Stop or Release, or until the interface is
// gone. It returns at once, and is called once.
func (h *Holder) Keep() {
	ctx, cancel := context.WithCancel(context.Background())
	h.stop = cancel
	for _, l := range h.Leases() {
		h.running.Add(1)
		go h.keep(ctx, l)
	}
}

// longestSleep is how long a timer is set at most: it does not run while the machine
// sleeps, as the lease does, so the clock is looked at after each.
const longestSleep = time.Minute

// sleep waits for a moment after the boot; false says that the context ended first.
func sleep(ctx context.Context, until time.Duration) bool {
	for {
		left := until - sinceBoot()
		if left <= 0 {
			return ctx.Err() == nil
		}
		if !pause(ctx, min(left, longestSleep)) {
			return false
		}
	}
}

// startSpread is the time over which a daemon that comes back spreads what is overdue.
const startSpread = 2 * time.Second

// keep is the life of one lease. Leases are never changed, but replaced.
func (h *Holder) keep(ctx context.Context, l *Lease) {
	defer h.running.Done()
	due := l.due()
	if due <= sinceBoot() {
		next, err := h.recall(ctx, l)
		if l = next; err != nil {
			h.log("not confirmed", l, err)
		}
		due = max(l.due(), sinceBoot()+rand.N(startSpread))
	}
	vain := backoff{firstWait, h.settings.Pause}
	for sleep(ctx, due) {
		if !h.store.Kept() {
			return // given back while there was no daemon
		}
		asked := sinceBoot()
		next, err := h.turn(ctx, l)
		l = next
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrGone):
			h.log("forgotten", l, errors.Join(err, h.store.Drop()))
			return
		case err == nil:
			due, vain.next = l.due(), firstWait
		default:
			h.log("not renewed", l, err)
			due = l.retry(asked, vain.wait())
		}
	}
}

// due is when something has to be done for the lease.
func (l *Lease) due() time.Duration {
	if l.Pending || l.Lapsed {
		return 0
	}
	at := l.end(l.T1)
	if at == math.MaxInt64 {
		return at
	}
	return at - rand.N(1+(at-l.Start)/32) // not all at once
}

// retry is when to ask again after silence: in the middle of what is left until the
// next step, but not more often than sixty times in a lease, as RFC 2131 section 4.4.5
// has it for one of an hour. DHCPv6 is asked as often, which is less than RFC 8415
// section 15 would. In the next step it is at once. Without a lease it is after the
// pause given.
func (l *Lease) retry(asked, pause time.Duration) time.Duration {
	now := sinceBoot()
	if l.Lapsed || l.Pending {
		return now + pause
	}
	end := l.phase(asked)
	if now >= end {
		return now
	}
	least := max(time.Second, min(time.Minute, time.Duration(l.Life)*time.Second/60))
	return min(end, now+max(least, around((end-now)/2)))
}

// phase is when the time ends in which it is asked as it is now: the server, or anyone.
func (l *Lease) phase(now time.Duration) time.Duration {
	if end := l.end(l.T2); now < end {
		return end
	}
	return l.end(l.Life)
}

var errRunOut = errors.New("it has run out")

// turn does what is due: renew, rebind, or let lapse and begin anew. It returns the
// lease as it is after that, also with an error. An answer is not waited for beyond the
// end of the step.
func (h *Holder) turn(ctx context.Context, l *Lease) (*Lease, error) {
	now := sinceBoot()
	if l.Pending || l.Lapsed {
		return h.again(ctx, l)
	}
	why := errRunOut
	if now < l.end(l.Life) {
		how := renew
		if now >= l.end(l.T2) {
			how = rebind
		}
		next, err := h.adopt(ctx, how, l, min(l.phase(now)-now, h.settings.Timeout))
		if !errors.Is(err, errRefused) {
			return next, err
		}
		why = err
	}
	h.log("lapsed", l, why)
	lapsed, err := h.lapse(l)
	if err != nil {
		return l, err
	}
	return h.again(ctx, lapsed)
}

// recall asks after a restart whether an address whose time ran out meanwhile may still
// be used, since the container uses it. Without a yes the lease goes the usual way.
func (h *Holder) recall(ctx context.Context, l *Lease) (*Lease, error) {
	if l.Pending || l.Lapsed || sinceBoot() < l.end(l.Life) {
		return l, nil
	}
	return h.adopt(ctx, reboot, l, h.settings.Timeout)
}

// tries is how many waits for an answer one round of asking for a new lease takes.
const tries = 3

// again gets a new lease in the place of a lapsed one, the same address if possible.
func (h *Holder) again(ctx context.Context, l *Lease) (*Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, tries*h.settings.Timeout)
	defer cancel()
	return h.adopt(ctx, discover, l, 0)
}

// lapse takes the address of a lease from the interface. The link stays up, since
// other addresses may be on it.
func (h *Holder) lapse(l *Lease) (*Lease, error) {
	p, err := h.open()
	if err != nil {
		return nil, err
	}
	defer p.close()
	if err := p.withdraw(l, h.state.Priority); err != nil {
		return nil, err
	}
	lapsed := *l
	lapsed.Lapsed = true
	return &lapsed, h.put(&lapsed)
}

// adopt asks a server, saves what it gives and brings the interface from the old lease to
// it; without an answer the old one is returned. That the disk is full is no reason not to.
func (h *Holder) adopt(ctx context.Context, s step, old *Lease, wait time.Duration) (l *Lease, err error) {
	l = old
	err = h.session(ctx, old.Is6(), func(p *place, c client) error {
		var next *Lease
		var err error
		if s == discover {
			next, err = h.acquire(ctx, c, old, true)
		} else {
			next, err = c.ask(ctx, s, old, wait)
		}
		if err != nil {
			return err
		}
		l = next
		saved := h.put(l)
		if old.Lapsed || old.Pending {
			h.log("leased anew", l, nil)
			lapsed := *old
			lapsed.Lapsed = true
			old = &lapsed
		}
		return errors.Join(p.change(old, l, h.state.Priority), h.fitMTU(p, l), saved)
	})
	return l, err
}
