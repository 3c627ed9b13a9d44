package bridge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/internal/state"
	"github.com/cnibox/cnibox/ipam"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// userOf returns, as text for a message, what else uses the subnet of an address of the bridge;
// empty: nothing, and the address is left from a former subnet of the network. A user is a lease,
// or a port that carries packets and has no lease in another subnet. Leases are those of
// host-local; without them every other port counts.
func userOf(op *attach.Op, gw *rtnl.Link, old netip.Prefix) (string, error) {
	leases, err := leasesOf(op.Context(), op.Request)
	if err != nil {
		return "", err
	}
	leased := map[string]bool{op.Key(): true} // by the attachment's key
	var used []netip.Addr
	for a, l := range leases {
		leased[spec.Attachment{Network: op.Network, ContainerID: l.ContainerID, IfName: l.IfName}.Key()] = true
		if old.Contains(a) && !l.Owns(op.Attachment) {
			used = append(used, a)
		}
	}
	if used != nil {
		first := slices.MinFunc(used, netip.Addr.Compare)
		return fmt.Sprintf("%s is leased to %s", first, leases[first]), nil
	}
	links, err := op.Host.Links()
	if err != nil {
		return "", err
	}
	for _, l := range links {
		key := spec.LabelKey(l.Alias)
		switch {
		case l.Master != op.Bridge.Index || leased[key] && key != "":
		case gw.Index != op.Bridge.Index && l.Index == gw.Parent: // the other veth of the VLAN's gateway
		case l.Flags&unix.IFF_RUNNING == 0 && spec.LabelOf(l.Alias, op.Network): // another ADD is creating it
		default:
			_, owner, _ := strings.Cut(l.Alias, " ")
			if owner != "" {
				owner = " of " + owner
			}
			return fmt.Sprintf("%s%s is a port of %s", l.Name, owner, op.Bridge.Name), nil
		}
	}
	return "", nil
}

// leasesOf returns the leases of host-local for the network; none for other IPAM plugins.
func leasesOf(ctx context.Context, r *spec.Request) (map[netip.Addr]ipam.Lease, error) {
	var c struct {
		IPAM struct {
			DataDir         string `json:"dataDir"`
			KeepAcrossBoots bool   `json:"keepAcrossBoots"`
		} `json:"ipam"`
	}
	if err := r.Decode(&c); err != nil {
		return nil, nil // the keys are those of another plugin
	}
	dir := c.IPAM.DataDir
	if dir == "" {
		dir, _ = state.LeaseDir(r.Call.StateDir, r.Network, c.IPAM.KeepAcrossBoots)
	}
	s, err := ipam.OpenReadOnly(ctx, dir, r.Network, ipam.Options{KeepAcrossBoots: c.IPAM.KeepAcrossBoots})
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.Leases()
}

// advice says how to resolve a conflict with an address of the bridge whose subnet is in use.
func advice(gw string, old netip.Prefix, user string) string {
	return fmt.Sprintf("%s has %s, and %s; DEL what is in the old subnet and ADD it again, or set \"forceAddress\" to replace the address", gw, old, user)
}
