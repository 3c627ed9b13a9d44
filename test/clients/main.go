// Command clients runs real containers on a cnibox binary, as its users do: through containerd,
// with `ctr run --cni` and as pods of the CRI plugin, with podman and buildah, and in the steps of
// BuildKit; and what has no networks of CNI by hooks, namespaces and taps: LXC, systemd-nspawn,
// Docker, and virtual machines of qemu.
//
//	go run ./clients [-bin ../bin/cnibox] [-runtimes dir] [-reference dir] [-only trial] [-require]
//
// It needs root and the programs of the table below. It builds its only image from a static
// busybox, and pulls nothing. If a program is missing it names the package and exits with 0, or
// with -require fails. Trials of programs that Debian does not have need those that
// `make runtimes` builds, and are skipped without them. Each trial runs in its own sandbox: it
// neither sees nor changes the machine's links, rules, processes, /etc/cni, /etc/containers,
// /opt/cni, /run, /var/lib/cni and /var/lib/containers.
package main

import (
	"cmp"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/test/debian"
	"github.com/cnibox/cnibox/test/sandbox"
)

// needed are the programs, and the Debian packages that have them.
var needed = []struct{ program, pkg string }{
	{"containerd", "containerd"}, {"ctr", "containerd"}, {"runc", "runc"}, {"busybox", "busybox-static"},
	{"podman", "podman"}, {"buildah", "buildah"}, {"conmon", "conmon"}, {"nft", "nftables"}, {"crun", "crun"}, {"bwrap", "bubblewrap"},
}

func main() {
	if name := filepath.Base(os.Args[0]); isRecorded(name) {
		os.Exit(record(name))
	}
	var o options
	flag.StringVar(&o.bin, "bin", "../bin/cnibox", "the binary to try")
	flag.StringVar(&o.builtDir, "runtimes", "", "where programs are that `make runtimes` built")
	flag.StringVar(&o.reference, "reference", "", "where the reference plugins are, to compare times with")
	flag.StringVar(&o.only, "only", "", "the one trial to make")
	flag.BoolVar(&o.require, "require", false, "fail where a program of Debian's is missing")
	flag.Parse()
	code, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "clients:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

type options struct {
	bin, builtDir, reference, only string
	require                        bool
}

// run starts three processes for each trial: the first checks the requirements, the second has its
// own network and mount namespaces, the third is the first process of its own PID namespace. All
// processes that containerd started end with the third, however it ends.
func run(o options) (code int, err error) {
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return 0, err
	}
	switch {
	case os.Getenv(cgroupVar) != "":
		return 0, inside(o)
	case sandbox.Inside():
		return runIsolated()
	}
	if _, err := os.Stat(o.bin); err != nil {
		return 0, fmt.Errorf("%w (`make build` makes it)", err)
	}
	if missing := missing(); missing != "" && o.require {
		return 0, errors.New(missing)
	} else if missing != "" {
		fmt.Println("SKIPPED:", missing)
		return 0, nil
	}
	for _, t := range trials {
		if o.only != "" && o.only != t.name {
			continue
		}
		if missing := t.missingPrograms(o.builtDir); missing != "" {
			fmt.Printf("SKIPPED: %s: no %s here: `make %s` builds that\n", t.name, missing, cmp.Or(t.target, "runtimes"))
			continue
		}
		if t.system != nil {
			if missing := debian.Missing(); missing != "" {
				if err := debian.Skip(t.name, missing, o.require); err != nil {
					return 0, err
				}
				continue
			}
			cache, err := debian.Cache()
			if err != nil {
				return 0, err
			}
			if err := t.system.Fetch(cache); err != nil {
				return 0, err
			}
		}
		fmt.Println("--", t.name)
		if code, err := sandbox.Start(trialVar + "=" + t.name); err != nil || code != 0 {
			return code, err
		}
	}
	return 0, nil
}

// missing returns what this machine lacks to run containers; "": nothing.
func missing() string {
	if os.Geteuid() != 0 {
		return "containers need root: try sudo"
	}
	var programs, packages []string
	for _, n := range needed {
		if path, err := exec.LookPath(n.program); err != nil || n.program == "busybox" && !static(path) {
			programs, packages = append(programs, n.program), append(packages, n.pkg)
		}
	}
	if len(programs) == 0 {
		return ""
	}
	return fmt.Sprintf("no %s here that serves: apt-get install %s", strings.Join(programs, ", "), strings.Join(packages, " "))
}

// static reports whether a program needs no dynamic linker.
func static(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// inside runs one trial in the third process: its parts in order, up to the first that fails. An
// error has containerd's warnings.
func inside(o options) error {
	i := slices.IndexFunc(trials, func(t trial) bool { return t.name == os.Getenv(trialVar) })
	if i < 0 {
		return fmt.Errorf("%s is not a trial", os.Getenv(trialVar))
	}
	t := trials[i]
	if len(t.built) > 0 {
		if err := os.Setenv("PATH", o.builtDir+":"+os.Getenv("PATH")); err != nil {
			return err
		}
	}
	h, err := newHost(o)
	if err != nil {
		return err
	}
	h.release, h.folded = t.release, t.folded
	err = h.installation()
	for _, part := range t.parts {
		if err == nil {
			err = part(h)
		}
	}
	if err != nil {
		fmt.Fprint(os.Stderr, h.logWarnings())
	}
	return errors.Join(err, h.stop())
}
