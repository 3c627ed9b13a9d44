package cniexec

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

// asked are the flags that ask networks for something.
type asked struct {
	publish []spec.Port
	force   bool
	retries int // of an add with code 11
	ips     askedValues
	macs    askedValues
	dns     []string // of run and hook
}

func (a *asked) declare(f *flagSet, ip, mac string) {
	f.list("publish", "p", "`[IP:]HOST:CONTAINER[/tcp|udp|sctp]` publish a port, or a range: 8080-8090:80-90; repeatable", a.addPorts)
	f.BoolVar(&a.force, "force", false, "publish also ports on which this host listens")
	f.IntVar(&a.retries, "retries", 0, "`N` times to add again after \"try again later\"")
	f.list("ip", "", ip, a.addIP)
	f.list("mac", "", mac, a.addMAC)
}

// An askedFor is a value of --ip or --mac: an address that the interface on a network shall have.
type askedFor struct {
	network string // empty: the first network, or that of add
	value   string
}

// askedValues are the values of a flag, in the order given.
type askedValues []askedFor

func (a *askedValues) add(s string, check func(value string) error) error {
	network, value, ok := strings.Cut(s, "=")
	if !ok {
		network, value = "", s
	}
	if ok && network == "" {
		return errors.New("the name of a network is missing before =")
	}
	*a = append(*a, askedFor{network, value})
	return check(value)
}

// on returns the values for a network.
func (a *askedValues) on(network string, first bool) (values []string) {
	for _, v := range *a {
		if v.network == network || v.network == "" && first {
			values = append(values, v.value)
		}
	}
	return values
}

func (a *asked) addIP(s string) error { return a.ips.add(s, checkIP) }

func (a *asked) addMAC(s string) error { return a.macs.add(s, checkMAC) }

func (a *asked) addDNS(s string) error {
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return errors.New("it must be the address of a name server, as 10.1.0.1 or fd00::1")
	}
	a.dns = append(a.dns, addr.String())
	return nil
}

func (a *asked) addPorts(s string) error {
	ports, err := parsePublished(s)
	a.publish = append(a.publish, ports...)
	return err
}

// checkIP reads an address, which may have a prefix length.
func checkIP(s string) error {
	p, err := netip.ParsePrefix(s)
	a := p.Addr()
	if err != nil {
		a, err = netip.ParseAddr(s)
	}
	if err != nil || a.Zone() != "" || a.IsMulticast() || a.IsUnspecified() {
		return errors.New("it must be the address of an interface, as 10.1.0.5, 10.1.0.5/24 or fd00::5")
	}
	return nil
}

// checkMAC reads the address of an interface.
func checkMAC(s string) error {
	_, err := spec.ParseMAC(s)
	return err
}

// A runtime asks for addresses by a capability if a plugin declares it, else by CNI_ARGS:
// https://www.cni.dev/docs/conventions/.
const (
	capIPs, argIP  = "ips", "IP"
	capMAC, argMAC = "mac", "MAC"
	capDNS         = "dns"
)

// canHonour refuses, before any change, flags that no plugin of their network would use. Errors
// have code 7, or 4 for a network that is not among these.
func (a *asked) canHonour(c *call, networks ...*chain.List) error {
	for _, v := range slices.Concat(a.ips, a.macs) {
		if v.network != "" && !slices.ContainsFunc(networks, func(l *chain.List) bool { return l.Name == v.network }) {
			return spec.Errorf(spec.CodeEnv, "%s=%s: this call attaches to no network %q", v.network, v.value, v.network)
		}
	}
	for i, l := range networks {
		ips, macs := a.ips.on(l.Name, i == 0), a.macs.on(l.Name, i == 0)
		switch {
		case len(macs) > 1:
			return spec.Errorf(spec.CodeEnv, "--mac: %s is more than one address for an interface", strings.Join(macs, ", "))
		case len(macs) == 1 && !declares(l, capMAC) && !c.readsArg(l, argMAC):
			return spec.Errorf(spec.CodeConfig, `--mac: no plugin in %s takes a MAC address: add "capabilities": {"mac": true} to the one that makes the interface`, l.File)
		case len(ips) == 0 || declares(l, capIPs):
		case !c.readsArg(l, argIP):
			return spec.Errorf(spec.CodeConfig, `--ip: no plugin in %s takes an address: add "capabilities": {"ips": true} to the one with "ipam"`, l.File)
		case len(ips) > 1:
			return spec.Errorf(spec.CodeConfig, `--ip: without a capability a plugin takes one address: add "capabilities": {"ips": true} to the one with "ipam" in %s`, l.File)
		}
	}
	return cmp.Or(a.canPublish(c, networks...), a.freePorts())
}

