package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/test/debian"
	"github.com/cnibox/cnibox/test/document"
	docker "github.com/cnibox/cnibox/test/image"
)

//go:embed systemd.sh
var systemdScript string

// systemdDebian is the root file system of the guest.
var systemdDebian = debian.System{
	Name: "systemd",
	Packages: []string{
		"systemd", "systemd-sysv", "nftables", "iproute2", "kmod", "busybox-static",
		"firewalld", "netbase", "procps", // protocols for firewalld's services, and kill for its unit
		"libpam-systemd",                                // a logind for polkitd, on which firewalld depends
		"podman", "crun", "containernetworking-plugins", // debootstrap does not resolve podman's dependency on a network stack
		"docker.io", "iptables",
	},
	Without: slices.Concat(debian.Unused, []string{
		"./etc/systemd/system/*[Ff]irewall*", // would enable firewalld and others
		"./etc/systemd/system/*.wants/containerd.service", "./etc/systemd/system/*.wants/docker.*", "./etc/systemd/system/*.wants/podman*",
		"./usr/bin/docker", "./usr/bin/ctr", "./usr/bin/containerd-stress", // large, and not needed
	}),
}

// systemdUnits is the section of the document with the commands.
const systemdUnits = "## systemd"

// trialUnit runs the script at each boot, after all enabled units.
const trialUnit = `[Unit]
Description=trial of the units of cnibox
After=multi-user.target
[Service]
Type=exec
ExecStart=/bin/bash /trial/trial.sh
`

// server is a web server's answer to a request of any length and duration: httpd of busybox closes a connection
// that has brought no line for 60 s. Its page is the server's name, the argument.
const server = `while read -r line && [ "${line%?}" ]; do :; done
printf 'HTTP/1.0 200 OK\r\n\r\n%s\n' "$1"
`

// webUnit is the service of the document's drop-in.
const webUnit = `[Unit]
Description=web server of the trial
[Service]
ExecStart=/usr/bin/busybox nc -ll -p 80 -e /usr/bin/busybox sh /trial/server web
[Install]
WantedBy=multi-user.target
`

// trialNetwork is a network of the document's namespaces.
const trialNetwork = `{"cniVersion": "1.1.0", "name": "%[1]s", "plugins": [
  {"type": "bridge", "bridge": "br-%[1]s", "isDefaultGateway": true, "ipMasq": true, "capabilities": {"ips": true, "mac": true},
   "ipam": {"type": "host-local", "subnet": "%[2]s"}},
  {"type": "portmap", "capabilities": {"portMappings": true}},
  {"type": "firewall"}]}
`

// podmanConf makes podman use CNI plugins, and only ours.
const podmanConf = `[network]
network_backend = "cni"
cni_plugin_dirs = ["/opt/cni/bin"]
`

// podmanNetwork is Debian's file with podman's default network, whose addresses are those of mynet.
const podmanNetwork = "etc/cni/net.d/87-podman-bridge.conflist"

// masked are units that the guest does not need: they wait for a network or D-Bus.
var masked = []string{
	"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service",
	"fstrim.timer", "getty.target", "systemd-logind.service", "systemd-pstore.service",
}

// runSystemd installs cnibox on a Debian as the document says, and boots it until the script
// reports that it is done.
func runSystemd(ctx context.Context, o options) error {
	missing := debian.Missing()
	if _, err := exec.LookPath("mkfs.ext4"); missing == "" && err != nil {
		missing = "no mkfs.ext4 here: apt-get install e2fsprogs"
	}
	if err := checkPrograms(); missing == "" && err != nil {
		missing = err.Error()
	}
	if missing != "" {
		return debian.Skip("systemd", missing, o.require)
	}
	begin := time.Now()
	dir, err := os.MkdirTemp("", "cnibox-systemd-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t, err := cached(ctx, guidedKernel, o.update)
	if err != nil {
		return err
	}
	disk := filepath.Join(dir, "disk")
	if err := systemdDisk(ctx, t, filepath.Join(dir, "root"), disk); err != nil {
		return err
	}
	m := machine{dir: dir, limit: o.limit}
	m.accel, m.cmdline = accelerator(ctx, t.vmlinuz)
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("the guest was not done within %v", o.limit))
	defer cancel()
	for boots := 1; ; boots++ {
		end, err := m.follow(ctx, "systemd", "-kernel", t.vmlinuz,
			// On a busy machine the guest may measure a ten times too high TSC frequency, so that
			// 20 s become 2.
			"-append", m.cmdline+" clocksource=hpet root=/dev/nvme0n1 rw systemd.getty_auto=no",
			"-drive", "file="+disk+",format=raw,if=none,id=disk,cache=unsafe", "-device", "nvme,drive=disk,serial=1")
		switch {
		case err != nil:
			return fmt.Errorf("systemd, boot %d: %w", boots, err)
		case end == "done":
			fmt.Printf("systemd: PASS: the units of dist on Debian 12 with Linux %s, %d boots (%.0f s)\n", t.release, boots, time.Since(begin).Seconds())
			return nil
		}
	}
}

