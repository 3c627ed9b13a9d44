package cniexec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/cniexec/defaultnet"
	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/state"
	"github.com/cnibox/cnibox/spec"
)

// wrongCall reports what is wrong with the command line, and which help describes it. The exit code
// is 2; cnitool prints its whole usage instead.
func (c *call) wrongCall(err error) int {
	help := "`cni-exec help` lists the verbs"
	if v := findVerb(c.verb); v != nil && v.name != "help" {
		help = "see `cni-exec help " + v.name + "`"
	}
	c.warn("%v (%s)", err, help)
	e := spec.Errorf(spec.CodeEnv, "%w", err)
	c.Log.Failed(e)
	c.object(e)
	return exitUsage
}

// object writes the error to stdout with -o json, in the version of the network. Without -o json,
// stdout has only results.
func (c *call) object(e *spec.Error) {
	if c.output == outputJSON && !c.documented {
		c.Stdout.Write(append(e.Encode(c.speaks), '\n'))
	}
}

// fail prints on stderr what failed, where and why, and on a second line what to do. Only the text
// of an external plugin may have more lines. The exit code is 1.
func (c *call) fail(err error) int {
	e := spec.AsError(err)
	c.Log.Failed(e)
	c.warn("%s: %s", strings.TrimSpace(c.verb+" "+cmp.Or(c.about, c.target.network)), strings.ReplaceAll(e.Msg, "\n", "; "))
	second := []string{e.Details, c.hint(err, e.Code)}
	second = slices.DeleteFunc(second, func(s string) bool { return s == "" })
	if len(second) > 0 {
		fmt.Fprintf(c.Stderr, "  %s\n", strings.ReplaceAll(spec.PrintableLines(strings.Join(second, "; ")), "\n", "\n  "))
	}
	c.object(e)
	return exitError
}

// hint says what to do about an error; empty: none. It depends on the code and the type of the
// error, not on its text.
func (c *call) hint(err error, code int) string {
	var known *hint.Error
	start := hint.Start(err)
	switch {
	case errors.As(err, &known):
		return known.Hint
	case start != "":
		return start
	case code == spec.CodeNetNS:
		return "NETNS must be the path of a network namespace, as /run/netns/NAME or /proc/PID/ns/net; `cni-exec run` creates one"
	case code == spec.CodeBusy && c.attached():
		return "`" + c.targetEntry().DelCommand() + c.stateFlags(true) + "` detaches it"
	case code == spec.CodeCheck && c.target.network != "" && c.runner != nil:
		return c.remedies(nil).For(&chain.Judgement{Entry: c.targetEntry(), State: chain.StateFault, Err: err}, false).Advice()
	case errors.Is(err, os.ErrPermission) && unix.Geteuid() != 0:
		return "run it as root"
	case c.verb == "del" && errors.Is(err, unix.EROFS):
		return "what could not be deleted stays, and so does the entry in the cache: run it again when that directory can be written"
	case (code == spec.CodeIO || errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS)) && c.inState(err):
		return "name a directory that can be written with --state-dir (CNIBOX_STATE) or --cache-dir"
	case code == spec.CodeTryAgain && errors.Is(err, context.DeadlineExceeded):
		return "--timeout sets how long a plugin may take"
	case code == spec.CodePlugin && errors.Is(err, os.ErrNotExist):
		return "correct the name, or name the directory of the plugin with --path (or CNI_PATH)"
	}
	return ""
}

// inState reports whether an error concerns a file in the cache, or in the default directories of state.
func (c *call) inState(err error) bool {
	var path *os.PathError
	if !errors.As(err, &path) || c.runner == nil {
		return false
	}
	return strings.HasPrefix(path.Path, c.runner.Cache.Dir) || strings.HasPrefix(path.Path, state.Cache) || strings.HasPrefix(path.Path, state.Run)
}

// attached reports whether the target is in the cache, and so is the cause of code 100. Addresses,
// ports and masters in use have the same code.
func (c *call) attached() bool {
	_, err := c.runner.Cache.Lookup(c.target.attachment())
	return err == nil
}

// networksHint lists the networks of a directory. The error's own text has what is wrong with
// broken files.
func networksHint(dir string, names []string, broken []error) string {
	switch {
	case len(names) > 0:
		return "networks in " + dir + ": " + strings.Join(names, ", ")
	case len(broken) > 0:
		return "correct the file, or name another directory with --conf-dir (NETCONFPATH)"
	}
	return fmt.Sprintf("use the embedded network %q, or name another directory with --conf-dir (NETCONFPATH)", defaultnet.Name)
}
