package cniexec

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/chain"
	"cnibox/spec"
)

// wrongCall tells what is wrong with the command line.
// The exit code is 2; cnitool prints its whole usage instead.
func (c *call) wrongCall(err error) int {
	fmt.Fprintf(c.Stderr, "cni-exec: %v (`cni-exec help` tells all verbs and flags)\n", err)
	c.object(spec.Errorf(spec.CodeEnv, "%w", err))
	return exitUsage
}

// object gives a script the error on stdout, if it asked for that, in the version of the
// network. Without --json stdout has results alone.
func (c *call) object(e *spec.Error) {
	if c.json {
		c.Stdout.Write(append(e.Encode(c.speaks), '\n'))
	}
}

// fail tells a person on stderr what failed, where, why and what to do.
// The exit code is 1.
func (c *call) fail(err error) int {
	e := spec.AsError(err)
	fmt.Fprintf(c.Stderr, "cni-exec: %s\n", strings.TrimSpace(c.verb+" "+c.network)+": "+e.Msg)
	if e.Details != "" {
		fmt.Fprintf(c.Stderr, "  %s\n", strings.ReplaceAll(e.Details, "\n", "\n  "))
	}
	if hint := c.hint(err, e.Code); hint != "" {
		fmt.Fprintf(c.Stderr, "  %s\n", hint)
	}
	c.object(e)
	return exitError
}

// A hinted error comes with what to do about it, from where that is known best.
type hinted struct {
	err  error
	hint string // empty: the text says enough
}

// Error is the text without the hint, which only a person gets.
func (h *hinted) Error() string { return h.err.Error() }

// Unwrap returns the error that the hint is about.
func (h *hinted) Unwrap() error { return h.err }

// hint is what to do about an error; empty: its text says enough.
// The codes tell what a person can do; texts are not searched.
func (c *call) hint(err error, code int) string {
	var known *hinted
	start := startHint(err)
	switch {
	case errors.As(err, &known):
		return known.hint
	case start != "":
		return start
	case code == spec.CodeNetNS:
		return "NETNS is the path of a network namespace, as /run/netns/NAME or /proc/PID/ns/net; `cni-exec run` makes one itself."
	case code == spec.CodeBusy && c.attached():
		return c.delHint()
	case errors.Is(err, os.ErrPermission) && unix.Geteuid() != 0:
		return "Networks are set up with root's privileges: run it as root."
	case code == spec.CodeIO && errors.Is(err, unix.EROFS):
		return "Make it writable, or name another directory with --state-dir (CNIBOX_STATE); what is stored in this one is not known then."
	case code == spec.CodePlugin && errors.Is(err, os.ErrNotExist):
		return "Name the folder that has the plugin with --path (or CNI_PATH)."
	}
	return ""
}

// attached reports whether the target is in the cache: then it is in its own way. Code
// 100 is that of an address, a port or a master in use as well.
func (c *call) attached() bool {
	_, err := c.runner.Cache.Lookup(spec.Attachment{Network: c.network, ContainerID: c.target.ContainerID, IfName: c.target.IfName})
	return err == nil
}

// delHint is the command that detaches the target, with all that leads to it. The
// namespace of a container ID that was given is that of its ADD, which may not be the one
// given now.
func (c *call) delHint() string {
	hint := "`cni-exec del " + c.network + " "
	if c.containerID == "" {
		hint += c.target.NetNS + " "
	}
	hint += "-i " + c.target.IfName
	unset := new(flags).set(func(string) string { return "" })
	for _, name := range []string{"container-id", "state-dir", "cache-dir", "conf-dir", "path"} {
		if v := c.set.Lookup(name).Value.String(); v != unset.Lookup(name).DefValue {
			hint += " --" + name + " " + v
		}
	}
	return hint + "` detaches it."
}

// startHint is about a plugin or a command that is there and does not start, see
// execve(2); empty: it is not that.
func startHint(err error) string {
	var start *os.PathError
	switch {
	case !errors.As(err, &start) || start.Op != chain.OpStart:
	case errors.Is(start, os.ErrPermission):
		return start.Path + " must be an executable file (chmod +x), on a file system mounted without noexec."
	case errors.Is(start, os.ErrNotExist):
		return start.Path + " is there; the interpreter that it names, behind #! or as an ELF file, is not."
	}
	return ""
}

// networksHint tells which networks there are in a folder.
// What is wrong with broken files is in the error's own text.
func networksHint(dir string, names []string, broken []error) string {
	switch {
	case len(names) > 0:
		return "Networks in " + dir + ": " + strings.Join(names, ", ") + "."
	case len(broken) > 0:
		return "Mend or remove the broken files in " + dir + ", or name another folder with --conf-dir (NETCONFPATH)."
	}
	return fmt.Sprintf("Without any configuration in %s there is the network %q; or name another folder with --conf-dir (NETCONFPATH).", dir, defaultNetwork)
}