// systemdDisk makes a file system with the Debian, the kernel's modules, cnibox installed by `make
// install`, and the trial.
func systemdDisk(ctx context.Context, t tree, root, disk string) error {
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	cache, err := output(ctx, ".", "go", "env", "GOCACHE")
	if err != nil {
		return err
	}
	if err := systemdDebian.Unpack(strings.TrimSpace(cache), root); err != nil {
		return err
	}
	files, err := trialFiles()
	if err != nil {
		return err
	}
	if files["trial/shop.tar"], err = shopImage(root); err != nil {
		return err
	}
	network, err := os.ReadFile(filepath.Join(root, podmanNetwork))
	if err != nil {
		return err
	}
	files[podmanNetwork] = strings.ReplaceAll(string(network), "10.88.0.", "10.87.0.")
	if err := debian.Write(root, files); err != nil {
		return err
	}
	units := filepath.Join(root, "etc/systemd/system")
	err = os.Symlink("../trial.service", filepath.Join(units, "multi-user.target.wants/trial.service"))
	for _, unit := range masked {
		err = errors.Join(err, os.Symlink("/dev/null", filepath.Join(units, unit)))
	}
	if err != nil {
		return err
	}
	for _, c := range [][]string{
		{"make", "-s", "install", "DESTDIR=" + root},
		{"cp", "-r", "dist", filepath.Join(root, "root/cnibox/dist")},
		{"mkdir", "-p", filepath.Join(root, "usr/lib/modules")},
		{"cp", "-r", t.modules, filepath.Join(root, "usr/lib/modules", t.release)},
		{"mkfs.ext4", "-q", "-d", root, disk, "2G"},
	} {
		if _, err := output(ctx, ".", c[0], c[1:]...); err != nil {
			return err
		}
	}
	return os.RemoveAll(root)
}

// shopImage writes the archive of an image with busybox as a web server.
func shopImage(root string) (string, error) {
	busybox, err := os.ReadFile(filepath.Join(root, "usr/bin/busybox"))
	if err != nil {
		return "", err
	}
	i := docker.Image{
		Name: "localhost/shop:1", Cmd: []string{"/bin/busybox", "nc", "-ll", "-p", "80", "-e", "/bin/busybox", "sh", "/server", "shop"},
		Files: []docker.File{{Name: "bin/busybox", Mode: 0o755, Body: busybox}, {Name: "server", Mode: 0o644, Body: []byte(server)}},
	}
	var b strings.Builder
	err = i.Write(&b)
	return b.String(), err
}

// trialFiles returns the trial's files; some are from the document.
func trialFiles() (map[string]string, error) {
	files := map[string]string{
		"trial/trial.sh":                         systemdScript,
		"trial/server":                           server,
		"etc/systemd/system/trial.service":       trialUnit,
		"etc/systemd/system/web.service":         webUnit,
		"etc/systemd/journald.conf.d/trial.conf": "[Journal]\nStorage=volatile\n",
		"etc/machine-id":                         strings.Repeat("c", 32) + "\n", // without it systemd enables all units
		"etc/hostname":                           "trial\n",
		"etc/cni/net.d/mynet.conflist":           fmt.Sprintf(trialNetwork, "mynet", "10.88.0.0/16"),
		"etc/cni/net.d/backend.conflist":         fmt.Sprintf(trialNetwork, "backend", "10.99.0.0/24"),
		"etc/containers/containers.conf":         podmanConf,
		"etc/containers/storage.conf":            "[storage]\ndriver = \"vfs\"\nrunroot = \"/run/containers/storage\"\ngraphroot = \"/var/lib/containers/storage\"\n",
		"etc/containers/policy.json":             `{"default": [{"type": "insecureAcceptAnything"}]}`,
		"etc/docker/daemon.json":                 `{"storage-driver": "vfs"}`, // the guest's kernel has no module overlay
		"root/cnibox/README":                     "the directory of the documents' commands\n",
	}
	for name, from := range map[string][3]string{
		"etc/systemd/system/web.service.d/netns.conf": {document.Tutorial, upSection, "ini"},
		"trial/units.sh": {document.Operations, systemdUnits, "sh"},
	} {
		text, err := document.Blocks(from[0], from[1], from[2])
		if err != nil {
			return nil, err
		}
		files[name] = text
	}
	web, err := document.File(document.Tutorial, upSection, "web.json")
	files["etc/cni/netns/web.json"] = web
	return files, err
}
