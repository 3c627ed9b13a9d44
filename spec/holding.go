package spec

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
)

// A Holding is one thing that an attachment has of a plugin beside its interface and its addresses.
type Holding struct {
	Kind string `json:"kind"` // as port, limit, VRF
	Text string `json:"text"` // for people
	Data any    `json:"data"` // for programs
}

// The kinds of holdings of which tools know the data. Plugins have others as well.
const (
	KindPort     = "port"     // a published port: a [Port]
	KindMACGuard = "macGuard" // the one MAC address that a link may send from: a [MACGuard]
	KindHostLink = "hostLink" // what the interface is connected to on the host: a [HostLink]
)

// CapPorts is the capability that has the host ports of a container, a list of [Port].
const CapPorts = "portMappings"

// A Port is a published port, and an entry of the capability portMappings. The names are the
// convention's.
type Port struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`         // tcp, udp or sctp
	HostIP        string `json:"hostIP,omitempty"` // empty: any address of the host
}

// Host is the host's side of a port, as 8080/tcp or 192.0.2.1:53/udp.
func (p Port) Host() string {
	text := fmt.Sprint(p.HostPort)
	if ip, err := netip.ParseAddr(p.HostIP); err == nil && !ip.IsUnspecified() {
		text = netip.AddrPortFrom(ip, p.HostPort).String()
	}
	return text + "/" + p.Protocol
}

// Short is a port as `cni-exec run --publish` has it.
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
	Name   string `json:"name"`   // of the attachment's own link on the host, as a host-side veth; empty: it has none
	Master string `json:"master"` // that Name is a port of, as a bridge; empty: none
	Parent string `json:"parent"` // that the interface is made on; empty: none
}

// A MACGuard lets a link of the host send from one MAC address alone.
type MACGuard struct {
	Link string `json:"link"`
	MAC  string `json:"mac"`
}

// On is the master or the parent; empty: neither.
func (l HostLink) On() string { return cmp.Or(l.Master, l.Parent) }
