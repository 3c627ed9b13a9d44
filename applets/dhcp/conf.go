package dhcp

import (
	"cmp"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/state"
	"github.com/cnibox/cnibox/ipam/dhcp"
	"github.com/cnibox/cnibox/spec"
)

// A conf is the configuration. The plugin checks all of it; the daemon gets a [dhcp.Config].
type conf struct {
	IPAM struct {
		socketConf
		Provide []struct {
			Option  string `json:"option"`
			Value   string `json:"value"`
			FromArg string `json:"fromArg"`
		} `json:"provide"`
		Request []struct {
			Option      string `json:"option"`
			SkipDefault bool   `json:"skipDefault"`
		} `json:"request"`
		Priority int   `json:"priority"`
		IPv4     *bool `json:"ipv4"` // nil: true
		IPv6     bool  `json:"ipv6"`
	} `json:"ipam"`
	MTU int `json:"mtu"` // the interface plugin's; if above 0, the server's MTU is not set
}

type socketConf struct {
	Socket string `json:"daemonSocketPath"`
}

// defaultSocket is also the reference's path: only one of the two daemons can run.
const defaultSocket = "/run/cni/dhcp.sock"

// A plugin is a checked configuration.
type plugin struct {
	*spec.Request
	socket string
	leases record.Dir
	conf   dhcp.Config
}

// maxSocketPath is the maximum length of the path of a socket in bytes: unix(7).
const maxSocketPath = 107

// newPlugin reads the path of the socket. DEL and GC read no other key, so they work with a
// configuration that has become invalid. If that key is invalid no ADD has got a lease, so DEL
// succeeds.
func newPlugin(r *spec.Request) (*plugin, error) {
	var c struct {
		IPAM socketConf `json:"ipam"`
	}
	err := r.Decode(&c)
	usual := state.Dir(r.Call.StateDir, defaultSocket)
	p := &plugin{Request: r, socket: cmp.Or(c.IPAM.Socket, usual)}
	if err == nil {
		if err = checkSocket(p.socket); err != nil {
			err = spec.Errorf(spec.CodeConfig, `"ipam.daemonSocketPath" %w`, err).AtKey("ipam.daemonSocketPath")
		}
	}
	if err != nil && r.Call.Verb != spec.Del {
		return nil, err
	}
	if err != nil {
		r.Warn("%v: using %s", err, usual)
		p.socket = usual
	}
	p.leases = leasesDir(p.socket)
	return p, nil
}

// checkSocket checks the path of a socket.
func checkSocket(path string) error {
	switch {
	case !filepath.IsAbs(path) || strings.Contains(path, "\x00"):
		return fmt.Errorf("%q is not an absolute path", path)
	case len(path) > maxSocketPath:
		return fmt.Errorf("%q is longer than the %d bytes of a socket's path", path, maxSocketPath)
	}
	return nil
}

// leasesDir returns the directory of the leases of the daemon at a socket. It is beside the socket,
// so that plugin and daemon share one path only.
func leasesDir(socket string) record.Dir {
	return record.Dir(strings.TrimSuffix(filepath.Clean(socket), ".sock") + "-leases")
}

// confine removes the addresses, for which the daemon would ask a server.
func confine(conf map[string]json.RawMessage) (leftOut string) {
	delete(conf, "ipam")
	return "no DHCP server is asked: the interface gets no address"
}

// readPlugin reads and checks the whole configuration. Errors have code 7.
func readPlugin(r *spec.Request) (*plugin, error) {
	p, err := newPlugin(r)
	if err != nil {
		return nil, err
	}
	var c conf
	if err := r.Decode(&c); err != nil {
		return nil, err
	}
	p.conf = dhcp.Config{
		IfName: r.IfName, V4: c.IPAM.IPv4 == nil || *c.IPAM.IPv4, V6: c.IPAM.IPv6,
		ClientID: clientID(r.Attachment), DUID: duid(r.Attachment),
		Priority: c.IPAM.Priority, KeepMTU: c.MTU > 0,
	}
	switch {
	case c.IPAM.Priority < 0 || c.IPAM.Priority > 1<<31-1:
		return nil, spec.Errorf(spec.CodeConfig, `"ipam.priority" %d is not within 0 to 2147483647`, c.IPAM.Priority).AtKey("ipam.priority")
	case !p.conf.V4 && !p.conf.V6:
		return nil, spec.Errorf(spec.CodeConfig, `"ipam.ipv4" is false and "ipam.ipv6" is not true: there is nothing to lease`).AtKey("ipam.ipv4")
	}
	if r.Call.NetNS != "" {
		if p.conf.NetNS, err = filepath.Abs(r.Call.NetNS); err != nil {
			return nil, spec.Errorf(spec.CodeNetNS, "%w", err)
		}
	}
	if err := p.readProvide(&c); err != nil {
		return nil, err
	}
	return p, p.readRequest(&c)
}

