package portmap

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/applets/record"
	"cnibox/applets/result"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// Linux drops packets from 127.0.0.1 that leave the host as martians, unless
// route_localnet of the link is on. It lets neighbours on the link reach services on 127.0.0.1
// (CVE-2020-8558), which a rule in our table prevents. It is on only while a mapping needs it, and
// only on links that belong to the container.

// localnetTarget returns the container's IPv4 address if its ports are reached through 127.0.0.1;
// else the zero Addr: without masquerading answers would not come back, and a port of another address
// of the host is not on 127.0.0.1. IPv6 has no such sysctl: ::1 never leaves the host.
func localnetTarget(maps iter.Seq[nft.PortMap]) netip.Addr {
	for m := range maps {
		local := !m.HostIP.IsValid() || m.HostIP.IsUnspecified() || m.HostIP.IsLoopback()
		if a := m.Target.Addr(); a.Is4() && local && m.SNAT {
			return a
		}
	}
	return netip.Addr{}
}

// localnetLink returns the link of the host that needs route_localnet for the mappings;
// nil: none.
//
// It is the link of the route to the container's address, if the container is behind it: an address
// of the LAN in prevResult must not set route_localnet on the uplink.
func localnetLink(r *spec.Request, maps iter.Seq[nft.PortMap]) (*rtnl.Link, error) {
	to := localnetTarget(maps)
	if !to.IsValid() {
		return nil, nil
	}
	c, err := result.Open(r, 0)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	host, err := rtnl.Dial(rtnl.Host())
	if err != nil {
		return nil, err
	}
	defer host.Close()
	route, err := host.RouteTo(to)
	if err != nil {
		return nil, nil // no route to it
	}
	link, err := host.LinkAt(route.Link)
	if err != nil {
		return nil, rtnl.SkipAbsent(err)
	}
	own := false
	if c.Link != nil {
		port, err := host.VethPeer(c.Link, c.NS)
		if err == nil {
			own, err = behind(host, link, port)
		}
		if err := rtnl.SkipAbsent(err); err != nil {
			return nil, err
		}
	}
	if !own {
		r.Warn("the route to %s leads by %s, which is neither the host's end of %s in the container nor its bridge: published ports are not reached through 127.0.0.1", to, link.Name, r.IfName)
		return nil, nil
	}
	return link, nil
}

// behind reports whether the container of the host-side veth port is reached by the link: it is the
// port itself, its bridge, or the host's interface in a VLAN of that bridge, which is of kind vlan
// or a veth whose peer is a port of it.
func behind(host *rtnl.Conn, link, port *rtnl.Link) (bool, error) {
	switch {
	case link.Index == port.Index:
		return true, nil
	case port.Master == 0:
		return false, nil
	case link.Index == port.Master:
		return true, nil
	case link.Parent == 0 || link.PeerNS:
		return false, nil
	}
	below, err := host.LinkAt(link.Parent)
	if err != nil {
		return false, err
	}
	return link.Kind == "vlan" && below.Index == port.Master || link.Kind == "veth" && below.Master == port.Master, nil
}

// localnetKey is the setting of a link.
func localnetKey(link string) string { return "net/ipv4/conf/" + link + "/route_localnet" }

// A localnetUse is the record of an attachment that needs route_localnet of a link. It
// is in the file localnet/INDEX-KEY.json, so the names in that directory are enough
// to know which attachments need which link.
type localnetUse struct {
	record.Owner
	Link string `json:"link"` // its name, for information: the index counts
	Was  string `json:"was"`  // the value without any mapping
}

// localnetUses is the directory of these records.
func (d portOwners) localnetUses() record.Dir {
	return record.Dir(filepath.Join(string(d), "localnet"))
}

// cutLocalnetName cuts the name of a record; an index of 0 is no such name.
func cutLocalnetName(name string) (link uint32, key string) {
	index, key, _ := strings.Cut(strings.TrimSuffix(name, ".json"), "-")
	n, _ := strconv.ParseUint(index, 10, 32)
	return uint32(n), key
}

