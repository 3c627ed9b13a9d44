//go:build !no_dhcp

package applets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"cnibox/dhcp"
	"cnibox/spec"
)

// A dhcpDaemon answers calls and keeps the leases.
type dhcpDaemon struct {
	dhcp.Settings
	leases records
	calls  sync.WaitGroup

	mu   sync.Mutex
	held map[recordOwner]*dhcpHeld
}

// A dhcpHeld is what the daemon has of one attachment. ADD and DEL of it take turns;
// other attachments do not wait for them.
type dhcpHeld struct {
	turn  chan struct{} // full: somebody's
	users int           // who have it or wait for it; guarded by the daemon's mu

	// Guarded by the daemon's mu too:
	holder *dhcp.Holder       // nil: no lease
	cancel context.CancelFunc // of the ADD that runs; nil: none does
}

// takeUp goes on with the leases on record. Those that nobody was ever given, since the
// ADD they are of died with the daemon, wait for the DEL that follows, or the next ADD.
func (d *dhcpDaemon) takeUp() {
	n := 0
	err := d.leases.each(func(name string) error {
		if !strings.HasSuffix(name, ".json") {
			return nil
		}
		var rec dhcpRecord
		err := d.leases.read(name, &rec)
		store := &dhcpStore{d.leases, rec.recordOwner}
		if err != nil || store.name() != name {
			d.Log(name + " is no record of a lease: left alone")
			return nil
		}
		h := dhcp.Resume(rec.State, d.Settings, store)
		if !h.Fresh() {
			return store.Drop()
		}
		d.held[rec.recordOwner] = &dhcpHeld{turn: make(chan struct{}, 1), holder: h}
		if rec.Given {
			n++
			h.Keep()
		}
		return nil
	})
	if err != nil {
		d.Log(err.Error())
	}
	if n > 0 {
		d.Log(strconv.Itoa(n) + " leases taken up again")
	}
}

// enter waits for the attachment's turn; leave must be called after.
func (d *dhcpDaemon) enter(ctx context.Context, owner recordOwner) (*dhcpHeld, error) {
	d.mu.Lock()
	e := d.held[owner]
	if e == nil {
		e = &dhcpHeld{turn: make(chan struct{}, 1)}
		d.held[owner] = e
	}
	e.users++
	d.mu.Unlock()
	select {
	case e.turn <- struct{}{}:
		return e, nil
	case <-ctx.Done():
		d.leave(owner, e, false)
		return nil, fmt.Errorf("another call for the interface runs: %w", ctx.Err())
	}
}

// leave ends a turn, if it has come. Whoever has no lease and is waited for by nobody is
// forgotten.
func (d *dhcpDaemon) leave(owner recordOwner, e *dhcpHeld, come bool) {
	if come {
		<-e.turn
	}
	d.mu.Lock()
	if e.users--; e.users == 0 && e.holder == nil {
		delete(d.held, owner)
	}
	d.mu.Unlock()
}

// set enters a holder, or none.
func (d *dhcpDaemon) set(e *dhcpHeld, h *dhcp.Holder, cancel context.CancelFunc) {
	d.mu.Lock()
	e.holder, e.cancel = h, cancel
	d.mu.Unlock()
}

// serve answers one call. A caller that goes away ends its ADD.
func (d *dhcpDaemon) serve(ctx context.Context, conn *os.File) {
	defer d.calls.Done()
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(dhcpPatience))
	var call dhcpCall
	if d.greet(conn) != nil || receiveDHCP(conn, &call) != nil {
		return
	}
	conn.SetDeadline(time.Time{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		conn.Read(make([]byte, 1)) // returns when either end is closed
		cancel()
	}()
	leases, err := d.do(ctx, &call)
	answer := dhcpAnswer{Leases: leases}
	if err != nil {
		answer.Error = spec.AsError(err)
	}
	if err := sendDHCP(conn, "", answer); err != nil && call.Verb == spec.Add && answer.Error == nil {
		d.Log(call.ContainerID + "/" + call.IfName + " went away before it had its lease")
		if err := d.del(context.WithoutCancel(ctx), call.recordOwner); err != nil {
			d.Log(err.Error())
		}
	}
}

// greet reads who calls and says who answers, to a stranger in words that it shows.
func (d *dhcpDaemon) greet(conn *os.File) error {
	err := greetDHCP(conn)
	var stranger strangerError
	errors.As(err, &stranger)
	answer := dhcpMagic
	switch {
	case err == nil:
	case strings.HasPrefix(string(stranger), dhcpFamily):
		d.Log(err.Error())
	case strings.HasPrefix(string(stranger), "CONNECT "):
		d.Log("a reference plugin called; put cnibox in its place, or run its own daemon")
		// Its error shows the status line.
		answer = "HTTP/1.0 505 this is the daemon of cnibox, which needs cnibox's dhcp plugin: " +
			"replace the plugin, or stop cnibox dhcp daemon and start the plugin's own\r\n\r\n"
	default:
		return err
	}
	io.WriteString(conn, answer)
	return err
}