// declares reports whether a plugin of the network declares a capability.
func declares(l *chain.List, capability string) bool {
	for i := range l.Plugins {
		if l.Plugins[i].Capabilities[capability] {
			return true
		}
	}
	return false
}

// readsArg reports whether a plugin of the network reads IP or MAC of CNI_ARGS. An external plugin
// counts as the built-in one of its name.
func (c *call) readsArg(l *chain.List, arg string) bool {
	return slices.ContainsFunc(l.Plugins, func(p chain.Plugin) bool {
		if arg == argIP {
			builtIn, ok := c.Applets.Plugin(p.IPAM)
			return ok && builtIn.ArgIP
		}
		builtIn, ok := c.Applets.Plugin(p.Type)
		return ok && builtIn.Args && !builtIn.IPAM
	})
}

// arguments returns the arguments of the target for one of the networks: those of the environment,
// which are for all, and those of flags. Only one network publishes host ports.
func (a *asked) arguments(t *chain.RuntimeConf, networks []*chain.List, i int) (args [][2]string, caps map[string]json.RawMessage) {
	l := networks[i]
	args, caps = slices.Clone(t.Args), maps.Clone(t.Capabilities)
	set := func(capability, arg string, value any, text string) {
		if declares(l, capability) {
			if caps == nil {
				caps = make(map[string]json.RawMessage)
			}
			caps[capability], _ = json.Marshal(value) // strings, and lists of strings
		} else if arg != "" {
			args = slices.DeleteFunc(args, func(pair [2]string) bool { return pair[0] == arg })
			args = append(args, [2]string{arg, text})
		}
	}
	if ips := a.ips.on(l.Name, i == 0); len(ips) > 0 {
		set(capIPs, argIP, ips, ips[0])
	}
	if macs := a.macs.on(l.Name, i == 0); len(macs) > 0 {
		set(capMAC, argMAC, macs[0], macs[0])
	}
	if len(a.dns) > 0 {
		set(capDNS, "", map[string][]string{"servers": a.dns}, "")
	}
	before := func(l *chain.List) bool { return declares(l, spec.CapPorts) }
	if len(a.publish) > 0 && slices.ContainsFunc(networks[:i], before) {
		delete(caps, spec.CapPorts)
	}
	return args, caps
}

// capabilities adds the published ports to those of CAP_ARGS. Errors have code 4.
func (a *asked) capabilities(caps map[string]json.RawMessage) (_ map[string]json.RawMessage, err error) {
	if len(a.publish) == 0 {
		return caps, nil
	}
	var ports []spec.Port
	if raw := caps[spec.CapPorts]; raw != nil {
		if err := spec.Unmarshal("CAP_ARGS.portMappings", raw, &ports); err != nil {
			return nil, spec.Errorf(spec.CodeEnv, "%w", err)
		}
	}
	if caps == nil {
		caps = make(map[string]json.RawMessage)
	}
	caps[spec.CapPorts], err = json.Marshal(append(ports, a.publish...))
	return caps, err
}

// canPublish refuses --publish if no plugin of the networks would get it. As with libcni, CAP_ARGS
// may have what no plugin takes, but a flag was given for this call. The error has code 7.
func (a *asked) canPublish(c *call, networks ...*chain.List) error {
	for _, l := range networks {
		if declares(l, spec.CapPorts) {
			return nil
		}
	}
	if len(a.publish) == 0 {
		return nil
	}
	return spec.Errorf(spec.CodeConfig, `--publish: no plugin in %s takes port mappings%s`, networks[0].File, c.publishAdvice())
}

// freePorts refuses --publish of a port on which a process of the host listens: its clients would
// reach the container instead. For CAP_ARGS of runtimes the plugin warns. The error has code 100.
func (a *asked) freePorts() error {
	if a.force {
		return nil
	}
	if err := listening(a.publish); err != nil {
		return spec.Errorf(spec.CodeBusy, "--publish: %w", err)
	}
	return nil
}
