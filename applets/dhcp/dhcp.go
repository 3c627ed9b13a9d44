// Package dhcp is the CNI plugin dhcp: addresses from DHCP servers, leased by a daemon.
package dhcp

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/ipam/dhcp"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "dhcp",
	Conf:    conf{},
	Summary: "addresses from DHCP servers, leased by a daemon",
	Help: `
Needs the daemon, cnibox dhcp daemon, which gets and renews the leases. In "ipam":

key               type    default             meaning
daemonSocketPath  string  /run/cni/dhcp.sock  where the daemon listens; leases are stored beside
provide           list    -                   options to send: of option, value, fromArg
  option          string  -                   a name below, or 0 to 255
  value           string  -                   its value, at most 255 bytes
  fromArg         string  -                   key of CNI_ARGS; its value replaces value
request           list    -                   options to request: of option, skipDefault
  skipDefault     bool    false               request no other options
priority          number  0                   priority of all routes; 0: the kernel's default
ipv4              bool    true                lease an address by DHCPv4
ipv6              bool    false               lease an address by DHCPv6; the gateway comes from
                                              router advertisements, so accept_ra must be on

Names of options: dhcp-client-identifier (61), subnet-mask (1), routers (3), host-name (12),
user-class (77), vendor-class-identifier (60). Requested by default: 1, 121, 3, 33, 6, 15, 119,
26 and 42. The result has address, gateway, routes, and dns; a smaller MTU (26) is set on the
link unless the network has an "mtu". Time servers (42) are only in the lease file.

cnibox dhcp daemon [-socketpath PATH] [-hostprefix DIR] [-pidfile PATH] [-broadcast]
                   [-timeout 10s] [-resendmax 62s] [-resendtimeout 208s]

-socketpath: as daemonSocketPath; -hostprefix: where the host's root is mounted, for the socket
and CNI_NETNS; -pidfile: write the process ID there; -broadcast: ask servers to answer by
broadcast; -timeout: for one answer; -resendmax: between attempts to replace an expired lease;
-resendtimeout: for a first lease. SIGTERM ends the daemon; the leases stay, and the next daemon
renews them. The socket may come from systemd (LISTEN_FDS). With CNIBOX_STATE=DIR in the
environments of both, the default of the path is DIR/dhcp.sock.`,
	Plugin: func() spec.Plugin {
		return spec.Plugin{
			Facts: spec.Facts{IPAM: true, Args: true, OverLink: true},
			Add:   add, Check: check, Del: del, GC: gc, Records: records, Status: status, Get: get,
			Validate: spec.ValidateBy(readPlugin), Confine: confine,
		}
	},
	Daemon: daemonMain,
}

// call calls the daemon for this attachment. Errors have the daemon's code, or 11 if no daemon
// answers.
func (p *plugin) call(ctx context.Context, verb spec.Verb) ([]*dhcp.Lease, error) {
	leases, err := callDaemon(ctx, p.socket, &call{verb, p.Attachment, p.conf})
	if errors.Is(err, errNoDaemon) {
		err = spec.Errorf(spec.CodeTryAgain, "error dialing DHCP daemon").WithDetails("%v", err)
	}
	return leases, err
}

// add returns the leases that the attachment has already, or gets some. The link exists and may be
// down.
func add(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	p, err := readPlugin(r)
	if err != nil {
		return nil, err
	}
	leases, err := p.call(ctx, spec.Add)
	if err != nil {
		return nil, err
	}
	return resultOf(leases, p.conf.Priority), nil
}

// resultOf makes a result of leases.
func resultOf(leases []*dhcp.Lease, priority int) *spec.Result {
	res := &spec.Result{}
	const scopeLink = 253 // RT_SCOPE_LINK, include/uapi/linux/rtnetlink.h
	for _, l := range leases {
		res.IPs = append(res.IPs, spec.IP{Address: l.Address, Gateway: l.Gateway})
		for _, route := range l.Routes {
			out := spec.Route{Dst: route.Dst, GW: route.GW, Priority: priority}
			if !route.GW.IsValid() {
				out.Scope = new(scopeLink)
			}
			res.Routes = append(res.Routes, out)
		}
		for _, a := range l.DNS {
			res.DNS.Nameservers = append(res.DNS.Nameservers, a.String())
		}
		if res.DNS.Domain == "" {
			res.DNS.Domain = l.Domain
		}
		res.DNS.Search = append(res.DNS.Search, l.Search...)
	}
	return res
}

