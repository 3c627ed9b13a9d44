// Package script runs scripts of the whole binary: lines of commands, then the files that they
// need, as [testscript] reads them.
//
//	# loopback: lo comes up
//	cni ADD loopback net.json
//	stdout '"name": "lo"'
//	container link lo up
//	-- net.json --
//	{"cniVersion":"1.1.0","name":"demo","type":"loopback"}
//
// Each script has a new network namespace as its host and another one, $NETNS, as its
// container, and a mount namespace of its own, in which /run, /etc/cni, /var/lib/cni and the directories of
// plugins are empty; those in testdata/plain have none of these and need no privilege. $WORK/bin has a link
// for each applet and is CNI_PATH. In files $WORK and $NETNS are replaced. The commands, beside
// those of testscript:
//
//	[!] cni VERB APPLET FILE [K=V…]  call a plugin as a runtime does, with FILE (or - for
//	                                 nothing) as its stdin; CNI_CONTAINERID is ctr1 and
//	                                 CNI_IFNAME eth0 unless a K=V says otherwise
//	[!] APPLET [ARG…]                call any applet
//	status N                         the exit code of the last of these calls is N
//	[!] result FILE                  stdout of the last call is FILE but for its newlines at the end
//	root rw|ro|sealed                the rest runs on a root directory without /var and with an empty
//	                                 tmpfs at /run; ro: the root is read-only; sealed: /run as well
//	onekernel                        skip the rest in guests but the first: it is about the input and output of cni-exec
//	netns del NAME…                  delete network namespaces in /run/netns, and return when the kernel has deleted
//	                                 their links; unmount: likewise, and leave the files
//	page FILE                        run what a page has the reader type, and compare what it prints; -update writes that
//	until PROGRAM [ARG…]             run a program until it succeeds: for what another process does meanwhile
//	needs PLUGIN|trace               skip the rest where the kernel lacks what the plugin, or cni-exec trace, needs
//	[!] host link NAME [up|down]     the link is there (and up, or down); container likewise
//	host carrier NAME up|down        wait until the kernel has found that the link has a carrier, or none
//	[!] host addr NAME PREFIX        the link has the address
//	[!] host route PREFIX [GW]       the main table has the route
//	[!] host sysctl KEY VALUE        as "net/ipv4/ip_forward 1"
//	host save                        remember links, addresses and routes; container likewise
//	[!] host same                    they are as they were at save
package script

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/rogpeppe/go-internal/txtar"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/test/product"
	"github.com/cnibox/cnibox/test/sandbox"
)

func TestMain(m *testing.M) { product.Main(m, nil) }

func TestScripts(t *testing.T) { run(t, "testdata/plain", true) }

func TestKernelScripts(t *testing.T) { run(t, "testdata", false) }

// Scripts leave it to our commands to delete network namespaces, and to wait: what a script tries for so long, or looks up in
// /proc of all processes, fails on a busy machine.
func TestScriptsDoNotWait(t *testing.T) {
	byHand := regexp.MustCompile(`\bumount\b.*/run/netns|\bip netns (add|del)|mountinfo|(^|[^-])\btimeout [0-9]|\bsleep [0-9.]+( |$|;)|\b(while|until) .*\bdo\b`)
	files, err := filepath.Glob("testdata/*.txt")
	plain, errPlain := filepath.Glob("testdata/plain/*.txt")
	if files = append(files, plain...); err != nil || errPlain != nil || len(files) == 0 {
		t.Fatal("no scripts")
	}
	for _, file := range files {
		script, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(script.Comment)) {
			if byHand.MatchString(line) {
				t.Errorf("%s: %s\tuse netns del, host carrier or until", file, line)
			}
		}
	}
}

// limit is how long the scripts may take before a process counts as stuck. With the race detector
// they take about six minutes on a slow machine.
var limit = kerneltest.Timeout(15 * time.Minute)

