package twin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

// callTime limits one plugin: the reference may wait ten seconds for duplicate address detection,
// and the machine may be slow.
var callTime = kerneltest.Timeout(3 * time.Minute)

// searchPath has iptables for the reference plugins, and iproute2 for us.
const searchPath = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"

// A world is a host, its containers and a directory, for one run of a case. It is not an
// applettest.Host: a failure is a line of the report, and not a failed test.
type world struct {
	c     *Case
	host  *netns.NS
	conts []*container
	dir   string
	names namer
	plain map[string][]string // see plainLinks
	ruled bool                // record the rule set as well
	lines []string            // recorded so far
	said  []string            // messages of plugins that failed

	daemon *daemon // nil: none
}

// A container is what a runtime knows of one.
type container struct {
	*netns.NS // nil: deleted
	id, path  string
	results   [][]byte // of the plugins so far; the last one is the result
}

// newWorld makes the namespaces and configures them as the case says. The directory must be empty.
func newWorld(c *Case, dir string) (w *world, err error) {
	w = &world{c: c, dir: dir}
	w.names.asked = strings.ToLower(c.text)
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.plain, err = plainLinks(); err != nil {
		return w, err
	}
	if w.host, err = kerneltest.NewNS(); err != nil {
		return w, err
	}
	for i := range c.Containers {
		ns, err := kerneltest.NewNS()
		if err != nil {
			return w, err
		}
		path := filepath.Join(dir, fmt.Sprint("ns", i+1)) // removed before the descriptor's number is reused
		if err := os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.FD()), path); err != nil {
			return w, errors.Join(err, ns.Close())
		}
		w.conts = append(w.conts, &container{NS: ns, id: fmt.Sprint("ctr", i+1), path: path})
		w.names.paths = append(w.names.paths, path, fmt.Sprint("$NETNS", i+1))
	}
	w.names.paths = append(w.names.paths, dir, "$DIR")
	for _, f := range c.Files {
		path := filepath.Join(dir, f[0])
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return w, err
		}
		if err := os.WriteFile(path, []byte(w.fill(f[1])), 0o600); err != nil {
			return w, err
		}
	}
	err = batch(w.host, append([]string{"link set lo up"}, c.Host...))
	for _, cont := range w.conts {
		err = errors.Join(err, batch(cont.NS, c.Cont))
	}
	return w, err
}

// close closes the namespaces.
func (w *world) close() {
	w.stopDaemon()
	for _, c := range w.conts {
		if c.NS != nil {
			c.Close()
		}
	}
	if w.host != nil {
		w.host.Close()
	}
}

// endTime limits how long the kernel may take to delete links of a namespace.
var endTime = kerneltest.Timeout(time.Minute)

// end deletes the containers' namespaces, and waits until the veths with a peer in them are gone
// from the host.
func (w *world) end() error {
	w.stopDaemon() // the reference's daemon has threads in the containers
	host, err := rtnl.Dial(w.host)
	if err != nil {
		return err
	}
	defer host.Close()
	links, err := host.Links()
	if err != nil {
		return err
	}
	for _, c := range w.conts {
		if err := errors.Join(os.Remove(c.path), c.Close()); err != nil {
			return err
		}
		c.NS = nil
	}
	for _, l := range links {
		for end := time.Now().Add(endTime); l.PeerNS && err == nil; _, err = host.LinkAt(l.Index) {
			if time.Now().After(end) {
				return fmt.Errorf("%s outlives the namespace at its other end", l.Name)
			}
			time.Sleep(2 * time.Millisecond)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		err = nil
	}
	return nil
}

// batch runs lines of ip-batch(8) in a namespace.
func batch(ns *netns.NS, lines []string) error {
	if len(lines) == 0 {
		return nil
	}
	_, err := tool(ns, strings.Join(lines, "\n")+"\n", "ip", "-batch", "-")
	return err
}

// tool runs a program of the machine in a namespace.
func tool(ns *netns.NS, stdin string, argv ...string) ([]byte, error) {
	out, diag, err := start(ns, nil, []byte(stdin), argv...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, diag)
	}
	return out, nil
}

// start runs a program in a namespace, and kills it after callTime.
func start(ns *netns.NS, env []string, stdin []byte, argv ...string) (stdout, stderr []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	var out, diag bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = append(env, searchPath), bytes.NewReader(stdin), &out, &diag
	err = ns.Do(cmd.Run)
	return out.Bytes(), diag.Bytes(), err
}

// fill replaces the variables of a configuration.
func (w *world) fill(s string) string {
	return strings.NewReplacer("$DIR", w.dir, "$NETNS", w.conts[0].path).Replace(s)
}

