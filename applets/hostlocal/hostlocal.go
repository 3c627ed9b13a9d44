// Package hostlocal is the CNI plugin host-local: addresses from local ranges, leased on disk.
package hostlocal

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/ipam"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "host-local",
	Conf:    conf{},
	Summary: "addresses from local ranges, leased on disk",
	Help: `
An attachment gets one address from each range set. In "ipam":

key              type    default                meaning
subnet           CIDR    -                      network of a range set with one range
rangeStart       IP      first of the subnet    first address to hand out; never the subnet's own
rangeEnd         IP      last of the subnet     last address to hand out; never IPv4's broadcast
gateway          IP      first of the subnet    never leased; the container's gateway
ranges           list    -                      range sets: lists of objects with these four keys
routes           list    -                      of dst, gw, mtu, advmss, priority, table, scope
dataDir          string  /var/lib/cni/networks  stores the leases; an absolute path
resolvConf       string  -                      file as in resolv.conf(5) to take dns from
keepAcrossBoots  bool    false                  leases outlive a boot, and each is synced to disk

runtimeConfig.ipRanges (capability ipRanges): range sets that come before all of these.
runtimeConfig.ips (capability ips), args.cni.ips and CNI_ARGS IP: the union of these addresses is
requested; a prefix length is ignored. A second ADD of an attachment is refused until its DEL.
Where all addresses of a range set are leased, ADD frees those of attachments whose network
namespace is gone, as the caches of runtimes show it, and says so; not with keepAcrossBoots.
The leases of a network are locked while they are read and changed; a verb waits 30 s for the
lock, and then fails with code 11 (try again later).
Without dataDir leases are in networks below the directory CNIBOX_STATE, if that is set in the
environment, or in the default one. Where that cannot be written and has no leases of the network,
they are in /run/cnibox/networks until the next boot, but not with keepAcrossBoots.`,
	Plugin: func() spec.Plugin {
		return spec.Plugin{
			Facts: spec.Facts{IPAM: true, Args: true, ArgIP: true, AnyNetNS: true},
			Add:   add, Check: check, Del: del,
			GC: gc, Status: status, Get: get, Restore: restore,
			RemoveNetwork: removeLeases, Validate: validate, Leases: leaseDir,
			Prepare: func(ctx context.Context, r *spec.Request) error {
				return leased(ctx, r, (*ipam.Store).FreeEarlierBoots)
			},
		}
	},
}

// add reads all that it needs, including resolv.conf, before it reserves the first address. The
// result has no interfaces.
func add(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	h, err := readPlan(r)
	if err != nil {
		return nil, err
	}
	res := &spec.Result{Routes: h.routes}
	if h.resolv != "" {
		if res.DNS, err = ipam.ReadResolvConf(h.resolv); err != nil {
			return nil, spec.Errorf(spec.CodeIO, "%w", err)
		}
	}
	if h.notice != "" {
		r.Warn("%s", h.notice)
	}
	o := h.options(r)
	o.Gone = h.goneOwners(r.Call.StateDir)
	s, err := ipam.Open(ctx, h.DataDir, r.Network, o)
	if err != nil {
		return nil, leaseError(err)
	}
	defer s.Close()
	res.IPs, err = ipam.Allocate(s, h.sets, h.wanted, r.Attachment)
	if err != nil {
		return nil, leaseError(err)
	}
	return res, nil
}

// leaseError adds the code to an error of the store: 11, try again, for a lock that others held too
// long; else 5, for the disk.
func leaseError(err error) error {
	var e *spec.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		e = spec.AsError(err)
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return spec.Errorf(spec.CodeTryAgain, "%w", err)
	default:
		e = spec.Errorf(spec.CodeIO, "%w", err)
	}
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, os.ErrPermission) {
		return e.WithDetails(`"ipam.dataDir" (or CNIBOX_STATE) must be a directory that can be written`).AtKey("ipam.dataDir")
	}
	return e
}