// run runs each script of a directory with plugins built in, and again as processes if a plugin or
// a list calls one; those of tools only with FULL=1. The results must be the same.
func run(t *testing.T, dir string, plain bool) {
	files, err := filepath.Glob(dir + "/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in %s: %v", dir, err)
	}
	for how, force := range map[string]string{"inprocess": "", "exec": "1"} {
		t.Run(how, func(t *testing.T) {
			files := files
			if force != "" {
				kerneltest.OneKernel(t)
				files = slices.DeleteFunc(slices.Clone(files), func(file string) bool {
					name := strings.TrimSuffix(filepath.Base(file), ".txt")
					return applettest.Elsewhere(name) || !delegates(t, file) || ofTool.MatchString(name) && !kerneltest.Full()
				})
			}
			testscript.RunT(brief{t}, testscript.Params{
				Files:              files,
				Cmds:               commands(),
				Setup:              func(env *testscript.Env) error { return setup(env, plain, force) },
				Deadline:           time.Now().Add(limit),
				Condition:          condition,
				RequireUniqueNames: true,
			})
		})
	}
}

// ofTool matches scripts of a tool or of one verb of cni-exec: most of what they do is the same however plugins are called.
var ofTool = regexp.MustCompile(`^(cni-exec-|doctor|dry-run)`)

// delegates reports whether a configuration in a script makes another plugin or cni-exec call a
// plugin.
func delegates(t *testing.T, file string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc([]string{`"ipam"`, `"plugins"`, `"delegate"`, "cni-exec"}, func(s string) bool { return strings.Contains(string(text), s) })
}

// condition adds [oneuser] to testscript's conditions.
func condition(name string) (bool, error) {
	if name != "oneuser" {
		return false, fmt.Errorf("unknown condition %s", name)
	}
	return kerneltest.OneUser(), nil
}

// A brief test logs only the failing phase of a script, also with -v.
type brief struct{ *testing.T }

func (brief) Verbose() bool { return false }

func (b brief) Run(name string, f func(testscript.T)) {
	b.T.Run(name, func(t *testing.T) { f(brief{t}) })
}

// A hostAndContainer is where a script runs. It is not an applettest.Host: that sets lo up, which
// scripts of loopback test, and scripts in testdata/plain have no namespaces.
type hostAndContainer struct {
	testing.TB
	host, container *netns.NS // nil in plain scripts
	saved           map[*netns.NS]string
	status          int  // of the last call
	ownRoot         bool // see root
}

// key is the hostAndContainer's key in the values of a script.
type key struct{}

// setup makes the namespaces and the links. The script continues on this thread, which is in the
// host's namespace and in a mount namespace of its own, and ends with the script. So no process of another script
// has a copy of its mounts, which would keep its network namespaces.
func setup(env *testscript.Env, plain bool, force string) error {
	t := env.T().(testing.TB)
	h := &hostAndContainer{TB: t, saved: map[*netns.NS]string{}}
	env.Values[key{}] = h
	netns := ""
	if !plain {
		h.host, h.container = kerneltest.NS(t), kerneltest.NS(t)
		if err := ownMounts(env.WorkDir); err != nil {
			return err
		}
		netns = kerneltest.NSPath(t, h.container)
	}
	bin := filepath.Join(env.WorkDir, "bin")
	env.Setenv("CNI_PATH", bin)
	env.Setenv("NETNS", netns)
	env.Setenv(product.ForceExec, force)
	if err := replace(env.WorkDir, strings.NewReplacer("$WORK", env.WorkDir, "$NETNS", netns)); err != nil {
		return err
	}
	product.Install(t, bin)
	if plain {
		return nil
	}
	return os.NewSyscallError("setns", unix.Setns(h.host.FD(), unix.CLONE_NEWNET))
}

// ownMounts moves this thread for good to a new mount namespace that has nothing of the machine's CNI.
func ownMounts(work string) error {
	if strings.HasPrefix(work, "/run/") || strings.HasPrefix(work, "/var/") {
		return fmt.Errorf("the script's directory %s is not visible to it: set TMPDIR", work)
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	return sandbox.Hide()
}

// replace replaces variables in the files of a script.
func replace(dir string, r *strings.Replacer) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, []byte(r.Replace(string(text))), 0o644)
	})
}
