package script

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/nft/foreign"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/test/product"
)

// A mistake is an error in the script itself, so "!" does not accept it.
type mistake string

func (m mistake) Error() string { return string(m) }

// A scriptCommand executes one line. Its error says what differs from the line.
type scriptCommand func(ts *testscript.TestScript, h *hostAndContainer, args []string) error

// commands returns our commands, and one for each applet.
func commands() map[string]func(*testscript.TestScript, bool, []string) {
	list := map[string]scriptCommand{"cni": cni, "status": status, "result": result, "needs": needs, "onekernel": onekernel, "root": root, "netns": deleteNS, "until": until, "page": page,
		"host": func(ts *testscript.TestScript, h *hostAndContainer, args []string) error {
			return h.kernel(ts, h.host, args)
		},
		"container": func(ts *testscript.TestScript, h *hostAndContainer, args []string) error {
			return h.kernel(ts, h.container, args)
		},
	}
	for _, name := range product.Names() {
		list[name] = func(ts *testscript.TestScript, h *hostAndContainer, args []string) error {
			return h.call(ts, ts.MkAbs("bin/"+name), args...)
		}
	}
	cmds := map[string]func(*testscript.TestScript, bool, []string){}
	for name, command := range list {
		cmds[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			err := command(ts, ts.Value(key{}).(*hostAndContainer), args)
			switch {
			case errors.As(err, new(mistake)):
				ts.Fatalf("%v", err)
			case err == nil && neg:
				ts.Fatalf("it did not fail")
			case err != nil && !neg:
				ts.Fatalf("%v", err)
			}
		}
	}
	return cmds
}

// call runs a program. A program that fails is an error, one that cannot be started a mistake.
func (h *hostAndContainer) call(ts *testscript.TestScript, program string, args ...string) error {
	err := ts.Exec(program, args...)
	h.status = 0
	if filepath.Base(program) == "cni-exec" && len(args) > 0 {
		if stdout := ts.ReadFile("stdout"); stdout != "" {
			if err := checkDocuments(args, stdout); err != nil {
				return mistake(err.Error())
			}
		}
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		h.status = exit.ExitCode()
		return err
	}
	if err != nil {
		return mistake(err.Error())
	}
	return nil
}