// leased opens the store for the verbs that release; without a directory they do nothing. Other
// keys may be invalid: an address must be released even if the ranges have changed.
func leased(ctx context.Context, r *spec.Request, fn func(*ipam.Store) error) error {
	var conf struct {
		IPAM storeConf `json:"ipam"`
	}
	err := r.Decode(&conf)
	dir := conf.IPAM.DataDir
	if err = cmp.Or(err, conf.IPAM.check(r)); err != nil {
		if r.Call.Verb != spec.Del {
			return err
		}
		r.Warn("ignored for DEL: %v", err)
		conf.IPAM.KeepAcrossBoots = true // to expire no lease by mistake
		// with such a path the reference leases below the working directory
		if dir != "" && !strings.Contains(dir, "\x00") {
			conf.IPAM.DataDir = dir
		}
	}
	o := conf.IPAM.options(r)
	key := leasesOf{conf.IPAM.DataDir, r.Network, o.KeepAcrossBoots}
	s, done, err := session.Keep(r.Call.Session, key, func() (*ipam.Store, error) {
		return ipam.OpenExisting(ctx, conf.IPAM.DataDir, r.Network, o)
	}, (*ipam.Store).Close)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return leaseError(err)
	}
	defer done()
	return leaseError(fn(s))
}

// leasesOf is the key of an open store.
type leasesOf struct {
	dir, network    string
	keepAcrossBoots bool
}

// del releases by owner alone, where leases name the interface. It needs neither prevResult nor CNI_ARGS, and lease
// and directory may be missing.
func del(ctx context.Context, r *spec.Request) error {
	return leased(ctx, r, func(s *ipam.Store) error {
		_, err := s.Release(r.Attachment, func() []ipam.RangeSet {
			h, err := readPlan(r)
			if err != nil {
				return nil
			}
			return h.sets
		})
		return err
	})
}

// gc keeps a lease without an interface while any interface of its container is valid.
func gc(ctx context.Context, r *spec.Request) error {
	valid := make(map[spec.Attachment]bool, 2*len(r.Valid))
	for _, a := range r.Valid {
		for _, ifName := range []string{a.IfName, ""} {
			valid[spec.Attachment{Network: r.Network, ContainerID: a.ContainerID, IfName: ifName}] = true
		}
	}
	return leased(ctx, r, func(s *ipam.Store) error {
		return s.DeleteStale(func(a spec.Attachment) bool { return valid[a] })
	})
}

// removeLeases deletes the directories of the network, which must have no leases.
func removeLeases(ctx context.Context, r *spec.Request) error {
	return leased(ctx, r, func(s *ipam.Store) error {
		leases, err := s.Leases()
		for a, l := range leases {
			return spec.Errorf(spec.CodeBusy, "address %s of network %s is leased to %s", a, r.Network, l).
				WithDetails("`cni-exec gc %s` frees those of namespaces that are gone, and --all every one", r.Network)
		}
		if err != nil {
			return err
		}
		return s.Delete()
	})
}

// viewed opens the store for reading. Without a directory it does not call fn, and returns
// os.ErrNotExist.
func (h *plan) viewed(ctx context.Context, r *spec.Request, fn func(*ipam.Store) error) error {
	o := h.options(r)
	o.Gone = h.goneOwners(r.Call.StateDir)
	s, err := ipam.OpenReadOnly(ctx, h.DataDir, r.Network, o)
	if err != nil {
		return err
	}
	defer s.Close()
	return fn(s)
}

// check compares prevResult's addresses with the lease files. It creates nothing, not even the
// directory.
func check(ctx context.Context, r *spec.Request) error {
	h, err := readPlan(r)
	if err != nil {
		return err
	}
	err = h.viewed(ctx, r, func(s *ipam.Store) error { return h.compare(s, r) })
	if errors.Is(err, os.ErrNotExist) {
		return lostLease(r, "%v", err)
	}
	return leaseError(err)
}

// compare reads the lease files of prevResult's addresses. An address that is outside the ranges
// and has no lease is another plugin's. If all addresses are, the attachment must have another
// lease.
func (h *plan) compare(s *ipam.Store, r *spec.Request) error {
	ours := 0
	for _, ip := range r.Prev.IPs {
		a := ip.Address.Addr()
		holder, err := s.Holder(a)
		switch {
		case err == nil && holder.Owns(r.Attachment):
			ours++
		case !inSets(h.sets, a):
		case err == nil:
			return spec.NeedsAdd(lostLease(r, "%s is leased to %s", a, holder))
		default:
			return lostLease(r, "%v", err)
		}
	}
	if ours > 0 {
		return nil
	}
	owned, err := s.Owned(r.Attachment, func() []ipam.RangeSet { return h.sets })
	if err == nil && len(owned) == 0 {
		err = spec.NeedsAdd(lostLease(r, "no address of these ranges is leased to it and interface %s", r.IfName))
	}
	return err
}

