package cniexec

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/lint"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

func lintVerb() *verb {
	return &verb{name: "lint", group: "Repair", operands: "[FILE|DIR]…", summary: "find mistakes in configurations", new: func(c *call) action { return &lintCall{call: c} },
		text: `What add would refuse, and what it would not notice: unknown keys, capabilities
that nothing reads, plugins in the wrong order, networks of one name or with the
same addresses, what does not fit the networks and links of this host and what
is attached. Without an operand it is about --conf-dir. Each line is
FILE:LINE:COLUMN: MESSAGE; the exit code is 1 if there is one.`,
		examples: []example{
			{"cni-exec lint", "the networks of this host"},
			{"cni-exec lint -o json mynet.conflist", "a file, for an editor"},
		},
	}
}

// A lintDoc is the document of lint.
type lintDoc struct {
	Findings []*lint.Finding `json:"findings"`
}

// A lintCall is one call of lint.
type lintCall struct {
	*call
}

func (c *lintCall) flags(f *flagSet) {
	f.outputs("`json` print JSON")
}

// do prints what is wrong in configurations: those of the operands, or else of --conf-dir. The exit
// code is 1 if there are findings.
func (c *lintCall) do(_ context.Context, operands []string) (int, error) {
	if len(operands) == 0 {
		operands = []string{c.confDir}
	}
	found, err := c.lintFiles(operands...)
	if err != nil {
		return 0, spec.Errorf(spec.CodeIO, "%w", err)
	}
	if c.output == outputJSON {
		_, err = c.writeJSON(lintDoc{notNull(found)})
	} else {
		var out strings.Builder
		for _, f := range found {
			out.WriteString(spec.Printable(f.String()) + "\n")
		}
		_, err = c.write(out.String())
		if len(found) == 0 {
			c.nothing("nothing is wrong in " + strings.Join(operands, ", "))
		}
	}
	if len(found) > 0 {
		return exitError, err
	}
	return exitOK, err
}

// lintFiles lints files and directories, and compares them with the links and routes of this host,
// and with its attachments.
func (c *call) lintFiles(paths ...string) ([]*lint.Finding, error) {
	l := c.linter()
	l.Routes = routesOfHost()
	if conn, err := rtnl.Dial(netns.Host()); err == nil {
		defer conn.Close()
		l.HasLink = func(name string) bool {
			_, err := conn.Link(name)
			return !errors.Is(err, os.ErrNotExist)
		}
	}
	l.Attached = c.attachedAddresses()
	return l.Files(paths...)
}

// attachedAddresses returns the live attachments of the cache; none if it cannot be read.
func (c *call) attachedAddresses() (all []lint.Attached) {
	if c.dirsErr != nil {
		return nil
	}
	entries, _, err := c.cache().List()
	if err != nil {
		return nil
	}
	v := inventory.Empty(c.cache(), c.describer())
	for _, e := range entries {
		if e.Live() {
			all = append(all, lint.Attached{Attachment: e.Attachment(), Addresses: v.Read(e).Addresses()})
		}
	}
	return all
}

// linter returns a linter that compares configurations with the built-in plugins.
func (c *call) linter() *lint.Linter {
	return &lint.Linter{Applets: c.Applets, Path: filepath.SplitList(c.path)}
}

// routesOfHost returns the routes of the main table; none if they cannot be read.
func routesOfHost() (routes []lint.HostRoute) {
	conn, err := rtnl.Dial(netns.Host())
	if err != nil {
		return nil
	}
	defer conn.Close()
	links, err := conn.Links()
	if err != nil {
		return nil
	}
	byIndex := inventory.IndexLinks(links).ByIndex
	all, err := conn.Routes(rtnl.RouteFilter{})
	if err != nil {
		return nil
	}
	for _, r := range all {
		if l := byIndex[r.Link]; l != nil && r.Type == unix.RTN_UNICAST {
			routes = append(routes, lint.HostRoute{Dst: r.Dst, Link: l.Name, Alias: l.Alias,
				Connected: r.Protocol == unix.RTPROT_KERNEL && !r.GW.IsValid() && r.Dst.Bits() > 0})
		}
	}
	return routes
}

// warnOf prints mistakes in a network that is about to be used: keys and capabilities that no
// plugin reads, an order of plugins that cannot work, and addresses that another network or a route
// of the host has. For the last, with compare, it reads all configurations and routes.
func (c *call) warnOf(l *chain.List, compare bool) {
	if l.File == "" {
		return // the default network
	}
	if c.warner == nil {
		c.warner = c.linter()
		if compare {
			c.warner.Routes = routesOfHost()
			c.warner.Others, _ = chain.Lists(c.confDir) // nothing is known of unreadable ones
		}
	}
	for _, f := range c.warner.List(l) {
		c.runner.Warn("%s", f)
	}
}
