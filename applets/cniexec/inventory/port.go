package inventory

import (
	"fmt"
	"net/netip"
	"strings"
)

// Port is an entry of the capability portMappings.
// The names are the convention's.
type Port struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// CapPorts is the capability that --publish gives arguments to.
const CapPorts = "portMappings"

// Host is the host's side of a port, as 8080/tcp or 192.0.2.1:53/udp.
func (p Port) Host() string {
	text := fmt.Sprint(p.HostPort)
	if ip, err := netip.ParseAddr(p.HostIP); err == nil && !ip.IsUnspecified() {
		text = netip.AddrPortFrom(ip, p.HostPort).String()
	}
	return text + "/" + p.Protocol
}

// Short is a port as --publish has it.
func (p Port) Short() string {
	host := strings.TrimSuffix(p.Host(), "/"+p.Protocol)
	text := fmt.Sprintf("%s:%d", host, p.ContainerPort)
	if p.Protocol != "tcp" {
		text += "/" + p.Protocol
	}
	return text
}
