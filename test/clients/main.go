// Command clients runs real containers on a cnibox binary, as its users do: through
// containerd, with `ctr run --cni` and as pods of the CRI plugin, and with podman
// and buildah.
//
//	go run ./clients [-bin ../bin/cnibox] [-require]
//
// It needs root and the programs of the table below; of busybox, a static one, it
// makes its only image, and nothing is pulled. Without them it says which package is
// missing and exits with 0; -require makes that a failure.
// All of it happens in a sandbox: links, rules, processes, /etc/cni, /etc/containers,
// /opt/cni, /run, /var/lib/cni and /var/lib/containers of the machine are neither
// seen nor touched.
package main

import (
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"cnibox/test/sandbox"
)

// needed are the programs, and the Debian packages that have them.
var needed = []struct{ program, pkg string }{
	{"containerd", "containerd"}, {"ctr", "containerd"}, {"runc", "runc"}, {"busybox", "busybox-static"},
	{"podman", "podman"}, {"buildah", "buildah"}, {"conmon", "conmon"}, {"nft", "nftables"},
}

func main() {
	if name := filepath.Base(os.Args[0]); isRecorded(name) {
		os.Exit(record(name))
	}
	bin := flag.String("bin", "../bin/cnibox", "the binary to try")
	require := flag.Bool("require", false, "fail where a program is missing")
	flag.Parse()
	code, err := run(*bin, *require)
	if err != nil {
		fmt.Fprintln(os.Stderr, "clients:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// run is three processes: the first looks for what is needed, the second has
// network and mounts of its own, the third is the first process of its own PID
// namespace. With it ends all that containerd started, however it ends.
func run(bin string, require bool) (code int, err error) {
	bin, err = filepath.Abs(bin)
	if err != nil {
		return 0, err
	}
	switch {
	case os.Getenv(cgroupVar) != "":
		return 0, inside(bin)
	case sandbox.Inside():
		return alone()
	}
	if _, err := os.Stat(bin); err != nil {
		return 0, fmt.Errorf("%w (`make build` makes it)", err)
	}
	if missing := missing(); missing != "" && require {
		return 0, errors.New(missing)
	} else if missing != "" {
		fmt.Println("SKIPPED:", missing)
		return 0, nil
	}
	return sandbox.Start()
}

// missing says what keeps this machine from running containers; "": nothing.
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

// static reports whether a program needs no other file to start.
func static(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// inside is the trial, in the third process: its parts in order, to the first that
// fails. An error comes with what containerd complained of.
func inside(bin string) error {
	h, err := newHost(bin)
	if err != nil {
		return err
	}
	err = h.start()
	for _, part := range []func() error{h.installation, h.ctrContainers, h.detached, h.pods, h.crowd, h.odd, h.bandwidth, h.podmanContainers, h.runtimes, h.buildah, h.podmanEnd} {
		if err == nil {
			err = part()
		}
	}
	if err != nil {
		fmt.Fprint(os.Stderr, h.complaints())
	}
	return errors.Join(err, h.stop())
}