// restore writes missing leases of prevResult's addresses again. An address that another attachment
// has now is an error.
func restore(ctx context.Context, r *spec.Request) error {
	h, err := readPlan(r)
	if err != nil {
		return err
	}
	// A shared lock is enough to see that nothing is missing, as in most cases.
	lost := false
	err = h.viewed(ctx, r, func(s *ipam.Store) error {
		missing, err := h.missing(s, r)
		lost = len(missing) > 0
		return err
	})
	lost = lost || errors.Is(err, os.ErrNotExist)
	if !lost {
		return leaseError(err)
	}
	s, err := ipam.Open(ctx, h.DataDir, r.Network, h.options(r))
	if err != nil {
		return leaseError(err)
	}
	defer s.Close()
	missing, err := h.missing(s, r)
	for _, a := range missing {
		if err == nil {
			err = s.Reserve(a, r.Attachment)
		}
		if err == nil {
			r.Did("lease %s written", a)
		}
	}
	return leaseError(err)
}

// missing returns the addresses of prevResult that ADD could have leased and that have no lease. An
// address that is leased to another attachment is an error.
func (h *plan) missing(s *ipam.Store, r *spec.Request) (missing []netip.Addr, err error) {
	for _, ip := range r.Prev.IPs {
		a := ip.Address.Addr()
		holder, err := s.Holder(a)
		switch {
		case err == nil && holder.Owns(r.Attachment) || !inSets(h.sets, a):
		case err == nil:
			return nil, spec.NeedsAdd(spec.Errorf(spec.CodeBusy, "%s is leased to %s", a, holder))
		default:
			missing = append(missing, a)
		}
	}
	return missing, nil
}

// lostLease returns the error of CHECK and GET for leases that differ from those of ADD.
func lostLease(r *spec.Request, format string, args ...any) error {
	return spec.Errorf(spec.CodeCheck, "host-local: Failed to find address added by container %s", r.ContainerID).WithDetails(format, args...)
}

// inSets reports whether ADD could have leased an address.
func inSets(sets []ipam.RangeSet, a netip.Addr) bool {
	for _, set := range sets {
		if set.Contains(a) {
			return true
		}
	}
	return false
}

// get returns prevResult if the leases agree with it, and without prevResult a result of the
// leases. An attachment without a lease has code 3, even with a prevResult.
func get(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	h, err := readPlan(r)
	if err != nil {
		return nil, err
	}
	res := &spec.Result{Routes: h.routes}
	err = h.viewed(ctx, r, func(s *ipam.Store) (err error) {
		res.IPs, err = ipam.Find(s, h.sets, r.Attachment)
		if err == nil && len(res.IPs) > 0 && r.Prev != nil {
			err = h.compare(s, r)
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, leaseError(err)
	}
	if len(res.IPs) == 0 {
		return nil, spec.Errorf(spec.CodeUnknown, "no address is leased to container %s, interface %s", r.ContainerID, r.IfName)
	}
	if r.Prev != nil {
		return r.Prev, nil
	}
	if h.resolv != "" {
		if res.DNS, err = ipam.ReadResolvConf(h.resolv); err != nil {
			return nil, spec.Errorf(spec.CodeIO, "%w", err)
		}
	}
	return res, nil
}

// status reports a store that cannot store leases, and range sets without a free address. Both have
// code 50.
func status(ctx context.Context, r *spec.Request) error {
	h, err := readPlan(r)
	if err != nil {
		return err
	}
	if err := disk.Creatable(filepath.Join(h.DataDir, r.Network)); err != nil {
		return spec.Errorf(spec.CodeNotReady, "no lease can be made: %w", err).
			WithDetails("\"ipam.dataDir\" is %s: make it a directory that can be written to, or configure another, or set CNIBOX_STATE", h.DataDir)
	}
	err = h.viewed(ctx, r, func(s *ipam.Store) error {
		full, err := ipam.Exhausted(s, h.sets)
		if err == nil && full >= 0 {
			err = spec.Errorf(spec.CodeNotReady, "no IP addresses available in range set: %s", h.sets[full])
		}
		return err
	})
	var coded *spec.Error
	switch {
	// Without a directory there was never a lease: all addresses are free.
	case err == nil || errors.Is(err, os.ErrNotExist):
		return nil
	case errors.As(err, &coded):
		return err
	}
	return spec.Errorf(spec.CodeNotReady, "no lease can be made: %w", err)
}
