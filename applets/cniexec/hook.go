package cniexec

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/interrupt"
	"github.com/cnibox/cnibox/spec"
)

func hookVerb() *verb {
	return &verb{name: "hook", group: "Run", operands: "[NETWORK]…", summary: "attach or detach, as a hook of an OCI runtime", new: func(c *call) action { return &hookCall{call: c} },
		text: `The state of the container is on stdin: by createRuntime, or prestart, it is
attached, by poststop detached from all networks. Without NETWORK it is that of
run. The annotations cni.cnibox/networks, cni.cnibox/ports, and so on ips, macs
and dns, lists with commas, replace operands and flags. stdout stays empty.
Without CNIBOX_LOG an error is also in cnibox/hook.log of the cache, since some
runtimes drop stderr.`,
		examples: []example{
			{"cni-exec hook -p 8080:80 mynet", "args of both hooks in config.json, below the path of cni-exec"},
			{"cni-exec hook --forbid ports --forbid ips", "the container chooses no ports and addresses"},
		},
	}
}

// annotationPrefix precedes the names of annotations that the hook reads.
const annotationPrefix = "cni.cnibox/"

// annotationNames are the names after the prefix.
var annotationNames = []string{"networks", "ports", "ips", "macs", "dns"}

// A hookCall is one call of hook.
type hookCall struct {
	*call
	asked
	ifName string
	forbid []string
}

func (c *hookCall) flags(f *flagSet) {
	c.ifName = cmp.Or(f.getenv("CNI_IFNAME"), "eth0")
	f.name(&c.ifName, "ifname", "i", "`NAME` first interface; the others count up")
	c.asked.declare(f, "`[NET=]ADDR` ask for this IP address, on the first network or NET", "`[NET=]ADDR` MAC address, on the first network or NET")
	f.list("dns", "", "`ADDR` name server, for plugins that take it", c.addDNS)
	f.list("forbid", "", "`networks|ports|ips|macs|dns|all` refuse this annotation; repeatable", c.addForbidden)
}

func (c *hookCall) addForbidden(s string) error {
	if s != "all" && !slices.Contains(annotationNames, s) {
		return fmt.Errorf("it must be %s or all", strings.Join(annotationNames, ", "))
	}
	c.forbid = append(c.forbid, s)
	return nil
}