// cni calls a plugin with the environment of a runtime. K=V pairs override it, since they come
// last.
func cni(ts *testscript.TestScript, h *hostAndContainer, args []string) error {
	if len(args) < 3 {
		return mistake("usage: cni VERB APPLET FILE [K=V…]")
	}
	verb, applet, stdin := args[0], args[1], args[2]
	if stdin == "-" {
		stdin = "/dev/null"
	} else {
		ts.ReadFile(stdin) // fails without the file
	}
	env := append([]string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=ctr1", "CNI_NETNS=" + ts.Getenv("NETNS"), "CNI_IFNAME=eth0"}, args[3:]...)
	const redirect = `program=$1; stdin=$2; shift 2; for pair; do export "$pair"; done; exec "$program" <"$stdin"`
	return h.call(ts, "/bin/sh", slices.Concat([]string{"-c", redirect, "sh", ts.MkAbs("bin/" + applet), ts.MkAbs(stdin)}, env)...)
}

// status compares the exit code of the last call.
func status(_ *testscript.TestScript, h *hostAndContainer, args []string) error {
	if len(args) != 1 {
		return mistake("usage: status N")
	}
	if got := strconv.Itoa(h.status); got != args[0] {
		return fmt.Errorf("exit code %s", got)
	}
	return nil
}

// result compares stdout of the last call with a file.
func result(ts *testscript.TestScript, _ *hostAndContainer, args []string) error {
	if len(args) != 1 {
		return mistake("usage: result FILE")
	}
	got, want := ts.ReadFile("stdout"), strings.TrimRight(ts.ReadFile(args[0]), "\n")
	if got != want {
		return fmt.Errorf("it is not as wanted:\n%s", kerneltest.Diff(want, got))
	}
	return nil
}

// onekernel skips the test in guests but the first.
func onekernel(_ *testscript.TestScript, h *hostAndContainer, _ []string) error {
	kerneltest.OneKernel(h.TB)
	return nil
}

// deleteNS deletes network namespaces of the script.
func deleteNS(ts *testscript.TestScript, h *hostAndContainer, args []string) error {
	if h.host == nil || len(args) < 2 || args[0] != "del" && args[0] != "unmount" {
		return mistake("usage, not in a plain script: netns del|unmount NAME…")
	}
	var all []*netns.NS
	for _, name := range args[1:] {
		ns, err := netns.Open(filepath.Join("/run/netns", name))
		if err != nil {
			return mistake(err.Error())
		}
		all = append(all, ns)
	}
	kerneltest.Delete(h.TB, func() error {
		for _, ns := range all {
			if err := netns.Unbind(ns.Path()); err != nil {
				return err
			}
			if args[0] == "del" {
				if err := os.Remove(ns.Path()); err != nil {
					return err
				}
			}
		}
		return nil
	}, all...)
	return nil
}

// until runs a program until it succeeds.
func until(ts *testscript.TestScript, h *hostAndContainer, args []string) error {
	if len(args) == 0 {
		return mistake("usage: until PROGRAM [ARG…]")
	}
	kerneltest.Eventually(h.TB, strings.Join(args, " "), func() error { return ts.Exec(args[0], args[1:]...) })
	return nil
}

// needs skips the test if the kernel lacks what a plugin needs.
func needs(ts *testscript.TestScript, h *hostAndContainer, args []string) error {
	if len(args) != 1 {
		return mistake("usage: needs PLUGIN|trace")
	}
	if args[0] == "trace" {
		kerneltest.Need(h.TB, "tables with an owner (Linux 5.12)", func() error {
			tracer, err := foreign.Trace(h.container, foreign.Flow{})
			if err == nil {
				tracer.Close()
			} else if spec.AsError(err).Code == spec.CodeHost {
				err = errors.ErrUnsupported
			}
			return err
		})
		return nil
	}
	p, ok := applettest.Plugins[args[0]]
	if !ok {
		return mistake("unknown plugin " + args[0])
	}
	p.Need(h.TB)
	return nil
}

// kernel checks the state of a namespace. It reads it over netlink, without another tool.
func (h *hostAndContainer) kernel(ts *testscript.TestScript, ns *netns.NS, args []string) error {
	switch {
	case ns == nil:
		return mistake("a plain script has no namespaces")
	case len(args) == 1 && args[0] == "save":
		h.saved[ns] = kerneltest.Snapshot(h.TB, ns)
		return nil
	case len(args) == 1 && args[0] == "same":
		if now := kerneltest.Snapshot(h.TB, ns); now != h.saved[ns] {
			return fmt.Errorf("it is not as it was:\n%s", kerneltest.Diff(h.saved[ns], now))
		}
		return nil
	case len(args) == 3 && args[0] == "carrier" && args[2] == "up":
		kerneltest.WaitUp(h.TB, ns, args[1])
		return nil
	case len(args) == 3 && args[0] == "carrier" && args[2] == "down":
		kerneltest.WaitDown(h.TB, ns, args[1])
		return nil
	case len(args) < 2:
		return mistake("host and container need a subject and a name")
	case args[0] == "sysctl":
		got, err := ns.Sysctl(args[1])
		if err == nil && got != strings.Join(args[2:], " ") {
			return fmt.Errorf("it is %q", got)
		}
		return err
	}
	c, err := rtnl.Dial(ns)
	if err != nil {
		return err
	}
	defer c.Close()
	if args[0] == "route" {
		return route(c, args[1:])
	}
	l, err := c.Link(args[1])
	if err != nil {
		return err
	}
	switch {
	case args[0] == "link":
		if len(args) > 2 && l.Up != (args[2] == "up") {
			return fmt.Errorf("up: %t", l.Up)
		}
		return nil
	case args[0] == "addr" && len(args) == 3:
		return addr(c, l, args[2])
	}
	return mistake("unknown question")
}

// addr checks an address of a link, with its prefix length.
func addr(c *rtnl.Conn, l *rtnl.Link, want string) error {
	addrs, err := c.Addrs(l.Index)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if a.Prefix.String() == want {
			return nil
		}
	}
	return fmt.Errorf("it has %v", addrs)
}

// route checks a route to a prefix, by a gateway if one is given.
func route(c *rtnl.Conn, want []string) error {
	dst, err := netip.ParsePrefix(want[0])
	if err != nil {
		return mistake(err.Error())
	}
	routes, err := c.Routes(rtnl.RouteFilter{Dst: dst})
	if err != nil {
		return err
	}
	for _, rt := range routes {
		if rt.Dst == dst && (len(want) == 1 || rt.GW.String() == want[1]) {
			return nil
		}
	}
	return fmt.Errorf("there are %v", routes)
}
