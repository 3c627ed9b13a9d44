package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/dbus"
	"github.com/cnibox/cnibox/spec"
)

// A zoneClient changes the sources of one zone of firewalld. They stay until firewalld reloads: https://firewalld.org/documentation/man-pages/firewalld.dbus.html,
// interface org.fedoraproject.FirewallD1.zone.
type zoneClient struct {
	bus  *dbus.Conn
	zone string
}

// dialZone connects to the bus; firewalld need not run.
func dialZone(ctx context.Context, p *plan) (*zoneClient, error) {
	bus, err := dbus.Dial(ctx, p.bus...)
	if err != nil {
		return nil, err
	}
	return &zoneClient{bus, p.zone}, nil
}

func (z *zoneClient) close() { z.bus.Close() }

// zoneMethod names a method of zones.
func zoneMethod(name string) dbus.Method {
	const service = "org.fedoraproject.FirewallD1"
	return dbus.Method{Service: service, Path: "/org/fedoraproject/FirewallD1", Interface: service + ".zone", Name: name}
}

// source formats an address for firewalld.
func source(ip netip.Addr) string { return netip.PrefixFrom(ip, ip.BitLen()).String() }

// addAll adds the addresses to the zone, all or none. An address that is in the zone already is not
// an error, and stays there when another fails.
func (z *zoneClient) addAll(ips []netip.Addr) error {
	var added []netip.Addr
	for _, ip := range ips {
		err := z.change("addSource", ip)
		switch {
		case err == nil:
			added = append(added, ip)
		case !hasError(err, "ZONE_ALREADY_SET"):
			err = spec.Errorf(zoneCode(err), "failed to add the address %s to zone %q: %w", ip, z.zone, err)
			return errors.Join(err, z.removeAll(added))
		}
	}
	return nil
}

// zoneCode returns the code of an error for an address that could not be added.
func zoneCode(err error) int {
	switch {
	case hasError(err, "INVALID_ZONE"):
		return spec.CodeConfig
	case hasError(err, "ZONE_CONFLICT"): // the address is in another zone
		return spec.CodeBusy
	case isNotRunning(err), hasError(err, "NOT_RUNNING"):
		return spec.CodeTryAgain
	}
	return spec.CodeInternal
}

// removeAll removes the addresses from the zone. It is not an error if the address, the zone or
// firewalld is missing.
func (z *zoneClient) removeAll(ips []netip.Addr) error {
	var errs []error
	for _, ip := range ips {
		err := z.change("removeSource", ip)
		if err == nil || isNotRunning(err) || hasError(err, "UNKNOWN_SOURCE", "NOT_ENABLED", "ZONE_CONFLICT", "INVALID_ZONE") {
			continue
		}
		errs = append(errs, fmt.Errorf("failed to remove the address %s from zone %q: %w", ip, z.zone, err))
	}
	return errors.Join(errs...)
}

// checkAll looks for the addresses in the zone.
func (z *zoneClient) checkAll(ips []netip.Addr) error {
	for _, ip := range ips {
		inZone, err := z.bus.Ask(zoneMethod("querySource"), z.zone, source(ip))
		if err != nil {
			return fmt.Errorf("zone %q: %w", z.zone, err)
		}
		if !inZone {
			return fmt.Errorf("address %s is not in zone %q of firewalld, which forgets it when it reloads", ip, z.zone)
		}
	}
	return nil
}

// change calls a method that changes the zone.
func (z *zoneClient) change(method string, ip netip.Addr) error {
	return z.bus.Call(zoneMethod(method), z.zone, source(ip))
}

// hasError reports whether firewalld returned one of its errors, with which the text begins.
func hasError(err error, codes ...string) bool {
	var e *dbus.Error
	if !errors.As(err, &e) {
		return false
	}
	for _, code := range codes {
		if strings.HasPrefix(e.Message, code) {
			return true
		}
	}
	return false
}

// isNotRunning reports whether an error means that firewalld does not run, and so has no zones.
func isNotRunning(err error) bool {
	var e *dbus.Error
	if errors.As(err, &e) {
		return e.Name == "org.freedesktop.DBus.Error.NameHasNoOwner" || e.Name == "org.freedesktop.DBus.Error.ServiceUnknown"
	}
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENOTSOCK)
}

// removeFromZone removes addresses at DEL and GC. Without addresses it does not use the bus.
func removeFromZone(ctx context.Context, p *plan, ips []netip.Addr) error {
	if len(ips) == 0 {
		return nil
	}
	z, err := dialZone(ctx, p)
	if isNotRunning(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer z.close()
	return z.removeAll(ips)
}

// probeZones reports why no address can be added to a zone.
func probeZones(ctx context.Context, p *plan) error {
	z, err := dialZone(ctx, p)
	if err != nil {
		return err
	}
	defer z.close()
	const bus = "org.freedesktop.DBus"
	running, err := z.bus.Ask(dbus.Method{Service: bus, Path: "/org/freedesktop/DBus", Interface: bus, Name: "NameHasOwner"}, zoneMethod("").Service)
	if err == nil && !running {
		err = errors.New("firewalld does not run: start it, or take another backend")
	}
	return err
}
