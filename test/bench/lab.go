package main

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/test/sandbox"
)

// A lab has the paths and the state that all groups use.
type lab struct {
	bin       string // the binary
	ours      string // directory with a link for each applet
	base      string // directory with a link for each applet of an earlier revision; "": none
	baseBin   string // its binary
	reference string // directory with the reference plugins; "": not installed
	tools     string // directory with bare, peak and true
	dir       string // for files of groups; deleted with the sandbox
	quick     bool
	most      int // rounds; 0: no limit
	hosts     int // made so far
}

// newLab installs the binary. A reference directory without bridge counts as not installed.
func newLab(o options) (*lab, error) {
	const dir = "/run/bench"
	l := &lab{ours: dir + "/bin", tools: dir + "/tools", dir: dir, quick: o.quick, most: o.rounds}
	var err error
	if l.bin, err = installCopy(o.bin, l.ours); err != nil {
		return nil, err
	}
	if err := copyPrograms(l.tools, filepath.Join(o.tools, "bare"), filepath.Join(o.tools, "peak")); err != nil {
		return nil, err
	}
	if err := copyPrograms(l.tools, "/bin/true"); err != nil && !errors.Is(err, os.ErrNotExist) { // the guest has no /bin/true
		return nil, err
	}
	netavark, err := filepath.Glob(filepath.Join(o.tools, netavarkDir, "*"))
	if err == nil {
		err = copyPrograms(filepath.Join(l.tools, netavarkDir), netavark...)
	}
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(o.reference, "bridge")); err == nil {
		l.reference = dir + "/reference"
		plugins, err := filepath.Glob(filepath.Join(o.reference, "*"))
		if err == nil {
			err = copyPrograms(l.reference, plugins...)
		}
		if err != nil {
			return nil, err
		}
	}
	if o.base != "" {
		if err := l.installBase(o.base); err != nil {
			return nil, err
		}
	}
	return l, l.linkIptables()
}

// referenceVersion returns the module version of the bridge in a directory, or else the version that
// it prints; "": there is none.
func referenceVersion(dir string) string {
	file := filepath.Join(dir, "bridge")
	if _, err := os.Stat(file); err != nil {
		return ""
	}
	if info, err := buildinfo.ReadFile(file); err == nil && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	about, _ := exec.Command(file).CombinedOutput()
	if _, v, ok := strings.Cut(strings.SplitN(string(about), "\n", 2)[0], "plugin "); ok {
		return v
	}
	return "of unknown version"
}

// installCopy copies a binary of cnibox into a directory and makes its links there.
func installCopy(file, dir string) (bin string, err error) {
	if err := copyPrograms(dir, file); err != nil {
		return "", err
	}
	bin = filepath.Join(dir, "cnibox")
	if err := os.Rename(filepath.Join(dir, filepath.Base(file)), bin); err != nil {
		return "", err
	}
	install := exec.Cmd{Path: bin, Args: []string{"cnibox", "install", dir}, Stderr: os.Stderr}
	if err := install.Run(); err != nil {
		return "", fmt.Errorf("%s install: %w", file, err)
	}
	return bin, nil
}

// copyPrograms copies programs into a directory, which it creates. Only such copies are measured:
// whether a linker or a copy wrote the pages of a file shows in its start time.
func copyPrograms(dir string, files ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range files {
		if st, err := os.Stat(f); err == nil && !st.Mode().IsRegular() {
			continue
		}
		b, err := os.ReadFile(f)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(f)), b, 0o755)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// linkIptables makes the directory [iptablesOnly], which stays empty without iptables.
func (l *lab) linkIptables() error {
	if err := os.MkdirAll(iptablesOnly, 0o755); err != nil {
		return err
	}
	program, err := exec.LookPath("iptables")
	if err != nil {
		return nil // the reference reports what is missing
	}
	return os.Symlink(program, filepath.Join(iptablesOnly, "iptables"))
}

// rounds returns n, or a few with -quick.
func (l *lab) rounds(n int) int {
	if l.quick {
		n = min(n, 3)
	}
	if l.most > 0 {
		n = min(n, l.most)
	}
	return n
}

// crowd returns n, or fewer with -quick.
func (l *lab) crowd(n int) int {
	if l.quick {
		return n / 5
	}
	return n
}

// A group is a part of the table.
type group struct {
	name  string // for -only
	title string
	run   func(*lab) []line
}

// groups in the order in which they run.
var groups = []group{
	{"base", "Against the earlier revision", compareBase},
	{"size", "Size of the plugins on disk", size},
	{"start", "Start and end of a process: what VERSION costs", startCost},
	{"memory", "Peak memory of one call (ADD, CHECK, DEL: the most)", memory},
	{"chain", "Chain of bridge(isGateway, ipMasq, host-local), portmap, tuning", chain},
	{"five", "List of bridge, portmap, firewall, bandwidth, tuning", five},
	{"plugins", "One plugin alone", func(l *lab) []line { return l.measureTrials(trials()) }},
	{"links", "Links on another link", func(l *lab) []line { return l.measureTrials(subLinks()) }},
	{"netavark", "netavark 1.14 of Debian trixie, as podman 5 calls it", netavark},
	{"dhcp", "Memory of the DHCP daemon", daemons},
	{"leases", "host-local alone, by the number of leases", leases},
	{"parallel", "100 containers (20 if quick), 16 at a time", parallel},
	{"fill", "A plugin's ADD and DEL at 500 attachments (100 if quick), to those at none", filling},
	{"scale", "The 500th container (the 100th if quick)", scale},
	{"crowd", "cni-exec about 1,000 attachments at once (200 if quick)", crowded},
}

// groupNames lists what -only takes.
func groupNames() string {
	var names []string
	for _, g := range groups {
		names = append(names, g.name)
	}
	return strings.Join(names, ", ")
}

// newHost makes the network namespace of a host.
func (l *lab) newHost() (*sandbox.NetNS, error) {
	l.hosts++
	return sandbox.NewNetNS(fmt.Sprintf("host%d", l.hosts))
}
