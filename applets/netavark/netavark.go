// Package netavark is a driver for podman's networks: a plugin of netavark, podman's program for
// networks, which runs lists of CNI plugins.
//
// The protocol is netavark's plugin API 1.0.0 (netavark/plugin-API.md): create, setup NETNS, teardown
// NETNS or info, a JSON object on stdin, one on stdout, and after an error {"error": TEXT} and exit
// code 1.
package netavark

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/hostport"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/interrupt"
	"github.com/cnibox/cnibox/internal/state"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the driver.
var Applet = applet.Applet{
	Name:    "netavark",
	Summary: "driver of podman's networks: a plugin of netavark, which runs CNI plugins",
	Help: `
cnibox create           complete a network: subnets, gateways, bridge
cnibox setup NETNS      attach a container to a network
cnibox teardown NETNS   detach it; the last one deletes bridge and rules
cnibox info             print the versions

netavark calls them, with JSON on stdin, by the name that the driver has:

  ln -s /usr/local/sbin/cnibox /usr/local/libexec/netavark/cnibox
  [network]                               # in containers.conf
  netavark_plugin_dirs = ["/usr/local/libexec/netavark"]
  podman network create -d cnibox NAME

Options of podman network create -d cnibox:

-o network=NAME       a network of /etc/cni/net.d, with all that it has
-o mtu=1400           of the interfaces
-o vlan=100           VLAN of the containers' ports, and no gateway
-o isolate=true       nothing from or to other isolated networks
-o mode=unmanaged     the bridge is the administrator's, with its address
-o bandwidth=100M     limit of each direction, in bits per second
-o metric=100         of the default routes
-o no_default_route=true
`,
	Main: run,
}

// verbs are the first arguments by which netavark calls a plugin.
var verbs = []string{"create", "setup", "teardown", "info"}

const (
	apiVersion   = "1.0.0"
	stdinTimeout = 10 * time.Second
	takeBack     = 30 * time.Second
)

// run is the driver. netavark shows the error of its stdout.
func run(ctx context.Context, p applet.Process) int {
	if a, ok := p.Applets.Lookup("netavark"); ok && len(p.Args) > 0 && applet.IsHelp(p.Args[0]) {
		return applet.WriteHelp(a, p.Stdout)
	}
	answer, undo, err := verb(ctx, p)
	if err == nil && answer != nil {
		if err = write(p.Stdout, answer); err != nil {
			err = spec.Errorf(spec.CodeIO, "write the answer: %w", err)
			if undo != nil {
				undo()
			}
		}
	}
	if err == nil {
		return 0
	}
	p.Log.Failed(err)
	e := spec.AsError(err)
	text := strings.TrimSuffix(spec.Printable(e.Msg+"; "+e.Details), "; ")
	if write(p.Stdout, map[string]string{"error": text}) != nil {
		p.Complain("cnibox netavark", "%s", text)
	}
	return 1
}

func write(to io.Writer, v any) error {
	doc, err := json.Marshal(v)
	if err == nil {
		_, err = to.Write(append(doc, '\n'))
	}
	return err
}

// verb runs one verb. The answer is nil if it has none, undo if there is nothing to take back.
func verb(ctx context.Context, p applet.Process) (answer any, undo func(), err error) {
	var name, netns string
	switch len(p.Args) {
	case 0:
		return nil, nil, spec.Errorf(spec.CodeEnv, "no verb: netavark calls this program with %s", strings.Join(verbs, ", "))
	case 1:
		name = p.Args[0]
	default:
		name, netns = p.Args[0], p.Args[1]
	}
	p.Log.About(applet.Subject{Verb: name, NetNS: netns})
	attaches := name == "setup" || name == "teardown"
	switch {
	case !slices.Contains(verbs, name):
		return nil, nil, spec.Errorf(spec.CodeEnv, "unknown verb %q: netavark calls this program with %s", name, strings.Join(verbs, ", "))
	case attaches && netns == "":
		return nil, nil, spec.Errorf(spec.CodeEnv, "%s: the path of the network namespace is missing", name)
	case name == "info":
		return map[string]string{"version": applet.Version, "api_version": apiVersion}, nil, nil
	}
	doc, err := p.Input(ctx, spec.MaxConf, stdinTimeout)
	if err != nil {
		return nil, nil, spec.Errorf(spec.CodeIO, "%s: stdin: %w", name, err)
	}
	if len(bytes.TrimSpace(doc)) == 0 {
		return nil, nil, spec.Errorf(spec.CodeDecode, "%s: stdin is empty: netavark calls this program", name)
	}
	d := &driver{Process: p}
	if d.stateDir, err = spec.StateDir(p.Getenv); err != nil {
		return nil, nil, err
	}
	if name == "create" {
		answer, err = d.create(doc)
		return answer, nil, err
	}
	var r request
	if err := spec.Unmarshal(name, doc, &r); err != nil {
		return nil, nil, spec.Errorf(spec.CodeDecode, "%w", err)
	}
	d.setRunner()
	if name == "teardown" {
		return nil, nil, d.teardown(ctx, &r, netns)
	}
	return d.setup(ctx, &r, netns)
}

// A request is what setup and teardown get.
type request struct {
	ContainerID   string        `json:"container_id"`
	ContainerName string        `json:"container_name"`
	PortMappings  []portMapping `json:"port_mappings"`
	Network       network       `json:"network"`
	Options       struct {
		Aliases       []string     `json:"aliases"`
		InterfaceName string       `json:"interface_name"`
		StaticIPs     []netip.Addr `json:"static_ips"`
		StaticMAC     string       `json:"static_mac"`
	} `json:"network_options"`
}

