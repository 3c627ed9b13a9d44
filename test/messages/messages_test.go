// Package messages causes the errors that users of cnibox are most likely to meet and compares the
// messages with testdata/messages.golden; -update rewrites that file.
package messages

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/test/product"
)

func TestMain(m *testing.M) { product.Main(m, nil) }

var update = flag.Bool("update", false, "rewrite testdata/messages.golden")

const golden = "testdata/messages.golden"

// A message is the error of one command.
type message struct {
	name string

	// argv is "cni-exec VERB …", or "PLUGIN VERB" for a plugin called as by a runtime.
	// VARIABLE=VALUE words may precede it.
	argv string

	// conf is the file net.d/demo.conflist of cni-exec, or the stdin of a plugin.
	conf string

	before []string          // commands that must succeed
	files  map[string]string // other files, by their path below $DIR
	setup  func(*host)       // before them
	spoil  func(*host)       // after them

	unprivileged bool // run by a user without privilege

	// Texts that the message must contain: the place in a file, the key as it is written in the
	// configuration, and the advice. Empty: none.
	where, key, advice string
}

// A host has a link up0, two containers, and a directory that every user can search.
type host struct {
	*applettest.Host
	bin      string
	first    applettest.Container
	replacer *strings.Replacer // replaces variables in configurations and commands
	restorer *strings.Replacer // replaces paths in messages by their variables
}

// newHost makes a host and moves this thread into it.
func newHost(t *testing.T, bin string) *host {
	t.Helper()
	h := &host{Host: applettest.NewHost(t), bin: bin}
	h.Dir, h.Here, h.first = shared(t), true, h.Container("c1")
	kerneltest.AddLink(t, h.NS, rtnl.LinkSpec{Name: "up0", Up: true, Peer: &rtnl.LinkSpec{Name: "up1"}})
	variables := []string{"$DIR", h.Dir, "$BIN", bin, "$NETNS", h.first.Path, "$SECOND", h.Container("c2").Path}
	h.replacer = strings.NewReplacer(variables...)
	back := slices.Clone(variables)
	slices.Reverse(back)
	h.restorer = strings.NewReplacer(back...)
	h.NoError(h.NS.Enter())
	return h
}

// shared makes a directory that every user can search.
func shared(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// write creates a file and its directory.
func (h *host) write(name, text string, mode os.FileMode) {
	h.Helper()
	path := h.Path(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(h.replacer.Replace(text)), mode)); err != nil {
		h.Fatal(err)
	}
}

// An answer is the output of a command.
type answer struct {
	exit, code int
	text       string
	lint       []string // what lint says else
}

func (h *host) run(argv, conf string, unprivileged bool) answer {
	h.Helper()
	words := strings.Fields(h.replacer.Replace(argv))
	env := []string{"CNI_PATH=" + h.Path("plugins") + ":" + h.bin, "NETCONFPATH=" + h.Path("net.d")}
	var set []string
	for strings.Contains(words[0], "=") {
		set, words = append(set, words[0]), words[1:]
	}
	name, args, stdin := words[0], words[1:], ""
	switch name {
	case "cni-exec":
		args = append([]string{"-o", "json", "--cache-dir", h.Path("cache")}, args...)
	case "cnibox":
	default:
		stdin = h.replacer.Replace(conf)
		env = append(env, h.first.Env(spec.Verb(args[0]))...)
		args = args[1:]
	}
	cmd := exec.Command(filepath.Join(h.bin, name), args...)
	if unprivileged {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	exit, stdout, stderr, err := h.Process(cmd, stdin, append(env, set...)...)
	h.NoError(err)
	var object struct {
		Code         int
		Msg, Details string
		Findings     []struct{ Code int }
	}
	json.Unmarshal([]byte(stdout), &object) // stdout of a success is not an error object
	if len(object.Findings) > 0 {
		object.Code = object.Findings[0].Code
	}
	a := answer{exit: exit, code: object.Code, text: stderr}
	if stdin != "" || name != "cni-exec" && name != "cnibox" {
		a.text += object.Msg + "\n"
		if object.Details != "" {
			a.text += "  " + object.Details + "\n"
		}
	}
	a.text = h.normalize(a.text)
	return a
}

// These differ from run to run: the container ID that cni-exec derives from a path, and the process
// ID of a test.
var (
	derivedID = regexp.MustCompile(`cnitool-[0-9a-f]{20}`)
	process   = regexp.MustCompile(`[^ ]+ \(pid [0-9]+\)`)
)

// normalize replaces what differs from run to run.
func (h *host) normalize(text string) string {
	text = derivedID.ReplaceAllString(h.restorer.Replace(text), "$$ID")
	return process.ReplaceAllString(text, "PROCESS (pid PID)")
}

// provoke runs one message's command.
func (m message) provoke(t *testing.T, bin string) answer {
	t.Helper()
	h := newHost(t, bin)
	h.write("net.d/demo.conflist", m.conf, 0o644)
	for name, text := range m.files {
		h.write(name, text, 0o755)
	}
	if m.setup != nil {
		m.setup(h)
	}
	for _, argv := range m.before {
		if a := h.run(argv, m.conf, false); a.exit != 0 {
			t.Errorf("%s: %s: exit code %d: %s", m.name, argv, a.exit, a.text)
		}
	}
	if m.spoil != nil {
		m.spoil(h)
	}
	a := h.run(m.argv, m.conf, m.unprivileged)
	a.lint = h.lintFaults(m, a)
	return a
}

// TestKernelMessages compares the messages with the golden file and checks the rules for all of
// them.
func TestKernelMessages(t *testing.T) {
	kerneltest.OneKernel(t)
	runtime.LockOSThread() // the thread and its mounts end with the test
	kerneltest.NS(t)       // or skips the test
	err := unix.Unshare(unix.CLONE_NEWNS)
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err == nil {
		err = unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755")
	}
	if err != nil {
		t.Fatal(err)
	}
	bin := install(t)
	want := sections(t)
	var file strings.Builder
	seen := map[string]bool{}
	for _, m := range messages {
		if seen[m.name] {
			t.Errorf("two cases are called %q", m.name)
		}
		seen[m.name] = true
		if m.unprivileged && kerneltest.OneUser() {
			t.Logf("%s: there is no second user here", m.name)
			continue
		}
		a := m.provoke(t, bin)
		section := fmt.Sprintf("$ %s\nexit %d, code %d\n%s", m.argv, a.exit, a.code, a.text)
		fmt.Fprintf(&file, "== %s\n%s\n", m.name, section)
		if !*update && section != want[m.name] {
			t.Errorf("%s: got\n%swant\n%s", m.name, section, want[m.name])
		}
		for _, fault := range append(m.faults(a), a.lint...) {
			t.Errorf("%s: %s:\n%s", m.name, fault, a.text)
		}
	}
	for name := range want {
		if !seen[name] && !*update {
			t.Errorf("%s has %q, which is not a case", golden, name)
		}
	}
	if *update {
		if err := os.WriteFile(golden, []byte(file.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// install copies this program to a directory from which every user can start it, with a link for
// each applet.
func install(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	bin := shared(t)
	err = os.WriteFile(filepath.Join(bin, "program"), program, 0o755)
	for _, name := range product.Names() {
		err = errors.Join(err, os.Symlink("program", filepath.Join(bin, name)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// sections returns the messages of the golden file by name.
func sections(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile(golden)
	if err != nil && !*update {
		t.Fatal(err)
	}
	list := map[string]string{}
	for _, section := range strings.Split(string(b), "== ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		list[name] = strings.TrimSuffix(text, "\n")
	}
	return list
}