// setLocalnet sets route_localnet on the link that the attachment needs; nil: none. The record is
// written first, with the value before the first mapping on the link.
func (d portOwners) setLocalnet(a spec.Attachment, link *rtnl.Link) error {
	err := d.resetLocalnet(func(index uint32, key string, _ record.Owner) bool {
		return key == a.Key() && (link == nil || index != link.Index)
	})
	if err != nil || link == nil {
		return err
	}
	host := rtnl.Host()
	use := localnetUse{Owner: record.OwnerOf(a), Link: link.Name}
	if use.Was, err = host.Sysctl(localnetKey(link.Name)); err != nil {
		return err
	}
	uses := d.localnetUses()
	err = uses.Each(func(name string) error {
		var first localnetUse
		if index, _ := cutLocalnetName(name); index == link.Index && uses.Read(name, &first) == nil {
			use.Was = first.Was
		}
		return nil
	})
	if err == nil {
		err = uses.Write(localnetName(link, a), use)
	}
	if err != nil {
		return err
	}
	return enableLocalnet(link.Name)
}

// localnetName is the name of a record.
func localnetName(link *rtnl.Link, a spec.Attachment) string {
	return fmt.Sprintf("%d-%s.json", link.Index, a.Key())
}

// enableLocalnet switches route_localnet of a link on.
func enableLocalnet(link string) error {
	err := rtnl.Host().SetSysctl(localnetKey(link), "1")
	if errors.Is(err, unix.EROFS) {
		return spec.Errorf(spec.CodeNotReady, `%w: published ports are reached through 127.0.0.1 only with it; make /proc/sys writable, or set "snat" to false`, err)
	}
	return err
}

// resetLocalnet deletes the records that are unwanted, and restores the sysctl of each link that has
// no other record. It goes on past errors. The link may be gone.
//
// It is called before the mappings are released, since the rule against CVE-2020-8558 is deleted with
// the last mapping.
func (d portOwners) resetLocalnet(unwanted func(link uint32, key string, o record.Owner) bool) error {
	uses := d.localnetUses()
	needed := map[uint32]bool{}
	var drop []string
	err := uses.Each(func(name string) error {
		var use localnetUse
		_ = uses.Read(name, &use) // one that cannot be read is known by its name alone
		switch index, key := cutLocalnetName(name); {
		case index == 0: // not ours
		case unwanted(index, key, use.Owner):
			drop = append(drop, name)
		default:
			needed[index] = true
		}
		return nil
	})
	errs := []error{err, uses.RemoveTemporary()}
	for _, name := range drop {
		index, _ := cutLocalnetName(name)
		use := localnetUse{Was: "0"} // the kernel's default, for a record that cannot be read
		_ = uses.Read(name, &use)
		var err error
		if !needed[index] {
			err = restoreLocalnet(index, use.Was)
		}
		if err == nil {
			err = uses.Remove(name)
		}
		errs = append(errs, err)
	}
	os.Remove(string(uses)) // it stays if it is not empty
	return errors.Join(errs...)
}

// restoreLocalnet restores the sysctl of a link, unless the link is gone or the value was changed
// since.
func restoreLocalnet(index uint32, was string) error {
	host := rtnl.Host()
	conn, err := rtnl.Dial(host)
	if err != nil {
		return err
	}
	defer conn.Close()
	link, err := conn.LinkAt(index)
	if err != nil {
		return rtnl.SkipAbsent(err)
	}
	key := localnetKey(link.Name)
	if now, err := host.Sysctl(key); err != nil || now != "1" {
		return rtnl.SkipAbsent(err)
	}
	return rtnl.SkipAbsent(host.SetSysctl(key, was))
}

// checkLocalnet is for CHECK.
// Its code is 102.
func checkLocalnet(link *rtnl.Link) error {
	if link == nil {
		return nil
	}
	host := rtnl.Host()
	key := localnetKey(link.Name)
	value, err := host.Sysctl(key)
	if err == nil && value != "1" {
		err = fmt.Errorf("%s is %s: ports are not reached through 127.0.0.1", key, value)
	}
	if err != nil {
		return spec.Errorf(spec.CodeCheck, "%w", err)
	}
	return nil
}