type portMapping struct {
	ContainerPort uint16     `json:"container_port"`
	HostIP        netip.Addr `json:"host_ip"` // zero: all
	HostPort      uint16     `json:"host_port"`
	Protocol      string     `json:"protocol"` // one, or several with commas
	Range         uint16     `json:"range"`    // 0 and 1: one port
}

// A driver is one call.
type driver struct {
	applet.Process
	stateDir string
	runner   *chain.Runner
}

// confDir is where the networks of -o network=NAME are.
func (d *driver) confDir() string {
	if dir := d.Getenv("NETCONFPATH"); dir != "" {
		return dir
	}
	return "/etc/cni/net.d"
}

// setRunner creates the runner. podman holds each published port with a socket of its own, so the
// warning about processes that listen on it is left out.
func (d *driver) setRunner() {
	warn := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !strings.Contains(text, hostport.TakenFrom) {
			d.Complain("cnibox netavark", "%s", text)
		}
	}
	// Without root podman has a /run of its own, and /var/lib/cni is that of root.
	if d.stateDir == "" && errors.Is(unix.Access(state.Cache, unix.W_OK), os.ErrPermission) {
		d.stateDir = state.Run
	}
	local := d.Invoker(nil)
	local.BuiltIn, local.StderrInError = true, true
	if d.stateDir != "" { // of two equal variables a program uses the first
		local.Environ = append([]string{spec.StateEnv + "=" + d.stateDir}, local.Environ...)
	}
	dir, _ := state.CacheDir(d.stateDir)
	d.runner = &chain.Runner{Invoker: local, Cache: &chain.Cache{Dir: dir}, Warn: warn, Session: d.Session, KeepGoing: true}
}

// A status is the answer of setup: what podman inspect prints, and the name servers of resolv.conf.
type status struct {
	Search     []string                  `json:"dns_search_domains"`
	Servers    []string                  `json:"dns_server_ips"`
	Interfaces map[string]*interfaceInfo `json:"interfaces"`
}

type interfaceInfo struct {
	MAC     string      `json:"mac_address"`
	Subnets []netSubnet `json:"subnets"`
}

type netSubnet struct {
	Address netip.Prefix `json:"ipnet"`
	Gateway string       `json:"gateway,omitempty"`
}

// setup attaches a container. If the answer cannot be written, undo detaches it.
func (d *driver) setup(ctx context.Context, r *request, netns string) (answer any, undo func(), err error) {
	interrupt.Expect()
	l, t, err := d.attachment(r, netns)
	if err != nil {
		return nil, nil, err
	}
	if err := d.CheckLimits(); err != nil {
		return nil, nil, err
	}
	res, err := d.runner.Add(ctx, l, t)
	if err != nil {
		d.removeUnused(ctx, r, l)
		return nil, nil, err
	}
	undo = func() {
		ctx, cancel := interrupt.UndoContext(ctx, takeBack)
		defer cancel()
		if err := d.teardown(ctx, r, netns); err != nil {
			d.runner.Warn("%v", err)
		}
	}
	return statusOf(r, res.Result), undo, nil
}

// statusOf returns a result in the words of netavark.
func statusOf(r *request, res *spec.Result) *status {
	s := &status{Search: append([]string{}, res.DNS.Search...), Servers: append([]string{}, res.DNS.Nameservers...), Interfaces: map[string]*interfaceInfo{}}
	for _, ip := range r.Network.DNSServers {
		if !slices.Contains(s.Servers, ip) {
			s.Servers = append(s.Servers, ip)
		}
	}
	for i, link := range res.Interfaces {
		if link.Sandbox == "" {
			continue
		}
		info := &interfaceInfo{MAC: link.MAC, Subnets: []netSubnet{}}
		for _, ip := range res.IPs {
			if ip.Interface != nil && *ip.Interface != i {
				continue
			}
			n := netSubnet{Address: ip.Address}
			if ip.Gateway.IsValid() {
				n.Gateway = ip.Gateway.String()
			}
			info.Subnets = append(info.Subnets, n)
		}
		s.Interfaces[link.Name] = info
	}
	return s
}

// teardown detaches a container. What is not attached is not an error. With the last container of a
// network that has no configuration of its own go its bridge and its rules, since nothing is called
// at podman network rm.
func (d *driver) teardown(ctx context.Context, r *request, netns string) error {
	l, t, err := d.attachment(r, netns)
	if err != nil {
		return err
	}
	if e, err := d.runner.Cache.Lookup(t.On(l)); err == nil {
		if made, err := e.List(); err == nil {
			l = made
		}
		t = chain.RuntimeConf{ContainerID: t.ContainerID, IfName: t.IfName}
	}
	if err := d.runner.Del(ctx, l, t); err != nil {
		return err
	}
	d.removeUnused(ctx, r, l)
	return nil
}

// removeUnused deletes the bridge and the rules of a network without attachments.
func (d *driver) removeUnused(ctx context.Context, r *request, l *chain.List) {
	if r.Network.Options["network"] != "" || r.Network.unmanaged() {
		return
	}
	ctx, cancel := interrupt.UndoContext(ctx, takeBack)
	defer cancel()
	err := d.runner.RemoveNetwork(ctx, l)
	if use := new(chain.InUseError); err != nil && !errors.As(err, &use) {
		d.runner.Warn("%v", err)
	}
}
