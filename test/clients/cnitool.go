package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"

	"github.com/cnibox/cnibox/test/sandbox"
)

// cnitool drives a list as its documentation has it: the environment names the directories, and CAP_ARGS has the
// published port.
func (h *host) cnitool() error {
	var ns *sandbox.NetNS
	tool := func(verb string) (out []byte, err error) {
		env := append(os.Environ(), "NETCONFPATH="+confDir, "CNI_PATH="+pluginDir,
			fmt.Sprintf(`CAP_ARGS={"portMappings":[{"hostPort":%d,"containerPort":80,"protocol":"tcp"}]}`, published))
		out, _, err = sandbox.Call{Argv: []string{"cnitool", verb, network, ns.Path}, Env: env}.Run()
		return out, err
	}
	said := func(verb string) func() error {
		return func() error { _, err := tool(verb); return err }
	}
	return walk(
		stage{"cnitool add: an address of the network", func() (err error) {
			if ns, err = sandbox.NewNetNS("tool"); err != nil {
				return err
			}
			if err := h.configure(""); err != nil {
				return err
			}
			out, err := tool("add")
			if err != nil {
				return err
			}
			var result struct {
				CNIVersion string
				IPs        []struct{ Address netip.Prefix }
			}
			if err := json.Unmarshal(out, &result); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			if result.CNIVersion != h.release.cniVersion || len(result.IPs) != 1 {
				return fmt.Errorf("the result is %s", out)
			}
			return nil
		}},
		stage{"its port from this host and from outside", func() error { return serveAround(ns, h.published) }},
		stage{"cnitool check and status", func() error { return errors.Join(said("check")(), said("status")()) }},
		stage{"cnitool del, twice; nothing is left behind", func() error {
			return errors.Join(said("del")(), eventually(h.empty), said("del")())
		}},
		stage{"cnitool gc deletes all of its cache, and passes no list to GC, which is refused", func() error {
			if err := said("add")(); err != nil {
				return err
			}
			if _, err := tool("gc"); err == nil || !strings.Contains(err.Error(), "GC needs the list") {
				return fmt.Errorf("gc without a list: %w", err)
			}
			return errors.Join(eventually(h.empty), ns.Remove())
		}},
	)
}

// published fetches the page behind the published port.
func (h *host) published() error {
	return errors.Join(fetch(h.outside.NS, netip.AddrPortFrom(hostAddr, published)), fetch(nil, netip.AddrPortFrom(hostAddr, published)))
}

// serveAround serves the page at port 80 of a namespace while fn runs.
func serveAround(ns *sandbox.NetNS, fn func() error) error {
	var l net.Listener
	if err := ns.Do(func() (err error) { l, err = net.Listen("tcp4", ":80"); return err }); err != nil {
		return err
	}
	defer l.Close()
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, page) }))
	return fn()
}