// readProvide reads the options to send. Like the reference it prefers CNI_ARGS to a value; without
// both it does not send the option. It refuses padding, the end, and the options that the client
// sets itself; these may be requested.
func (p *plugin) readProvide(c *conf) error {
	for i, o := range c.IPAM.Provide {
		code, err := parseOption(fmt.Sprintf("ipam.provide[%d].option", i), o.Option)
		if err != nil {
			return err
		}
		if code == 0 || code == 255 || code >= 50 && code <= 54 || code == 57 {
			return spec.Errorf(spec.CodeConfig, `"ipam.provide" has option %d, which the client sets itself: remove it`, code).AtKey("ipam.provide")
		}
		value := o.Value
		if arg, ok := p.Arg(o.FromArg); ok && o.FromArg != "" {
			value = arg
		}
		if len(value) > 255 {
			return spec.Errorf(spec.CodeConfig, "value too long for option %s: %d bytes, 255 at most", o.Option, len(value)).AtKey(fmt.Sprintf("ipam.provide[%d]", i))
		}
		if value != "" {
			p.conf.Send = append(p.conf.Send, dhcp.Option{Code: code, Data: []byte(value)})
		}
	}
	return nil
}

// readRequest reads the options to request. With skipDefault and no option it returns the default
// list of the reference's library.
func (p *plugin) readRequest(c *conf) error {
	codes, alone := []byte(nil), false
	for i, o := range c.IPAM.Request {
		alone = alone || o.SkipDefault
		if o.Option == "" {
			continue
		}
		code, err := parseOption(fmt.Sprintf("ipam.request[%d].option", i), o.Option)
		if err != nil {
			return err
		}
		codes = append(codes, code)
	}
	usual := "\x01\x79\x03\x21\x06\x0f\x77\x1a\x2a" // 121 before 3 and 33: RFC 3442
	if alone && len(codes) == 0 {
		usual = "\x01\x03\x0f\x06"
	} else if alone {
		usual = ""
	}
	for _, code := range append(codes, usual...) {
		if strings.IndexByte(string(p.conf.Request), code) < 0 {
			p.conf.Request = append(p.conf.Request, code)
		}
	}
	return nil
}

// parseOption reads the name or number of an option in the value of a key.
func parseOption(key, name string) (byte, error) {
	switch name {
	case "dhcp-client-identifier":
		return 61, nil
	case "subnet-mask":
		return 1, nil
	case "routers":
		return 3, nil
	case "host-name":
		return 12, nil
	case "user-class":
		return 77, nil
	case "vendor-class-identifier":
		return 60, nil
	}
	n, err := strconv.ParseUint(name, 10, 8)
	if err != nil {
		return 0, spec.Errorf(spec.CodeConfig, "Can not parse option: %q is neither a known name nor 0 to 255", name).AtKey(key)
	}
	return byte(n), nil
}

// clientID returns the reference's client identifier: type 0, which is not a hardware address, and
// the names. A server leases the same address again after one of the two has replaced the other.
func clientID(a spec.Attachment) []byte {
	id := "\x00" + a.ContainerID + "/" + a.Network + "/" + a.IfName
	return []byte(id[:min(len(id), 255)])
}

// duid returns a DUID of type UUID (RFC 6355), made from the names, so that it does not depend on
// the MAC address.
func duid(a spec.Attachment) []byte {
	sum := sha512.Sum512([]byte("dhcpv6\x00" + a.Network + "\x00" + a.ContainerID + "\x00" + a.IfName))
	id := sum[:16]
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // version 8, RFC 9562 section 5.8
	return append([]byte{0, 4}, id...)
}
