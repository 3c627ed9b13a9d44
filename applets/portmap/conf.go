package portmap

import (
	"fmt"
	"iter"
	"net/netip"
	"strings"

	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/applets/hostport"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// conf has the keys of portmap. Some runtimes capitalise the keys of a mapping, which encoding/json
// accepts.
type conf struct {
	chained.Defaults
	chained.Stored
	Backend       string   `json:"backend"`              // "", nftables or iptables; all mean nftables
	SNAT          *bool    `json:"snat"`                 // nil: true
	MasqAll       bool     `json:"masqAll"`              // with SNAT: from any source
	MarkMasqBit   *int     `json:"markMasqBit"`          // checked but not used: the bit is fixed
	SetMarkChain  *string  `json:"externalSetMarkChain"` // checked but not used
	ConditionsV4  []string `json:"conditionsV4"`
	ConditionsV6  []string `json:"conditionsV6"`
	RuntimeConfig struct {
		PortMappings []portMapping `json:"portMappings"`
	} `json:"runtimeConfig"`

	// Set by Validate; without mappings no port is published.
	mappings       []spec.Port // their container address is not known yet
	snat, masqAll  bool        // masqAll has an effect only with snat
	conds4, conds6 []nft.Match // for the packets of each family
}

// A portMapping is one entry of the capability.
type portMapping struct {
	HostPort      int    `json:"hostPort"` // 0: none, skipped
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"` // tcp, udp or sctp in any case of letters; "": tcp
	HostIP        string `json:"hostIP"`   // "": any address of the host
}

// Validate checks the configuration and changes nothing.
func (c *conf) Validate(r *spec.Request) error {
	v := r.Call.Verb
	err := c.read(v == spec.Add)
	if err == nil && c.Backend == "iptables" && v != spec.Del && v != spec.GC {
		r.Warn(`backend "iptables" means nftables here: the ports are mapped in table inet cnibox`)
	}
	return err
}

// read is Validate without the warning.
func (c *conf) read(adding bool) (err error) {
	c.snat, c.masqAll = c.SNAT == nil || *c.SNAT, c.MasqAll
	if err = c.validate(); err == nil {
		c.mappings, err = checkMappings(c.RuntimeConfig.PortMappings, adding)
	}
	if err == nil {
		c.conds4, err = parseConditions("conditionsV4", c.ConditionsV4, false)
	}
	if err == nil {
		c.conds6, err = parseConditions("conditionsV6", c.ConditionsV6, true)
	}
	return err
}

// Needs requires nothing: the ports are rules of the host.
func (c *conf) Needs() chained.Need { return chained.NeedNothing }

// validate checks all keys except the mappings. Errors begin with the phrases of the reference.
func (c *conf) validate() error {
	switch bit := c.MarkMasqBit; {
	case c.Backend != "" && c.Backend != "nftables" && c.Backend != "iptables":
		return spec.KeyErrorf("backend", "unrecognized backend %q: \"backend\" must be nftables (or iptables, which means the same here)", c.Backend)
	case bit != nil && c.SetMarkChain != nil:
		return spec.KeyErrorf("externalSetMarkChain", "Cannot specify externalSetMarkChain and markMasqBit: they exclude each other")
	case bit != nil && (*bit < 0 || *bit > 31):
		return spec.KeyErrorf("markMasqBit", "MasqMarkBit must be between 0 and 31: markMasqBit is %d", *bit)
	}
	return nil
}

// checkMappings checks the mappings and drops those without a host port, and duplicates, which
// runtimes send. Two mappings of one host port to different container ports are an error, and for ADD one of ::1,
// which other verbs skip.
func checkMappings(mappings []portMapping, adding bool) ([]spec.Port, error) {
	checked := make([]spec.Port, 0, len(mappings))
	seen := make(map[spec.Port]uint16, len(mappings)) // container ports, by the host's side alone
	for i, m := range mappings {
		if m.HostPort == 0 {
			continue
		}
		key := fmt.Sprintf("runtimeConfig.portMappings[%d]", i)
		w, err := m.check(key)
		if err != nil {
			return nil, err
		}
		if onLoopback6(w) {
			if adding {
				return nil, loopback6Error(key)
			}
			continue // of an earlier version
		}
		host := spec.Port{Protocol: w.Protocol, HostPort: w.HostPort}
		for _, host.HostIP = range hostport.Rivals(w) {
			if port, ok := seen[host]; ok && port != w.ContainerPort {
				return nil, spec.KeyErrorf(key, "%s: %s is asked for twice, for container ports %d and %d",
					key, hostport.Text(w), port, w.ContainerPort)
			}
		}
		host.HostIP = w.HostIP
		if _, ok := seen[host]; !ok {
			seen[host] = w.ContainerPort
			checked = append(checked, w)
		}
	}
	return checked, nil
}

// check checks the mapping at a key. The caller skips a host port of 0.
func (m portMapping) check(key string) (spec.Port, error) {
	w := spec.Port{Protocol: strings.ToLower(m.Protocol), HostPort: uint16(m.HostPort), ContainerPort: uint16(m.ContainerPort)}
	switch {
	case m.ContainerPort < 1 || m.ContainerPort > 65535:
		return w, spec.KeyErrorf(key+".containerPort", "%s.containerPort: Invalid container port number: %d: it must be from 1 to 65535", key, m.ContainerPort)
	case m.HostPort < 0 || m.HostPort > 65535:
		return w, spec.KeyErrorf(key+".hostPort", "%s.hostPort: Invalid host port number: %d: it must be from 1 to 65535, or 0 for no mapping", key, m.HostPort)
	}
	switch w.Protocol {
	case "":
		w.Protocol = "tcp"
	case "tcp", "udp", "sctp":
	default:
		return w, spec.KeyErrorf(key+".protocol", "%s.protocol: %q must be tcp, udp or sctp", key, m.Protocol)
	}
	if m.HostIP == "" {
		return w, nil
	}
	ip, err := netip.ParseAddr(m.HostIP)
	if err != nil {
		return w, spec.KeyErrorf(key+".hostIP", "%s.hostIP: %q is not an IP address", key, m.HostIP)
	}
	if ip.Zone() != "" {
		return w, spec.KeyErrorf(key+".hostIP", "%s.hostIP: %s must not have a zone", key, ip)
	}
	w.HostIP = ip.Unmap()
	return w, nil
}

// onLoopback6 reports whether the mapping is of ::1, which leads nowhere: the kernel forwards nothing from ::1.
func onLoopback6(p spec.Port) bool { return p.HostIP == netip.IPv6Loopback() }

// loopback6Error is the error of ADD for such a mapping.
func loopback6Error(key string) error {
	return spec.KeyErrorf(key+".hostIP", `%s.hostIP: no port can be published on ::1, from which the kernel forwards nothing: 127.0.0.1 can be used`, key)
}

// parseConditions reads extra matches, in the syntax of iptables or of nft. They apply only to the
// ports of this attachment.
func parseConditions(key string, tokens []string, ip6 bool) ([]nft.Match, error) {
	conds, err := nft.ParseConditions(tokens, ip6)
	if err != nil {
		return nil, spec.KeyErrorf(key, "%s: %w", key, err)
	}
	return conds, nil
}

// targetsOf returns the container's addresses: the first of each family among those of the result
// that belong to the interface, or to no interface. Like the reference, portmap does not publish
// further addresses of a family.
func targetsOf(res *spec.Result, ifName string) []netip.Prefix {
	var targets []netip.Prefix
	var four, six bool
	for _, ip := range res.Addresses(ifName, spec.AnySandbox) {
		seen := &six
		if ip.Address.Addr().Is4() {
			seen = &four
		}
		if !*seen {
			*seen = true
			targets = append(targets, ip.Address)
		}
	}
	return targets
}

// maps combines each mapping with the container addresses to which it can lead. ADD and CHECK use
// it. There may be none, or thousands.
func (c *conf) maps(targets []netip.Prefix) iter.Seq[nft.PortMap] {
	return func(yield func(nft.PortMap) bool) {
		for _, t := range targets {
			conds := c.conds6
			if t.Addr().Is4() {
				conds = c.conds4
			}
			for _, w := range c.mappings {
				if !w.InFamily(t.Addr()) {
					continue
				}
				if !yield(nft.PortMap{
					Proto: hostport.ProtoNumber(w.Protocol), HostIP: w.HostIP, HostPort: w.HostPort,
					Target: netip.AddrPortFrom(t.Addr(), w.ContainerPort), TargetPrefix: t.Masked(),
					SNAT: c.snat, MasqAll: c.snat && c.masqAll, Conditions: conds,
				}) {
					return
				}
			}
		}
	}
}

// hostPorts returns the ports of the mappings that lead to one of the targets.
func (c *conf) hostPorts(targets []netip.Prefix) (ports []spec.Port) {
	for _, w := range c.mappings {
		for _, t := range targets {
			h := w
			switch {
			case !h.InFamily(t.Addr()):
				continue
			case h.HostIP.IsValid():
			case t.Addr().Is4():
				h.HostIP = netip.IPv4Unspecified()
			default:
				h.HostIP = netip.IPv6Unspecified()
			}
			ports = append(ports, h)
		}
	}
	return ports
}

func noMaps(maps iter.Seq[nft.PortMap]) bool {
	for range maps {
		return false
	}
	return true
}