// check compares the daemon's leases with prevResult. Unlike the reference's CHECK it never gets a
// lease or waits for a server.
func check(ctx context.Context, r *spec.Request) error {
	p, err := readPlugin(r)
	if err != nil {
		return err
	}
	leases, err := p.call(ctx, spec.Check)
	if err != nil {
		return err
	}
	return compare(r, leases)
}

// compare checks that prevResult has the address of each lease.
func compare(r *spec.Request, leases []*dhcp.Lease) error {
	for _, l := range leases {
		if !slices.ContainsFunc(r.Prev.IPs, func(ip spec.IP) bool { return ip.Address == l.Address }) {
			return spec.Errorf(spec.CodeCheck, "the lease of %s is now of %s, which prevResult does not have", r.Attachment, l.Address)
		}
	}
	return nil
}

// del releases the leases, with or without the daemon. Only what may succeed next time is an error.
func del(ctx context.Context, r *spec.Request) error {
	p, err := newPlugin(r)
	if err != nil {
		return err
	}
	return p.release(ctx, r.Attachment)
}

// release releases the leases of an attachment through the daemon. If no daemon answers, the plugin
// releases them itself, by the record; a daemon drops a lease whose record is gone.
func (p *plugin) release(ctx context.Context, a spec.Attachment) error {
	_, err := callDaemon(ctx, p.socket, &call{Verb: spec.Del, Attachment: a})
	if err == nil {
		return nil
	}
	rec, rerr := record.Read[dhcp.State](p.leases, record.Name(a))
	none := errors.Is(rerr, os.ErrNotExist)
	if !none || !errors.Is(err, errNoDaemon) {
		p.Warn("%v: releasing the lease without it", err)
	}
	if none {
		return nil
	}
	if rerr != nil { // the record is unusable
		return p.leases.Remove(record.Name(a))
	}
	store := &leaseStore{dir: p.leases, owner: a}
	h := dhcp.Resume(rec.Data, dhcp.Settings{Log: func(line string) { p.Warn("%s", line) }}, store)
	if !h.SameBoot() {
		return store.Drop()
	}
	return h.Release(ctx)
}

// gc releases the leases of the network's attachments that are not valid.
func gc(ctx context.Context, r *spec.Request) error {
	p, err := newPlugin(r)
	if err != nil {
		return err
	}
	valid := map[spec.Attachment]bool{}
	for _, a := range r.Valid {
		valid[a] = true
	}
	return record.Each(p.leases, func(name string, rec *leaseRecord) error {
		a := rec.Attachment
		if a.Network == r.Network && !valid[a] && name == record.Name(a) {
			return p.release(ctx, a)
		}
		return nil
	})
}

// records returns the directory of the leases.
func records(r *spec.Request) string {
	p, err := newPlugin(r)
	if err != nil {
		return ""
	}
	return string(p.leases)
}

// status returns an error of code 50 unless our daemon answers.
func status(ctx context.Context, r *spec.Request) error {
	p, err := readPlugin(r)
	if err != nil {
		return err
	}
	if _, err := callDaemon(ctx, p.socket, &call{Verb: spec.Status}); err != nil {
		return spec.Errorf(spec.CodeNotReady, "leases are not available: %w", err)
	}
	return nil
}

// get returns prevResult if the daemon has leases that agree with it; without prevResult it returns
// a result of the leases. Without a record the code is 3. A record without a lease or interface
// must be removed by DEL. A daemon that does not answer is an error.
func get(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	p, err := newPlugin(r)
	if err != nil {
		return nil, err
	}
	rec, err := record.Read[dhcp.State](p.leases, record.Name(r.Attachment))
	if errors.Is(err, os.ErrNotExist) || err == nil && !rec.Data.Given {
		return nil, spec.Errorf(spec.CodeUnknown, "no lease of %s is known", r.Attachment)
	}
	if err != nil {
		return nil, spec.Errorf(spec.CodeIO, "lease of %s: %w", r.Attachment, err)
	}
	leases, err := p.call(ctx, spec.Check)
	if err != nil {
		return nil, err
	}
	if r.Prev == nil {
		return resultOf(leases, rec.Data.Priority), nil
	}
	if err := compare(r, leases); err != nil {
		return nil, err
	}
	return r.Prev, nil
}