// do runs a verb.
func (d *dhcpDaemon) do(ctx context.Context, call *dhcpCall) ([]*dhcp.Lease, error) {
	switch call.Verb {
	case spec.Add:
		return d.add(ctx, call)
	case spec.Del:
		return nil, d.del(ctx, call.recordOwner)
	case spec.Check:
		return d.check(call)
	case spec.Status:
		return nil, nil
	}
	return nil, spec.Errorf(spec.CodeEnv, "the DHCP daemon knows no verb %q", call.Verb)
}

// add returns the leases that the attachment has, or gets some. Those of an interface
// that was replaced meanwhile, or that ran out, are given back first.
func (d *dhcpDaemon) add(ctx context.Context, call *dhcpCall) ([]*dhcp.Lease, error) {
	e, err := d.enter(ctx, call.recordOwner)
	if err != nil {
		return nil, spec.Errorf(spec.CodeTryAgain, "%w", err)
	}
	defer d.leave(call.recordOwner, e, true)
	store := &dhcpStore{d.leases, call.recordOwner}
	if e.holder != nil {
		if e.holder.Serves(call.Config) && store.Kept() && allValid(e.holder.Leases()) {
			return e.holder.Leases(), nil
		}
		err := e.holder.Release(ctx)
		d.set(e, nil, nil)
		if err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.set(e, nil, cancel)
	h, err := dhcp.Acquire(ctx, call.Config, d.Settings, store)
	d.set(e, h, nil)
	var timeout *dhcp.TimeoutError
	switch {
	case errors.Is(err, dhcp.ErrGone):
		return nil, spec.Errorf(spec.CodeNetNS, "error calling DHCP.Allocate: %w", err)
	case errors.As(err, &timeout):
		return nil, spec.Errorf(spec.CodeTryAgain, "error calling DHCP.Allocate: no more tries").
			WithDetails("%s", strings.TrimPrefix(err.Error(), "no more tries: "))
	case err != nil:
		return nil, spec.Errorf(spec.CodeTryAgain, "error calling DHCP.Allocate: %w", err)
	}
	h.Keep()
	return h.Leases(), nil
}

// allValid tells whether all the addresses may be used.
func allValid(leases []*dhcp.Lease) bool {
	for _, l := range leases {
		if !l.Valid() {
			return false
		}
	}
	return len(leases) > 0
}

// del gives the leases back; none is fine. An ADD that still runs ends first.
func (d *dhcpDaemon) del(ctx context.Context, owner recordOwner) error {
	d.mu.Lock()
	if e := d.held[owner]; e != nil && e.cancel != nil {
		e.cancel()
	}
	d.mu.Unlock()
	e, err := d.enter(ctx, owner)
	if err != nil {
		return spec.Errorf(spec.CodeTryAgain, "%w", err)
	}
	defer d.leave(owner, e, true)
	if e.holder == nil {
		return (&dhcpStore{d.leases, owner}).Drop()
	}
	err = e.holder.Release(ctx)
	d.set(e, nil, nil)
	return err
}

// check returns the leases if they are valid and their interface is there. It waits for
// nobody.
func (d *dhcpDaemon) check(call *dhcpCall) ([]*dhcp.Lease, error) {
	d.mu.Lock()
	var h *dhcp.Holder
	if e := d.held[call.recordOwner]; e != nil {
		h = e.holder
	}
	d.mu.Unlock()
	if h == nil || !(&dhcpStore{d.leases, call.recordOwner}).Kept() {
		return nil, spec.Errorf(spec.CodeCheck, "the DHCP daemon has no lease of %s/%s/%s", call.Network, call.ContainerID, call.IfName)
	}
	if err := h.Check(); err != nil {
		return nil, spec.Errorf(spec.CodeCheck, "the lease of %s/%s/%s: %w", call.Network, call.ContainerID, call.IfName, err)
	}
	for _, l := range h.Leases() {
		if !l.Valid() {
			return nil, spec.Errorf(spec.CodeCheck, "the lease of %s has run out, and no server gives another", l.Address.Addr())
		}
	}
	return h.Leases(), nil
}

// end waits for the calls that run, and lets go of the leases without giving them back.
func (d *dhcpDaemon) end() {
	d.calls.Wait()
	for _, e := range d.held {
		if e.holder != nil {
			e.holder.Stop()
		}
	}
}
