package firewall

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/internal/dbus"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// The defaults are the reference's.
const (
	defaultAdminChain = "CNI-ADMIN"
	defaultZone       = "trusted"
)

type conf struct {
	chained.Defaults
	chained.Stored
	Backend       string `json:"backend"`                // "", nftables, iptables or firewalld
	AdminChain    string `json:"iptablesAdminChainName"` // "": CNI-ADMIN
	Zone          string `json:"firewalldZone"`          // "": trusted
	IngressPolicy string `json:"ingressPolicy"`          // "", open, same-bridge or isolated
	Bus           string `json:"dbusSocket"`             // path; "": DBUS_SYSTEM_BUS_ADDRESS, or the system bus

	plan *plan // set by Validate
}

// A plan is a checked configuration and, after readPrevResult, what it applies to.
type plan struct {
	admin, zone string
	bus         []string // sockets of the system bus
	firewalld   bool
	ownTable    bool // adds no rules to the filter tables
	policed     bool // ingressPolicy is not open
	isolated    bool

	ips    []netip.Addr
	bridge string       // to which the policy applies; "": none
	vlan   string       // the host's interface in the VLAN of an isolated container; "": none
	ports  []*rtnl.Link // of the container, on the bridge
}

// confine removes the use of firewalld from a configuration.
func confine(conf map[string]json.RawMessage) (leftOut string) {
	if string(conf["backend"]) != `"firewalld"` {
		return ""
	}
	conf["backend"] = json.RawMessage(`"nftables"`)
	return "firewalld is not asked to put the addresses into its zone"
}

// Validate checks all keys. Errors of the environment have code 4.
func (c *conf) Validate(r *spec.Request) error {
	c.plan = c.defaults()
	if err := c.validate(c.plan); err != nil {
		return err
	}
	if err := c.findBus(r, c.plan); err != nil {
		return err
	}
	if v := r.Call.Verb; c.Backend == "iptables" && v != spec.Del && v != spec.GC {
		r.Warn(`backend "iptables" means nftables here: the rules are in table inet cnibox and in the tables filter of iptables-nft, not in those of iptables-legacy`)
	}
	return nil
}

// releasePlan returns the plan of DEL and GC, for which the configuration may be invalid.
func (c *conf) releasePlan() *plan {
	if c.plan == nil { // not decoded
		c.plan = c.defaults()
	}
	return c.plan
}

// Needs requires nothing: the rules are the host's.
func (c *conf) Needs() chained.Need { return chained.NeedNothing }

// findBus reads the sockets of the system bus from the environment, if firewalld is used and the
// configuration names none. Errors have code 4.
func (c *conf) findBus(r *spec.Request, p *plan) error {
	if !p.firewalld || c.Bus != "" || r.Call.SystemBus == "" {
		return nil
	}
	sockets, err := dbus.Sockets(r.Call.SystemBus)
	if err != nil {
		return spec.Errorf(spec.CodeEnv, "%s: %w", spec.SystemBusEnv, err)
	}
	p.bus = sockets
	return nil
}

// defaults returns the plan before findBus.
func (c *conf) defaults() *plan {
	p := &plan{
		admin: c.AdminChain, zone: c.Zone, bus: []string{c.Bus},
		firewalld: c.Backend == "firewalld",
		ownTable:  c.Backend == "nftables",
		policed:   c.IngressPolicy == "same-bridge" || c.IngressPolicy == "isolated",
		isolated:  c.IngressPolicy == "isolated",
	}
	if p.admin == "" {
		p.admin = defaultAdminChain
	}
	if p.zone == "" {
		p.zone = defaultZone
	}
	if c.Bus == "" {
		p.bus = []string{dbus.SystemBus}
	}
	return p
}

// validate checks all keys. Errors begin with the phrases of the reference.
func (c *conf) validate(p *plan) error {
	switch c.Backend {
	case "", "nftables", "iptables", "firewalld":
	default:
		return spec.KeyErrorf("backend", `unrecognized backend %q: "backend" must be iptables, nftables or firewalld`, c.Backend)
	}
	switch c.IngressPolicy {
	case "", "open", "same-bridge", "isolated":
	default:
		return spec.KeyErrorf("ingressPolicy", `unknown ingress policy: %q: "ingressPolicy" must be open, same-bridge or isolated`, c.IngressPolicy)
	}
	if err := checkAdminChain(p.admin); err != nil {
		return err
	}
	if strings.Trim(p.zone, nameLetters) != "" {
		return spec.KeyErrorf("firewalldZone", `"firewalldZone" %q: the name of a zone has letters, digits, "-", "_" and "." alone`, p.zone)
	}
	if c.Bus != "" && !filepath.IsAbs(c.Bus) || strings.Contains(c.Bus, "\x00") {
		return spec.KeyErrorf("dbusSocket", `"dbusSocket" %q is not an absolute path`, c.Bus)
	}
	return nil
}

// nameLetters are the characters allowed in names of zones.
const nameLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

// checkAdminChain refuses names that no chain can have, names of targets and chains of iptables,
// and names of the chains that jump to the administrator's chain.
func checkAdminChain(name string) error {
	if err := nft.CheckChainName(name); err != nil {
		return spec.KeyErrorf("iptablesAdminChainName", `"iptablesAdminChainName" %q: %w`, name, err)
	}
	if slices.Contains([]string{
		"INPUT", "FORWARD", "OUTPUT", "ACCEPT", "DROP", "RETURN", "QUEUE",
		"CNI-FORWARD", "CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2",
	}, name) {
		return spec.KeyErrorf("iptablesAdminChainName", `"iptablesAdminChainName" %q is taken: it needs a chain of its own`, name)
	}
	return nil
}

// readPrevResult reads from prevResult all addresses, of any interface. For a policy it also reads
// the first bridge on the host, and its ports. A missing bridge is an error with the given code.
func (p *plan) readPrevResult(s *session.Session, prev *spec.Result, code int) error {
	p.ips = addressesIn(prev)
	if !p.policed {
		return nil
	}
	host, err := rtnl.OnHost(s)
	if err != nil {
		return err
	}
	var bridge uint32
	var links []*rtnl.Link
	for _, i := range prev.Interfaces {
		if i.Sandbox != "" || spec.CheckIfName(i.Name) != nil {
			continue // an interface in a sandbox may have the name of one on the host
		}
		l, err := host.Link(i.Name)
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return err
		case bridge == 0 && l.Kind == "bridge":
			bridge, p.bridge = l.Index, l.Name
		default:
			links = append(links, l)
		}
	}
	if bridge == 0 {
		return spec.Errorf(code, `interface needs to be set for ingress policy: prevResult has no bridge of the host, and "ingressPolicy" is about bridges; leave it out, or set it to open`)
	}
	for _, l := range links {
		switch {
		case l.Master == bridge:
			p.ports = append(p.ports, l)
		case p.isolated && l.Kind == "veth" && l.LinkNetNSID == -1:
			if peer, err := host.LinkAt(l.Parent); err == nil && peer.Master == bridge {
				p.vlan = l.Name // packets of its VLAN are routed here; the bridge only passes frames
			}
		}
	}
	return nil
}

// addressesIn returns the addresses of a result without duplicates.
func addressesIn(res *spec.Result) []netip.Addr {
	var ips []netip.Addr
	for _, ip := range res.IPs {
		if a := ip.Address.Addr().Unmap(); !slices.Contains(ips, a) {
			ips = append(ips, a)
		}
	}
	return ips
}