// stdin returns a runtime's stdin for a plugin of the list. Members that the case has itself stay.
func (w *world) stdin(verb string, c *container, plugin map[string]json.RawMessage) ([]byte, error) {
	conf := map[string]json.RawMessage{}
	conf["cniVersion"], _ = json.Marshal(w.c.Version)
	conf["name"], _ = json.Marshal(w.c.Network)
	maps.Copy(conf, plugin)
	if verb == "GC" { // keep no attachment
		conf["cniVersion"], conf["cni.dev/valid-attachments"] = json.RawMessage(`"1.1.0"`), json.RawMessage("[]")
	}
	var asks map[string]bool
	if err := json.Unmarshal(plugin["capabilities"], &asks); err == nil && verb != "GC" {
		given := maps.Clone(w.c.Caps)
		maps.DeleteFunc(given, func(name string, _ json.RawMessage) bool { return !asks[name] })
		conf["runtimeConfig"], _ = json.Marshal(given)
	}
	since := "0.3.0"
	if verb != "ADD" {
		since = "0.4.0"
	}
	if n := len(c.results); n > 0 && w.c.Version >= since {
		conf["prevResult"] = c.results[n-1]
	}
	b, err := json.Marshal(conf)
	return []byte(w.fill(string(b))), err
}

// call runs one plugin of a directory. code is the plugin's error code; err means that it did not
// run. No package has the reference's flannel.
func (w *world) call(path, verb string, c *container, plugin map[string]json.RawMessage) (stdout []byte, code int, err error) {
	var name string
	if err := json.Unmarshal(plugin["type"], &name); err != nil {
		return nil, 0, err
	}
	stdin, err := w.stdin(verb, c, plugin)
	if err != nil {
		return nil, 0, err
	}
	if _, err := os.Lstat(filepath.Join(path, name)); err != nil && name == "flannel" {
		return w.flannel(path, verb, c, stdin)
	}
	return w.start(path, name, verb, c, stdin)
}

// start runs the program of a plugin.
func (w *world) start(path, name, verb string, c *container, stdin []byte) (stdout []byte, code int, err error) {
	env := []string{"CNI_COMMAND=" + verb, "CNI_PATH=" + path}
	if verb != "GC" {
		env = append(env, "CNI_CONTAINERID="+c.id, "CNI_NETNS="+c.path, "CNI_IFNAME=eth0")
	}
	if w.c.Args != "" {
		env = append(env, "CNI_ARGS="+w.c.Args)
	}
	out, diag, err := start(w.host, env, stdin, filepath.Join(path, name))
	if err == nil {
		return out, 0, nil
	}
	var e struct {
		Code int
		Msg  string
	}
	if exit := new(exec.ExitError); errors.As(err, &exit) && json.Unmarshal(out, &e) == nil && e.Msg != "" {
		return []byte(e.Msg), e.Code, nil
	}
	if bytes.Contains(diag, []byte("panic: ")) {
		return nil, -1, nil
	}
	return nil, 0, fmt.Errorf("%s %s of %s: %w: %s%s", verb, name, path, err, out, diag)
}

// add calls ADD of the list's plugins up to the first that fails, as runtimes do.
func (w *world) add(path string, c *container) error {
	for _, p := range w.c.Plugins {
		out, code, err := w.call(path, "ADD", c, p)
		if err != nil {
			return err
		}
		if code != 0 {
			w.recordFailure("ADD", c, p["type"], code, out)
			return nil
		}
		c.results = append(c.results, out)
	}
	return w.result(c)
}

// check calls CHECK of a directory's plugins, if the version has it.
func (w *world) check(path string, c *container) error {
	if w.c.Version < "0.4.0" || len(c.results) < len(w.c.Plugins) {
		return nil
	}
	return w.each("CHECK", "CHECK", path, c, w.c.Plugins)
}

// del calls DEL of all plugins in reverse order, also after a failure.
func (w *world) del(path, point string, c *container) error {
	back := slices.Clone(w.c.Plugins)
	slices.Reverse(back)
	return w.each("DEL", point, path, c, back)
}

// each calls a verb without a result, and records its outcome.
func (w *world) each(verb, point, path string, c *container, plugins []map[string]json.RawMessage) error {
	for _, p := range plugins {
		out, code, err := w.call(path, verb, c, p)
		if err != nil {
			return err
		}
		if code != 0 {
			w.recordFailure(point, c, p["type"], code, out)
		} else {
			w.record("%s %s plugin %s succeeds", point, c.id, p["type"])
		}
	}
	return nil
}

// recordFailure records the failure, and the code in a line of its own, since codes differ more
// often. The message helps to find the reason of a difference.
func (w *world) recordFailure(point string, c *container, plugin []byte, code int, msg []byte) {
	w.record("%s %s plugin %s fails", point, c.id, plugin)
	w.record("%s %s plugin %s code %d", point, c.id, plugin, code)
	w.said = append(w.said, fmt.Sprintf("%s %s: %s", point, plugin, msg))
}

// record records a line.
func (w *world) record(format string, args ...any) {
	w.lines = append(w.lines, w.names.plain(fmt.Sprintf(format, args...)))
}
