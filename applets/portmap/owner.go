package portmap

import (
	"iter"
	"net/netip"

	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// portOwners is a directory with a record for each attachment that asked for ports. The rule set
// has the owner of each port. The record shows whether the owner's namespace still exists; if not,
// another attachment may take the port over. The name of a record is the attachment's key, as in
// the rule set.
type portOwners record.Dir

// A portOwner is one record, with the namespace that was at the path.
type portOwner = record.Record[ports]

// mostPorts is how many ports of an attachment a record names, each once for a family: with more, reading the sets takes
// DEL less time than asking for each element.
const mostPorts = 16

// ports are what an attachment asked for. All UDP ports are there, since their flows end with the attachment.
type ports struct {
	UDP   []udpPort  `json:"udp,omitempty"`
	Ports []leadPort `json:"ports,omitempty"` // none: not known, since they are too many or were recorded by an earlier version
}

// A leadPort is a host port and what it leads to.
type leadPort struct {
	Protocol uint8 `json:"protocol"` // IPPROTO_*
	udpPort
	Target netip.AddrPort `json:"target"`
}

// A udpPort is a published port. Packets of a UDP flow follow the connection tracking entry of its
// first packet, so old entries must be deleted.
type udpPort struct {
	HostIP netip.Addr `json:"hostIP,omitzero"` // zero: any address
	Port   uint16     `json:"port"`
}

// owner returns the record of an attachment; nil: there is no readable record, and its ports count
// as in use.
func (d portOwners) owner(key string) *portOwner {
	o, _ := record.Read[ports](record.Dir(d), key+".json")
	return o
}

// record records the namespace before the first port is published, so that every published port has
// a record. The record keeps the ports of old, the record of an earlier ADD without a DEL; nil:
// none.
func (d portOwners) record(r *spec.Request, old *portOwner, asked ports) error {
	if old != nil {
		asked = asked.and(old.Data)
	}
	o := portOwner{Head: record.Head{Attachment: r.Attachment, NetNS: r.Call.NetNS}, Data: asked}
	ns, err := r.Call.OpenNS()
	if err != nil {
		return err
	}
	if o.ID, err = ns.ID(); err != nil {
		return err
	}
	o.Cookie, _ = ns.Cookie()
	return o.Write(record.Dir(d))
}

// drop deletes the record of an attachment without ports.
func (d portOwners) drop(a spec.Attachment) error { return record.Dir(d).Remove(record.Name(a)) }

// gone reports whether the owner's namespace is known to be gone. An owner without a record counts
// as alive.
func (d portOwners) gone(key string) bool {
	o := d.owner(key)
	return o != nil && o.Gone()
}

// A portHolder describes the owner of a port for which another attachment asks.
type portHolder struct {
	gone    bool // its namespace is gone
	sibling bool // it belongs to the same container, as far as recorded
}

// holders looks up each owner of ports once: an owner may have thousands.
func (d portOwners) holders(a spec.Attachment) func(key string) portHolder {
	known := map[string]portHolder{}
	return func(key string) portHolder {
		h, ok := known[key]
		if !ok {
			o := d.owner(key)
			h = portHolder{gone: d.gone(key), sibling: o != nil && o.ContainerID == a.ContainerID && key != a.Key()}
			known[key] = h
		}
		return h
	}
}

// portsOf returns what is recorded of the mappings.
func portsOf(checked []spec.Port, maps iter.Seq[nft.PortMap]) ports {
	p := ports{UDP: udpOf(checked)}
	for m := range maps {
		p.Ports = append(p.Ports, leadPort{m.Proto, udpPort{m.HostIP, m.HostPort}, m.Target})
		if len(p.Ports) > mostPorts {
			p.Ports = nil
			break
		}
	}
	return p
}

// and returns the ports of both.
func (p ports) and(old ports) ports {
	p.UDP = merge(p.UDP, old.UDP)
	if p.Ports != nil && old.Ports != nil {
		p.Ports = merge(p.Ports, old.Ports)
	} else {
		p.Ports = nil
	}
	if len(p.Ports) > mostPorts {
		p.Ports = nil
	}
	return p
}

// knownOf names the elements of the ports on record; nil: they are not known.
func knownOf(o *portOwner) nft.Known {
	if o == nil {
		return nil
	}
	var known nft.Known
	for _, p := range o.Data.Ports {
		known = append(known, nft.KnownPort(nft.PortMap{Proto: p.Protocol, HostIP: p.HostIP, HostPort: p.Port, Target: p.Target})...)
	}
	return known
}

// udpOf returns the host ports of the UDP mappings. TCP and SCTP flows end with their connections.
func udpOf(checked []spec.Port) []udpPort {
	n := 0
	for _, w := range checked {
		if w.Protocol == "udp" {
			n++
		}
	}
	udp := make([]udpPort, 0, n)
	for _, w := range checked {
		if w.Protocol == "udp" {
			udp = append(udp, udpPort{w.HostIP, w.HostPort})
		}
	}
	return udp
}

// merge returns the ports of both lists without duplicates.
func merge[P comparable](list, more []P) []P {
	all := make([]P, 0, len(list)+len(more))
	seen := make(map[P]bool, len(list)+len(more))
	for _, list := range [][]P{list, more} {
		for _, p := range list {
			if !seen[p] {
				seen[p] = true
				all = append(all, p)
			}
		}
	}
	return all
}

// forgetFlows deletes the connection tracking entries of UDP flows to the ports. An error does not
// keep ports from being published or released. It is a warning: packets of old flows are lost until
// the flows time out, 30 s after the last packet (nf_conntrack_udp_timeout).
func forgetFlows(r *spec.Request, udp []udpPort) {
	if len(udp) == 0 {
		return
	}
	if err := nft.In(r.Call.Session).FlushUDP(addrPorts(udp)); err != nil {
		r.Warn("connection tracking entries of UDP ports: %v", err)
	}
}

// addrPorts converts the ports for conntrack; the zero Addr is any.
func addrPorts(udp []udpPort) []netip.AddrPort {
	ports := make([]netip.AddrPort, 0, len(udp))
	for _, p := range udp {
		ports = append(ports, netip.AddrPortFrom(p.HostIP, p.Port))
	}
	return ports
}
