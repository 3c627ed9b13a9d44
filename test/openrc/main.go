// Command openrc runs the OpenRC scripts of dist on a Debian 12 with OpenRC, installed and started
// as docs/operations.md says, and checks what they do.
//
//	go run ./openrc [-bin FILE] [-require]
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
	"github.com/cnibox/cnibox/test/document"
)

//go:embed trial.sh
var trial string

// openrcDebian is the root file system. Its packages add only services to runlevels that set up a
// machine: clock, modules and cgroups.
var openrcDebian = debian.System{
	Name:     "openrc",
	Packages: []string{"openrc", "nftables", "iproute2", "busybox-static"},
	Without:  slices.Concat(debian.Unused, []string{"./etc/runlevels/*/*", "./etc/init.d/hwclock.sh"}),
}

// Networks of the trial; one needs the DHCP daemon.
const (
	network = `{"cniVersion": "1.1.0", "name": "mynet", "plugins": [
  {"type": "bridge", "bridge": "br-mynet", "isDefaultGateway": true, "ipMasq": true, "capabilities": {"ips": true},
   "ipam": {"type": "host-local", "subnet": "10.88.0.0/16"}},
  {"type": "portmap", "capabilities": {"portMappings": true}},
  {"type": "firewall"}]}
`
	dhcpNetwork = `{"cniVersion": "1.1.0", "name": "lan", "plugins": [
  {"type": "bridge", "bridge": "br-lan", "ipam": {"type": "dhcp"}}]}
`
)

// inside is the first argument of the process in new namespaces.
const inside = "--inside"

func main() {
	if len(os.Args) == 3 && os.Args[1] == inside {
		exit(debian.Enter(os.Args[2], nil, nil))
		// The shell reaps orphans, as a first process has to.
		exit(syscall.Exec("/bin/bash", []string{"bash", "/trial/trial.sh"}, os.Environ()))
	}
	bin := flag.String("bin", "../bin/cnibox", "the binary")
	require := flag.Bool("require", false, "fail where root or debootstrap is missing")
	flag.Parse()
	if missing := debian.Missing(); missing != "" {
		exit(debian.Skip("openrc", missing, *require))
		return
	}
	begin := time.Now()
	binary, err := filepath.Abs(*bin)
	exit(err)
	exit(os.Chdir("..")) // the root of the repository
	exit(run(binary))
	fmt.Printf("openrc: PASS: the OpenRC scripts of dist on Debian 12 (%.0f s)\n", time.Since(begin).Seconds())
}

// run unpacks a Debian, installs cnibox and the trial's files, and runs the trial there.
func run(bin string) error {
	dir, err := os.MkdirTemp("", "cnibox-openrc-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) // its mounts are gone with the namespace
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	if err := openrcDebian.Unpack(strings.TrimSpace(string(cache)), dir); err != nil {
		return err
	}
	commands, err := document.Blocks(document.Operations, "## OpenRC", "sh")
	if err != nil {
		return err
	}
	err = debian.Write(dir, map[string]string{
		"trial/trial.sh":               trial,
		"trial/commands.sh":            commands,
		"etc/rc.conf.d/trial.conf":     "rc_sys=lxc\n", // skips services for hardware
		"etc/cni/net.d/mynet.conflist": network,
		"etc/cni/net.d/lan.conflist":   dhcpNetwork,
		"srv/index.html":               "cnibox\n",
		"root/cnibox/README":           "the directory of the documents' commands\n",
	})
	if err != nil {
		return err
	}
	for _, c := range [][]string{
		{"make", "-s", "install", "DESTDIR=" + dir, "BIN=" + bin, "DATADIR="},
		{"cp", "-r", "dist", filepath.Join(dir, "root/cnibox/dist")},
	} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(c, " "), err, out)
		}
	}
	cmd := exec.Command("/proc/self/exe", inside, dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = []string{"HOME=/root", "USER=root", "TERM=dumb", "LC_ALL=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = debian.Namespaces()
	return cmd.Run()
}

// exit ends the process with status 1 if there is an error.
func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "openrc: FAIL:", err)
		os.Exit(1)
	}
}
