// Command packages installs Debian's package of a release on a Debian 12 with podman and the
// reference's plugins, and checks that podman and its published ports keep working, also through an
// upgrade and the removal.
//
//	go run ./packages -deb FILE [-require]
//
// It needs root and debootstrap; without them it prints that and exits with 0, or with -require fails.
// The Debian is unpacked into a temporary directory from a tar file beside Go's cache. The trial is
// the first process of new namespaces, so all processes that it started end with it.
package main

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cnibox/cnibox/test/debian"
)

//go:embed trial.sh
var trial string

// podmanDebian has podman and the reference's package, and that package as a file, to reinstall it.
// apt's lists are excluded.
var podmanDebian = debian.System{
	Name:     "podman",
	Packages: []string{"podman", "crun", "containernetworking-plugins", "iptables", "nftables", "iproute2", "busybox-static"},
	Without:  slices.DeleteFunc(slices.Clone(debian.Unused), func(pattern string) bool { return pattern == "./var/cache/apt/*" }),
}

const containersConf = `[network]
network_backend = "cni"
[engine]
runtime = "crun"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
[containers]
log_driver = "k8s-file"
cgroups = "disabled"
`

// inside is the first argument of the process in new namespaces.
const inside = "--inside"

func main() {
	if len(os.Args) == 3 && os.Args[1] == inside {
		exit(debian.Enter(os.Args[2], nil, nil))
		exit(syscall.Exec("/bin/bash", []string{"bash", "/trial/trial.sh"}, os.Environ()))
	}
	deb := flag.String("deb", "", "the package")
	require := flag.Bool("require", false, "fail where root or debootstrap is missing")
	flag.Parse()
	if missing := debian.Missing(); missing != "" {
		exit(debian.Skip("packages", missing, *require))
		return
	}
	begin := time.Now()
	exit(run(*deb))
	fmt.Printf("packages: PASS: %s on Debian 12 with podman (%.0f s)\n", filepath.Base(*deb), time.Since(begin).Seconds())
}

// run unpacks a Debian, adds the package and the trial's files, and runs the trial there.
func run(deb string) error {
	dir, err := os.MkdirTemp("", "cnibox-packages-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) // its mounts are gone with the namespace
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	if err := podmanDebian.Unpack(strings.TrimSpace(string(cache)), dir); err != nil {
		return err
	}
	data, err := os.ReadFile(deb)
	if err != nil {
		return err
	}
	err = debian.Write(dir, map[string]string{
		"trial/trial.sh":                  trial,
		"trial/cnibox.deb":                string(data),
		"etc/containers/containers.conf":  containersConf,
		"etc/containers/storage.conf":     "[storage]\ndriver = \"vfs\"\nrunroot = \"/run/containers/storage\"\ngraphroot = \"/var/lib/containers/storage\"\n",
		"etc/containers/policy.json":      `{"default": [{"type": "insecureAcceptAnything"}]}`,
		"srv/rootfs/www/index.html":       "cnibox\n",
		"srv/rootfs/etc/hostname":         "web\n",
		"usr/sbin/policy-rc.d":            "#!/bin/sh\nexit 101\n", // no service is started
		"var/lib/apt/lists/partial/.keep": "",
	})
	if err != nil {
		return err
	}
	if err := os.Chmod(filepath.Join(dir, "usr/sbin/policy-rc.d"), 0o755); err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", inside, dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = []string{"HOME=/root", "USER=root", "TERM=dumb", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = debian.Namespaces()
	return cmd.Run()
}

// exit ends the process with status 1 if there is an error.
func exit(err error) {
	if err != nil {
		fmt.Println("FAIL packages:", err)
		os.Exit(1)
	}
}
