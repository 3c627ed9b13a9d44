package main

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cnibox/cnibox/test/sandbox"
)

// byExec is a runtime that starts a process for each plugin and passes results on, as containerd,
// CRI-O and Podman do.
type byExec struct {
	*network
	wrap func(plugin string) []string // prefix of the command line; may be nil

	mu      sync.Mutex
	results map[string]json.RawMessage // of the whole chain, by container
}

func (n *network) byExec() *byExec {
	return &byExec{network: n, results: map[string]json.RawMessage{}}
}

// call calls the plugins in order, on DEL in reverse. CHECK and DEL get the result of the whole
// chain.
func (r *byExec) call(verb string, a attachment) error {
	plugins := r.chain()
	prev := r.result(a)
	switch verb {
	case "ADD":
		prev = nil
	case "DEL":
		slices.Reverse(plugins)
	}
	for _, p := range plugins {
		out, err := r.plugin(verb, a, p, prev)
		if err != nil {
			return err
		}
		if verb == "ADD" {
			prev = out
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results[a.id] = prev
	return nil
}

// result is that of the chain's ADD; nil before it.
func (r *byExec) result(a attachment) json.RawMessage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.results[a.id]
}

// iptablesOnly is a directory with iptables and without ip6tables. If the packaged portmap (1.1.1)
// finds ip6tables, its CHECK looks for IPv6 rules, and fails since an IPv4 network has none.
// Without it CHECK does the same as later releases do.
const iptablesOnly = "/run/bench/iptables"

// plugin calls one member of the chain.
func (r *byExec) plugin(verb string, a attachment, conf map[string]any, prev json.RawMessage) ([]byte, error) {
	conf = maps.Clone(conf)
	conf["cniVersion"], conf["name"] = version, r.name
	if enabled, ok := conf["capabilities"].(map[string]bool); ok {
		delete(conf, "capabilities")
		given := a.capabilities()
		maps.DeleteFunc(given, func(name string, _ any) bool { return !enabled[name] })
		conf["runtimeConfig"] = given
	}
	if prev != nil {
		conf["prevResult"] = prev
	}
	stdin, err := json.Marshal(conf)
	if err != nil {
		return nil, err
	}
	name := conf["type"].(string)
	argv := []string{filepath.Join(r.plugins, name)}
	if r.wrap != nil {
		argv = append(r.wrap(name), argv...)
	}
	env := sandbox.Plugin(verb, a.id, a.netns.Path, "eth0", r.plugins)
	if verb == "CHECK" && name == "portmap" {
		env = append(env, "PATH="+iptablesOnly)
	}
	out, _, err := sandbox.Call{Argv: argv, Stdin: stdin, Env: env}.Run()
	return out, err
}

// byCniExec is cni-exec: one process does the whole chain.
type byCniExec struct {
	*network
	wrap func(program string) []string // as in byExec
}

// call passes what cnitool passes: CNI_ variables and CAP_ARGS.
func (r *byCniExec) call(verb string, a attachment) error {
	caps, err := json.Marshal(a.capabilities())
	if err != nil {
		return err
	}
	argv := []string{filepath.Join(r.plugins, "cni-exec"), strings.ToLower(verb), r.name, a.netns.Path}
	if r.wrap != nil {
		argv = append(r.wrap("cni-exec"), argv...)
	}
	_, _, err = sandbox.Call{Argv: argv, Env: []string{
		"NETCONFPATH=" + r.confDir, "CNI_PATH=" + r.plugins, "CNI_CONTAINERID=" + a.id, "CAP_ARGS=" + string(caps),
	}}.Run()
	return err
}
