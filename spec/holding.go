package spec

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
)

// A Holding is a resource that an attachment has from a plugin besides its interface and its
// addresses.
type Holding struct {
	Kind string `json:"kind"` // as port, limit, vrf: in camel case, as the members of Data
	Text string `json:"text"` // for people
	Data any    `json:"data"` // for programs
}

// The kinds of holdings whose data tools know. Plugins have other kinds as well.
const (
	KindPort     = "port"     // a published port: a [Port]
	KindMACGuard = "macGuard" // the only MAC address that a link may use as source: a [MACGuard]
	KindHostLink = "hostLink" // what the interface is connected to on the host: a [HostLink]
)

// CapPorts is the capability with the published ports of a container, a list of [Port].
const CapPorts = "portMappings"

// A Port is a published port, an entry of the capability portMappings. The names are the
// convention's.
type Port struct {
	HostPort      uint16     `json:"hostPort"`
	ContainerPort uint16     `json:"containerPort"`
	Protocol      string     `json:"protocol"`        // tcp, udp or sctp
	HostIP        netip.Addr `json:"hostIP,omitzero"` // zero: any address of the host, of both families; unspecified: any of its family
}

// Normal returns a port that was read from JSON with its protocol in lower case, tcp if there is none, and an
// IPv4 address as such.
func (p Port) Normal() Port {
	p.Protocol, p.HostIP = strings.ToLower(cmp.Or(p.Protocol, "tcp")), p.HostIP.Unmap()
	return p
}

// InFamily reports whether the port can lead to an address of a's family. Others are skipped, as
// in the reference: a pod with two addresses gets each mapping for the address that fits.
func (p Port) InFamily(a netip.Addr) bool { return !p.HostIP.IsValid() || p.HostIP.Is4() == a.Is4() }

// Host formats the host's side of a port: 8080/tcp or 192.0.2.1:53/udp.
func (p Port) Host() string {
	text := fmt.Sprint(p.HostPort)
	if p.HostIP.IsValid() && !p.HostIP.IsUnspecified() {
		text = netip.AddrPortFrom(p.HostIP, p.HostPort).String()
	}
	return text + "/" + p.Protocol
}

// Short formats a port as for `cni-exec run --publish`.
func (p Port) Short() string {
	host := strings.TrimSuffix(p.Host(), "/"+p.Protocol)
	text := fmt.Sprintf("%s:%d", host, p.ContainerPort)
	if p.Protocol != "tcp" {
		text += "/" + p.Protocol
	}
	return text
}

// A HostLink is what the interface of an attachment is connected to on the host.
type HostLink struct {
	Name   string `json:"name"`   // the attachment's own link on the host, such as a host-side veth; empty: none
	Master string `json:"master"` // the master of Name, such as a bridge; empty: none
	Parent string `json:"parent"` // the parent of the interface; empty: none
}

// A MACGuard allows a link of the host to send from one MAC address only.
type MACGuard struct {
	Link string `json:"link"`
	MAC  string `json:"mac"`
}

// On returns the master or the parent; empty: neither.
func (l HostLink) On() string { return cmp.Or(l.Master, l.Parent) }
