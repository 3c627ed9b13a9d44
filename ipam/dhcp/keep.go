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
			what := "not renewed"
			if l.On != nil {
				what = "not all on the interface yet"
			}
			h.log(what, l, err)
			due = l.retry(asked, vain.wait())
		}
	}
}

// leastPause is how long a lease is left alone at least, however short it is: one of a
// second has its T1 and T2 at once.
const leastPause = 500 * time.Millisecond

// due is when something has to be done for the lease.
func (l *Lease) due() time.Duration {
	if l.Pending || l.Lapsed || l.On != nil {
		return 0
	}
	at := l.end(l.T1)
	if at == math.MaxInt64 {
		return at
	}
	return max(l.Start+leastPause, at-rand.N(1+(at-l.Start)/32)) // not all at once
}

// retry is when to ask again after silence: in the middle of what is left until the
// next step, but not more often than sixty times in a lease, as RFC 2131 section 4.4.5
// has it for one of an hour. DHCPv6 is asked as often, which is less than RFC 8415
// section 15 would. In the next step it is at once. Without a lease it is after the
// pause given, and so it is for an interface that could not be brought to the lease.
func (l *Lease) retry(asked, pause time.Duration) time.Duration {
	now := sinceBoot()
	switch t1 := l.end(l.T1); {
	case l.Lapsed || l.Pending:
		return now + pause
	case l.On != nil && now < t1:
		return min(t1, now+pause)
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

// turn does what is due: bring the interface to the lease, renew, rebind, let lapse, or
// begin anew. It returns the lease as it is after that, also with an error. An answer is
// not waited for beyond the end of the step.
func (h *Holder) turn(ctx context.Context, l *Lease) (*Lease, error) {
	now := sinceBoot()
	switch {
	case l.On != nil && (l.Lapsed || now < l.end(l.T1)):
		return h.visit(l)
	case l.Pending || l.Lapsed:
		return h.adopt(ctx, discover, l, tries*h.settings.Timeout)
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
	return h.lapse(l)
}

// recall asks after a restart whether an address whose time ran out meanwhile may still
// be used, since the container uses it. Without a yes the lease goes the usual way.
func (h *Holder) recall(ctx context.Context, l *Lease) (*Lease, error) {
	if l.Pending || l.Lapsed || sinceBoot() < l.end(l.Life) {
		return l, nil
	}
	return h.adopt(ctx, reboot, l, h.settings.Timeout)
}

// lapse takes the address of a lease from the interface. The link stays up, since
// other addresses may be on it.
func (h *Holder) lapse(l *Lease) (*Lease, error) {
	lapsed := *l
	lapsed.Lapsed = true
	next := lapsed.after(l)
	saved := h.put(next)
	next, err := h.visit(next)
	return next, errors.Join(err, saved)
}

// visit opens the interface and brings it to what a lease says.
func (h *Holder) visit(l *Lease) (*Lease, error) {
	p, err := h.open()
	if err != nil {
		return l, err
	}
	defer p.close()
	return h.settle(p, l)
}

// tries is how many waits for an answer one round of asking for a new lease takes.
const tries = 3

// adopt asks a server, saves what it gives and brings the interface from the old lease to
// it; without an answer the old one is returned. That the disk is full is no reason not
// to. What comes before the question, such as a link-local address that is not there,
// must not keep an address beyond its time: that has a bound too.
func (h *Holder) adopt(ctx context.Context, s step, old *Lease, wait time.Duration) (l *Lease, err error) {
	ctx, cancel := context.WithTimeout(ctx, wait+firstWait)
	defer cancel()
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
		l = next.after(old)
		saved := h.put(l)
		if old.Lapsed || old.Pending {
			h.log("leased anew", l, nil)
		}
		mtu := h.fitMTU(p, l, old.MTU)
		l, err = h.settle(p, l)
		return errors.Join(err, mtu, saved)
	})
	return l, err
}
