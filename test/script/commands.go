package script

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
)

// callTime is how long one call may take.
var callTime = kerneltest.Patience(time.Minute)

// A badLine is a mistake in the script itself; "!" does not excuse it.
type badLine string

// Error is the text itself.
func (b badLine) Error() string { return string(b) }

// command does one line. An error says what was not as the line wants it.
func (r *runner) command(name string, args []string) error {
	least := map[string]int{"cni": 3, "exec": 1, "needs": 1, "stdin": 1, "stdout": 1, "stderr": 1, "status": 1,
		"host": 1, "container": 1, "exists": 1, "cmp": 2, "cp": 2, "mkdir": 1, "rm": 1, "symlink": 2}
	if len(args) < least[name] {
		return badLine(fmt.Sprintf("%s needs %d arguments", name, least[name]))
	}
	switch name {
	case "cni":
		return r.cni(args[0], args[1], args[2], args[3:])
	case "exec":
		return r.call(args[0], args[1:], nil)
	case "needs":
		return needs(r, args[0])
	case "env":
		r.env = append(r.env, args...)
		return nil
	case "stdout":
		return match(args[0], r.out.String())
	case "stderr":
		return match(args[0], r.err.String())
	case "status":
		if got := strconv.Itoa(r.code); got != args[0] {
			return fmt.Errorf("exit code %s", got)
		}
		return nil
	case "host":
		return r.kernel(r.host, args)
	case "container":
		return r.kernel(r.cont, args)
	}
	return r.files(name, args)
}

// cni calls a plugin with the environment of a runtime.
// K=V pairs go behind the usual ones, and so before them in force.
func (r *runner) cni(verb, applet, file string, env []string) error {
	if file != "-" {
		b, err := os.ReadFile(r.path(file))
		if err != nil {
			return badLine(err.Error())
		}
		r.stdin = b
	}
	return r.call(applet, nil, append([]string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=ctr1",
		"CNI_NETNS=" + r.netns, "CNI_IFNAME=eth0"}, env...))
}

// call runs an applet through its link inside the host namespace.
// A failed call is an error, which a "!" may want; one that did not start is a bad line.
func (r *runner) call(applet string, args, env []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	r.out.Reset()
	r.err.Reset()
	cmd := exec.CommandContext(ctx, filepath.Join(r.work, "bin", applet), args...)
	cmd.Dir, cmd.Env = r.work, append(append([]string(nil), r.env...), env...)
	stdin, err := filled(r.stdin)
	if err != nil {
		return badLine(err.Error())
	}
	defer stdin.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &r.out, &r.err
	r.stdin = nil
	err = r.inHost(cmd.Run)
	var exit *exec.ExitError
	r.code = 0
	if errors.As(err, &exit) {
		r.code = exit.ExitCode()
	} else if err != nil {
		return badLine(err.Error())
	}
	return err
}

// pipeSize is what a pipe holds, pipe(7).
const pipeSize = 64 << 10

// filled returns a pipe with all of a text in it and no writer: VERSION does not wait long
// for one who comes late.
func filled(text []byte) (*os.File, error) {
	if len(text) > pipeSize {
		return nil, fmt.Errorf("a stdin of %d bytes, over %d", len(text), pipeSize)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	if _, err = w.Write(text); err == nil {
		err = w.Close()
	}
	return r, err
}

// inHost calls fn on a thread in the host's namespace; a plain script has none.
func (r *runner) inHost(fn func() error) error {
	if r.host == nil {
		return fn()
	}
	return r.host.Do(fn)
}

// needs skips the test where the kernel cannot make links of a kind.
func needs(r *runner, kind string) error {
	switch kind {
	case "macvlan":
		kerneltest.NeedKind(r.t, "CONFIG_MACVLAN", rtnl.Macvlan{})
	case "ipvlan":
		kerneltest.NeedKind(r.t, "CONFIG_IPVLAN", rtnl.Ipvlan{})
	case "vlan":
		kerneltest.NeedKind(r.t, "CONFIG_VLAN_8021Q", rtnl.Vlan{ID: 7})
	case "dummy":
		kerneltest.NeedKind(r.t, "CONFIG_DUMMY", rtnl.Dummy{})
	case "tap":
		kerneltest.Need(r.t, "CONFIG_TUN", rtnl.ProbeTap)
	default:
		return badLine("unknown kind " + kind)
	}
	return nil
}

// match looks for a regular expression, whose ^ and $ are those of lines.
func match(pattern, text string) error {
	re, err := regexp.Compile("(?m)" + pattern)
	if err != nil {
		return badLine(err.Error())
	}
	if !re.MatchString(text) {
		return errors.New("no match")
	}
	return nil
}

// kernel asks for what is in a namespace.
// It asks the kernel itself, over netlink, and no tool.
func (r *runner) kernel(ns *rtnl.NS, args []string) error {
	switch {
	case ns == nil:
		return badLine("a plain script has no namespaces")
	case args[0] == "save":
		r.saved[ns] = kerneltest.Snapshot(r.t, ns)
		return nil
	case args[0] == "same":
		if now := kerneltest.Snapshot(r.t, ns); now != r.saved[ns] {
			return fmt.Errorf("new:\n%sgone:\n%s", only(now, r.saved[ns]), only(r.saved[ns], now))
		}
		return nil
	case len(args) < 2:
		return badLine("host and container need a subject and a name")
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
	return badLine("unknown question")
}

// only returns the lines that stand in a and not in b.
func only(a, b string) (lines string) {
	there := strings.Split(b, "\n")
	for line := range strings.Lines(a) {
		if !slices.Contains(there, strings.TrimSuffix(line, "\n")) {
			lines += line
		}
	}
	return lines
}

// addr wants an address on a link, with its prefix length.
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

// route wants a route to a prefix, through a gateway if one is given.
func route(c *rtnl.Conn, want []string) error {
	dst, err := netip.ParsePrefix(want[0])
	if err != nil {
		return badLine(err.Error())
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

// files does the commands about files. They may leave $WORK, as scripts are our own.
func (r *runner) files(name string, args []string) error {
	switch name {
	case "stdin":
		b, err := os.ReadFile(r.path(args[0]))
		r.stdin = b
		return err
	case "exists":
		for _, file := range args {
			if _, err := os.Lstat(r.path(file)); err != nil {
				return err
			}
		}
		return nil
	case "cmp":
		a, errA := r.content(args[0])
		b, errB := r.content(args[1])
		if !bytes.Equal(bytes.TrimRight(a, "\n"), bytes.TrimRight(b, "\n")) {
			return fmt.Errorf("they differ:\n%s\n---\n%s", a, b)
		}
		return errors.Join(errA, errB)
	case "cp":
		b, err := r.content(args[0])
		return errors.Join(err, os.WriteFile(r.path(args[1]), b, 0o755))
	case "mkdir":
		return os.MkdirAll(r.path(args[0]), 0o755)
	case "symlink":
		return os.Symlink(args[0], r.path(args[1]))
	case "rm":
		if err := os.RemoveAll(r.path(args[0])); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return badLine("unknown command " + name)
}

// content is what a file holds; "stdout" is the last call's.
func (r *runner) content(name string) ([]byte, error) {
	if name == "stdout" {
		return r.out.Bytes(), nil
	}
	return os.ReadFile(r.path(name))
}
