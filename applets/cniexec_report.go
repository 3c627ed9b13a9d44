package applets

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"cnibox/chain"
	"cnibox/spec"
)

// wrongCall tells what is wrong with the command line.
// The exit code is 2; cnitool prints its whole usage instead.
func wrongCall(p Process, err error) int {
	fmt.Fprintf(p.Stderr, "cni-exec: %v (`cni-exec help` tells all verbs and flags)\n", err)
	return exitUsage
}

// fail tells a person on stderr what failed, where, why and what to do; with
// --json a script gets the error object on stdout as well. Without it, stdout
// has results alone.
// The exit code is 1.
func (c *cniExecCall) fail(err error) int {
	e := spec.AsError(err)
	fmt.Fprintf(c.Stderr, "cni-exec: %s\n", strings.TrimSpace(c.verb+" "+c.network)+": "+e.Msg)
	if e.Details != "" {
		fmt.Fprintf(c.Stderr, "  %s\n", strings.ReplaceAll(e.Details, "\n", "\n  "))
	}
	if hint := c.hint(err, e.Code); hint != "" {
		fmt.Fprintf(c.Stderr, "  %s\n", hint)
	}
	if c.json {
		c.Stdout.Write(append(e.Encode(spec.Newest), '\n'))
	}
	return exitError
}

// hint is what to do about an error; empty: its text says enough.
// The codes tell what a person can do; texts are not searched.
func (c *cniExecCall) hint(err error, code int) string {
	switch {
	case code == spec.CodeNetNS:
		return "NETNS is the path of a network namespace, as /run/netns/NAME or /proc/PID/ns/net; `cni-exec run` makes one itself."
	case code == spec.CodeBusy && errors.Is(err, os.ErrExist):
		return fmt.Sprintf("`cni-exec del %s %s -i %s` detaches it.", c.network, c.target.NetNS, c.target.IfName)
	case errors.Is(err, os.ErrPermission):
		return "Networks are set up with root's privileges: run it as root."
	case code == spec.CodePlugin && errors.Is(err, os.ErrNotExist):
		return "Name the folder that has the plugin with --path (or CNI_PATH)."
	case code == spec.CodeInternal && errors.Is(err, os.ErrNotExist):
		return c.networksHint()
	}
	return ""
}

// networksHint tells which networks there are.
// Broken files are in the error's own text.
func (c *cniExecCall) networksHint() string {
	names, _ := chain.Networks(c.confDir)
	if len(names) == 0 {
		return fmt.Sprintf("Without any configuration in %s there is the network %q; or name another folder with --conf-dir (NETCONFPATH).", c.confDir, defaultNetwork)
	}
	return "Networks in " + c.confDir + ": " + strings.Join(names, ", ") + "."
}
