package dhcp

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"
)

// Keep starts to renew the leases, until Stop or Release, or until the interface is gone. It returns
// at once, and is called once.
func (h *Holder) Keep() {
	ctx, cancel := context.WithCancel(context.Background())
	h.stop = cancel
	for _, l := range h.Leases() {
		h.running.Add(1)
		go h.keep(ctx, l)
	}
}

// longestSleep is the longest timer. While the machine sleeps a timer stops, but the lease goes on, so
// the clock is read after each timer.
const longestSleep = time.Minute

// sleep waits until a time since the boot; false: the context ended first.
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

// startSpread is the time over which a restarted daemon spreads overdue renewals.
const startSpread = 2 * time.Second

// keep renews one lease. Leases are never changed, but replaced.
func (h *Holder) keep(ctx context.Context, l *Lease) {
	defer h.running.Done()
	due := l.due()
	if due <= sinceBoot() {
		next, err := h.confirmExpired(ctx, l)
		if l = next; err != nil {
			h.log("not confirmed", l, err)
		}
		due = max(l.due(), sinceBoot()+rand.N(startSpread))
	}
	pauses := backoff{firstWait, h.settings.Pause}
	for sleep(ctx, due) {
		if !h.store.Kept() {
			return // released while no daemon ran
		}
		asked := sinceBoot()
		next, err := h.doNext(ctx, l)
		l = next
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrGone):
			h.log("forgotten", l, errors.Join(err, h.store.Drop()))
			return
		case err == nil:
			due, pauses.next = l.due(), firstWait
		default:
			what := "not renewed"
			if l.On != nil {
				what = "not all on the interface yet"
			}
			h.log(what, l, err)
			due = l.retry(asked, pauses.wait())
		}
	}
}

// leastPause is the shortest time before a renewal, even of a lease of one second.
const leastPause = 500 * time.Millisecond

// due returns when the next step of the lease is due, as time since the boot; 0: now.
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

// retry returns when to ask again after a timeout: in the middle of the time until the next step,
// but at most sixty times in a lease, as RFC 2131 section 4.4.5 allows for a lease of one hour.
// DHCPv6 uses the same times, which are longer than those of RFC 8415 section 15. In the next step
// the first request is sent at once. Without a lease, or for an interface that could not be
// configured, retry waits for pause.
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
	return min(end, now+max(least, jitter((end-now)/2)))
}

// phase returns when the current phase ends: that of requests to the lease's server (T2), or to all
// servers (Life).
func (l *Lease) phase(now time.Duration) time.Duration {
	if end := l.end(l.T2); now < end {
		return end
	}
	return l.end(l.Life)
}

var errRunOut = errors.New("it has run out")

// doNext does the step that is due: configure the interface, renew, rebind, let the lease lapse, or
// acquire a new one. It returns the lease after that, even with an error. It waits for no answer beyond
// the end of the step.
func (h *Holder) doNext(ctx context.Context, l *Lease) (*Lease, error) {
	now := sinceBoot()
	switch {
	case l.On != nil && (l.Lapsed || now < l.end(l.T1)):
		return h.network.configure(l)
	case l.Pending || l.Lapsed:
		return h.network.obtain(ctx, discover, l, tries*h.settings.Timeout)
	}
	why := errRunOut
	if now < l.end(l.Life) {
		how := renew
		if now >= l.end(l.T2) {
			how = rebind
		}
		next, err := h.network.obtain(ctx, how, l, min(l.phase(now)-now, h.settings.Timeout))
		if !errors.Is(err, errRefused) {
			return next, err
		}
		why = err
	}
	h.log("lapsed", l, why)
	return h.lapse(l)
}

// confirmExpired asks all servers after a restart whether an address may still be used whose lease has
// expired meanwhile, since the container uses it. Without an ACK the lease lapses.
func (h *Holder) confirmExpired(ctx context.Context, l *Lease) (*Lease, error) {
	if l.Pending || l.Lapsed || sinceBoot() < l.end(l.Life) {
		return l, nil
	}
	return h.network.obtain(ctx, reboot, l, h.settings.Timeout)
}

// lapse deletes the address of a lease from the interface. The link stays up for other addresses.
func (h *Holder) lapse(l *Lease) (*Lease, error) {
	lapsed := *l
	lapsed.Lapsed = true
	next := lapsed.after(l)
	saved := h.put(next)
	next, err := h.network.configure(next)
	return next, errors.Join(err, saved)
}

// configure opens the interface and configures it for a lease.
func (h *Holder) configure(l *Lease) (*Lease, error) {
	p, err := h.open()
	if err != nil {
		return l, err
	}
	defer p.close()
	return h.applyLease(p, l)
}

// tries is the number of waits for an answer in one round of requests for a new lease.
const tries = 3

// obtain asks for a lease, saves it and configures the interface for it; without an answer it returns
// the old one. A lease that cannot be saved, as on a full disk, is used nevertheless. The steps
// before the request, such as waiting for a link-local address, are bounded too, so that no address
// is used beyond its time.
func (h *Holder) obtain(ctx context.Context, s step, old *Lease, wait time.Duration) (l *Lease, err error) {
	ctx, cancel := context.WithTimeout(ctx, wait+firstWait)
	defer cancel()
	l = old
	err = h.session(ctx, old.Is6(), func(p *iface, c client) error {
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
		l, err = h.applyLease(p, l)
		return errors.Join(err, mtu, saved)
	})
	return l, err
}