func (c *hookCall) do(ctx context.Context, operands []string) (int, error) {
	if slices.Contains(operands, "") {
		return 0, usage("hook: the name of a network is empty")
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	s, err := c.readState(ctx)
	if err != nil {
		return 0, err
	}
	c.about, c.target.ContainerID, c.target.IfName = s.ID, s.ID, c.ifName
	switch s.Status {
	case "creating", "created":
		return exitOK, withHookHint(c.attach(ctx, s, operands))
	case "stopped":
		entries, err := c.entriesOf(s.ID)
		if err == nil {
			c.runner.KeepGoing = true
			err = c.detachEntries(ctx, entries, func(*chain.Entry) {})
		}
		return exitOK, err
	}
	return 0, spec.Errorf(spec.CodeEnv, "status of the container: %q must be creating, created or stopped: cni-exec is for the hooks createRuntime, prestart and poststop", s.Status)
}

// withHookHint adds advice to errors about the namespace of the container, which the caller has not typed.
func withHookHint(err error) error {
	if err == nil || spec.AsError(err).Code != spec.CodeNetNS {
		return err
	}
	advice := ""
	if errors.Is(err, spec.ErrOwnNS) {
		advice = `config.json must have a "network" namespace without a "path", and the hook must be createRuntime, prestart or poststop`
	}
	return &hint.Error{Err: err, Hint: advice}
}

// A containerState is the state of a container in the OCI runtime specification.
type containerState struct {
	ID          string            `json:"id"`
	Status      string            `json:"status"`
	PID         int               `json:"pid"`
	Annotations map[string]string `json:"annotations"`
}

// The limits of a state. A runtime writes it at once.
const (
	maxState     = 512 << 10 // bytes
	stateTimeout = 10 * time.Second
)

// readState reads the state from stdin. Errors have code 4, 5 or 6.
func (c *hookCall) readState(ctx context.Context) (*containerState, error) {
	doc, err := c.Input(ctx, maxState, cmp.Or(c.timeout, stateTimeout))
	if err != nil {
		return nil, spec.Errorf(spec.CodeIO, "state on stdin: %w", err)
	}
	if len(bytes.TrimSpace(doc)) == 0 {
		return nil, spec.Errorf(spec.CodeDecode, "state on stdin: it is empty: an OCI runtime calls this verb as a hook")
	}
	s := new(containerState)
	if err := spec.Unmarshal("state on stdin", doc, s); err != nil {
		return nil, spec.Errorf(spec.CodeDecode, "%w", err)
	}
	if s.ID == "" {
		return nil, spec.Errorf(spec.CodeEnv, `state on stdin: "id" is missing`)
	}
	if err := spec.CheckContainerID(s.ID); err != nil {
		return nil, err
	}
	return s, nil
}

// annotated reads the annotations into flags, and returns the networks.
func (c *hookCall) annotated(s *containerState, networks []string) ([]string, error) {
	for _, name := range annotationNames {
		key := annotationPrefix + name
		text, ok := s.Annotations[key]
		if !ok {
			continue
		}
		if slices.Contains(c.forbid, name) || slices.Contains(c.forbid, "all") {
			return nil, spec.Errorf(spec.CodeEnv, "annotation %s is not allowed by --forbid", key)
		}
		var set func(string) error
		switch name {
		case "networks":
			networks = nil
			set = func(v string) error { networks = append(networks, v); return spec.CheckNetworkName(v) }
		case "ports":
			c.publish, set = nil, c.addPorts
		case "ips":
			c.ips, set = nil, c.addIP
		case "macs":
			c.macs, set = nil, c.addMAC
		case "dns":
			c.dns, set = nil, c.addDNS
		}
		for value := range strings.SplitSeq(text, ",") {
			if err := set(strings.TrimSpace(value)); err != nil {
				return nil, spec.Errorf(spec.CodeEnv, "annotation %s: %q: %w", key, value, err)
			}
		}
	}
	return networks, nil
}

// attach adds the container to its networks, in order. What was added is deleted again if one fails.
func (c *hookCall) attach(ctx context.Context, s *containerState, networks []string) (err error) {
	if networks, err = c.annotated(s, networks); err != nil {
		return err
	}
	began, err := startOf(s.PID)
	if err != nil {
		return err
	}
	c.target.NetNS = fmt.Sprintf("/proc/%d/ns/net", s.PID)
	lists, err := c.lists(networks)
	if err == nil {
		err = cmp.Or(c.canHonour(c.call, lists...), c.canSetDNS(lists))
	}
	if err == nil {
		c.target.Capabilities, err = c.capabilities(c.target.Capabilities)
	}
	if err = cmp.Or(err, c.CheckLimits()); err != nil {
		return err
	}
	c.runner.Retries = c.retries
	defer interrupt.Begin()()
	var attached []sandbox.Network
	for i, l := range lists {
		t := c.target.RuntimeConf
		t.IfName = nthName(c.ifName, i)
		t.Args, t.Capabilities = c.arguments(&c.target.RuntimeConf, lists, i)
		c.target.network = l.Name
		if _, err = c.runner.Add(ctx, l, t); err != nil {
			break
		}
		attached = append(attached, sandbox.Network{List: l, RuntimeConf: t})
	}
	if now, gone := startOf(s.PID); err == nil && (gone != nil || now != began) {
		err = spec.Errorf(spec.CodeNetNS, "process %d has ended", s.PID)
	}
	if err == nil {
		return nil
	}
	if left := sandbox.Detach(ctx, c.runner, attached); left != nil {
		err = spec.AsError(err).WithDetails("cleanup is not complete, the hook poststop or `cni-exec del --container-id %s` completes it: %v", s.ID, left)
	}
	return err
}

// canSetDNS refuses --dns if no plugin would get it. The error has code 7.
func (a *asked) canSetDNS(networks []*chain.List) error {
	if len(a.dns) == 0 || slices.ContainsFunc(networks, func(l *chain.List) bool { return declares(l, capDNS) }) {
		return nil
	}
	return spec.Errorf(spec.CodeConfig, `--dns: no plugin in %s takes name servers: add "capabilities": {"dns": true} to the one that makes the interface`, networks[0].File)
}

// startOf returns when a process was started, in clock ticks after the boot. The runtime has started
// the process of the container before its hook, so one that is younger than this process has only
// the number of the container's. The error has code 4 or 8.
func startOf(pid int) (ticks uint64, err error) {
	if pid <= 0 {
		return 0, spec.Errorf(spec.CodeEnv, `state on stdin: "pid" is missing, or %d: a container that is creating or created has a process`, pid)
	}
	ticks, err = startTime(strconv.Itoa(pid))
	if err != nil {
		return 0, spec.Errorf(spec.CodeNetNS, "process %d of the container: %w", pid, err)
	}
	own, err := startTime("self")
	if err == nil && ticks > own {
		err = fmt.Errorf("process %d was started after this hook: that of the container has ended, and another one has its number", pid)
	}
	if err != nil {
		return 0, spec.Errorf(spec.CodeNetNS, "%w", err)
	}
	return ticks, nil
}

// startTime returns when a process was started, in clock ticks after the boot. A zombie is an error,
// as if there were no such process.
func startTime(pid string) (uint64, error) {
	const state, start = 3, 22
	stat, err := disk.ProcessStat("/proc/" + pid)
	if err != nil || stat[state] == "Z" || stat[state] == "X" {
		return 0, errors.New("it has ended")
	}
	return strconv.ParseUint(stat[start], 10, 64)
}

// logHook writes the error of a hook to a file of the state, unless CNIBOX_LOG says where calls are
// logged: a runtime may drop stderr.
func (c *call) logHook(err error) {
	if c.Log != nil || c.dirsErr != nil {
		return
	}
	dir := filepath.Join(c.cache().Dir, "cnibox")
	about := applet.Subject{Verb: "hook", Network: c.target.network, ContainerID: c.target.ContainerID, NetNS: c.target.NetNS}
	if err := cmp.Or(os.MkdirAll(dir, 0o700), applet.KeepError(filepath.Join(dir, "hook.log"), "cni-exec", about, err)); err != nil {
		c.warn("the error could not be logged: %v", err)
	}
}
