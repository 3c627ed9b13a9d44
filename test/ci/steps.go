package main

import (
	"slices"
	"time"
)

// A lane is a list of steps.
type lane struct {
	steps   []step
	resumed bool // a step that has passed for this very commit is not run again
}

// A step is a make target, or a command.
type step struct {
	name  string
	limit time.Duration // several times what an idle machine takes: it is for what hangs
	argv  []string
	fetch bool     // over the network: tried again; the run ends if it does not come
	needs []string // Debian packages
}

// make returns a step of make's.
func makes(name string, limit time.Duration, args ...string) step {
	return step{name: name, limit: limit, argv: append([]string{"make", "--no-print-directory"}, args...)}
}

// fetches returns a step that fetches.
func fetches(name string, argv ...string) step {
	return step{name: name, limit: 20 * time.Minute, argv: argv, fetch: true}
}

func (s step) with(packages ...string) step {
	s.needs = append(s.needs, packages...)
	return s
}

// Packages of Debian that several steps need.
var (
	gcc      = []string{"gcc", "libc6-dev"}
	guest    = []string{"qemu-system-x86", "busybox-static", "xz-utils", "kmod"}
	forTests = []string{"nftables", "iptables", "iproute2", "busybox-static", "strace", "dbus-daemon", "bash", "zsh", "fish", "mandoc", "groff"}
)

const minute = time.Minute

const releaseDir = logs + "/release"

// modules fetches what the modules of the repository need.
var modules = []step{
	fetches("fetch-modules", "make", "-s", "modules"),
	fetches("fetch-release", "env", "GOFLAGS=", "go", "list", "-C", "test/release", "-deps", "-test", "./..."),
}

// lanes are the gate, and everything else.
var lanes = map[string]lane{
	"gate": {steps: append(slices.Clip(modules),
		fetches("fetch-base", "make", "-s", "base"),
		fetches("fetch-kernel", "make", "-s", "guest-kernel", "KERNEL=6.1").with(guest...),
		fetches("fetch-lint", "make", "-s", "lint-programs"),
		fetches("fetch-vuln", "make", "-s", "vuln", "VULNARGS=-version"),
		makes("lint", 15*minute, "lint"),
		makes("vuln", 5*minute, "vuln"),
		makes("build", 10*minute, "build", "build-mips", "build-arm64"), // mips: 32 bit, big-endian,
		makes("demo", 5*minute, "demo"),
		makes("test", 30*minute, "test").with(forTests...),
		// The guest has one processor.
		makes("guest-race-soak", 25*minute, "-j2", "-k", "test-vm", "test-race", "soak", "KERNEL=6.1", "LACKS=1", "MINUTES=1").with(guest...).with(gcc...),
		makes("release", 10*minute, "release", "ARCHES=amd64", "OUT="+releaseDir),
	)},
	"long": {resumed: true, steps: append(slices.Clip(modules),
		fetches("reference", "make", "-s", "reference"),
		fetches("flanneld", "make", "-s", "flanneld").with(gcc...),
		makes("fix", 10*minute, "fix"),
		makes("build-all", 20*minute, "build-all"),
		makes("test-full", 45*minute, "test", "FULL=1").with(forTests...),
		makes("test-race-scripts", 30*minute, "test-race", "SCRIPTS=1").with(gcc...),
		makes("test-cross", 20*minute, "test-cross").with("qemu-user-static"),
		makes("test-twin-live", 25*minute, "test-twin", "LIVE=1").with("nftables", "iptables", "iproute2"),
		makes("test-twin-guest", 40*minute, "test-twin", "LIVE=1", "KERNEL=6.1").with(guest...),
		makes("test-vm", 100*minute, "test-vm", "VMFLAGS=-limit 55m").with(guest...),
		makes("test-tour", 10*minute, "test-tour").with(guest...),
		makes("soak", 30*minute, "soak", "MINUTES=10"),
		makes("test-power", 30*minute, "test-power", "CUTS=100", "POWER=-require").with("e2fsprogs", "xfsprogs"),
		makes("runtimes", 40*minute, "runtimes"),
		makes("crio", 40*minute, "crio").with(gcc...),
		makes("nomad", 40*minute, "nomad").with(gcc...),
		makes("qemu-guest", 5*minute, "qemu-guest").with(guest...),
		makes("test-clients", 30*minute, "test-clients", "CLIENTS=-require").with("podman", "buildah", "conmon", "containerd", "runc", "crun", "bubblewrap", "debootstrap", "nftables", "iptables"),
		makes("test-nodes", 10*minute, "test-nodes", "NODES=-require").with("etcd-server", "nftables", "iptables"),
		makes("test-readme", 20*minute, "test-readme", "README=-require").with("debootstrap"),
		makes("test-openrc", 20*minute, "test-openrc", "OPENRC=-require").with("debootstrap"),
		makes("reproduce", 10*minute, "reproduce"),
		makes("release", 30*minute, "release", "OUT="+releaseDir),
		makes("test-packages", 15*minute, "test-packages", "PACKAGES=-require").with("debootstrap", "lintian", "rpmlint", "rpm", "shellcheck", "nix-bin", "podman", "conmon", "runc"),
		makes("test-systemd", 30*minute, "test-systemd", "SYSTEMD=-require").with(guest...).with("debootstrap", "e2fsprogs"),
		makes("kubernetes", 60*minute, "kubernetes"),
		makes("test-kubernetes", 20*minute, "test-kubernetes", "NODES=-require").with("etcd-server", "containerd", "runc", "nftables", "iptables"),
	)},
}
