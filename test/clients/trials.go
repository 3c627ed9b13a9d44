package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/test/debian"
)

// trialVar passes the name of the trial to the second and third process.
const trialVar = "CNIBOX_CLIENTS_TRIAL"

// A trial is a set of programs on its own host, and its parts in order.
type trial struct {
	name    string
	built   []string // programs that Debian does not have
	target  string   // make target that builds them; "": runtimes
	release release
	folded  bool
	system  *debian.System // of another release of Debian, which is fetched before the trial
	parts   []func(*host) error
}

var trials = []trial{
	{
		name: "debian", release: containerd1,
		parts: []func(*host) error{
			(*host).start, (*host).ctrContainers, (*host).detached, (*host).pods, (*host).crowd, (*host).goneNamespace, (*host).bandwidth,
			(*host).podmanContainers, (*host).runtimes, (*host).buildah, (*host).podmanEnd,
		},
	},
	{
		name: "hooks", release: release{cniVersion: "1.1.0"},
		parts: []func(*host) error{(*host).hooks, (*host).programs},
	},
	{
		name: "podman5", release: release{cniVersion: "1.1.0"}, system: &debian.Podman5,
		parts: []func(*host) error{(*host).driver},
	},
	{
		name: "others", release: release{cniVersion: "1.1.0"}, system: &othersDebian,
		parts: []func(*host) error{(*host).others},
	},
	{
		name: "qemu", target: "qemu-guest", release: release{cniVersion: "1.1.0"},
		built: []string{"guest-vmlinuz", "guest-initrd", "guest-cmdline"},
		parts: []func(*host) error{(*host).guests},
	},
	{
		name: "containerd2", release: containerd2,
		built: []string{"containerd", "containerd-shim-runc-v2", "ctr"},
		parts: []func(*host) error{
			(*host).start, (*host).ctrContainers, (*host).detached, (*host).killed, (*host).pods, (*host).asked, (*host).crowd, (*host).goneNamespace, (*host).bandwidth, (*host).restarted,
		},
	},
	{
		name: "debian-folded", release: containerd1, folded: true,
		parts: []func(*host) error{
			(*host).start, (*host).ctrContainers, (*host).detached, (*host).pods, (*host).crowd, (*host).goneNamespace, (*host).bandwidth,
		},
	},
	{
		name: "containerd2-folded", release: containerd2, folded: true,
		built: []string{"containerd", "containerd-shim-runc-v2", "ctr"},
		parts: []func(*host) error{
			(*host).start, (*host).ctrContainers, (*host).killed, (*host).pods, (*host).asked, (*host).crowd, (*host).goneNamespace, (*host).bandwidth, (*host).restarted,
		},
	},
	{
		name: "nerdctl", release: containerd2,
		built: []string{"containerd", "containerd-shim-runc-v2", "ctr", "nerdctl"},
		parts: []func(*host) error{(*host).start, (*host).nerdctl},
	},
	{
		name:  "buildkit",
		built: []string{"buildkitd", "buildctl"},
		parts: []func(*host) error{(*host).buildkit, (*host).buildkitTimes},
	},
	{
		name: "buildkit-folded", folded: true,
		built: []string{"buildkitd", "buildctl"},
		parts: []func(*host) error{(*host).buildkit},
	},
	{
		name: "cnitool", release: release{cniVersion: "1.1.0"}, built: []string{"cnitool"}, parts: []func(*host) error{(*host).cnitool},
	},
	{
		name: "cnitool-folded", release: release{cniVersion: "1.1.0"}, folded: true, built: []string{"cnitool"}, parts: []func(*host) error{(*host).cnitool},
	},
	{
		name: "crio", target: "crio", release: release{cniVersion: "1.1.0"},
		built: []string{"crio", "pinns"},
		parts: []func(*host) error{(*host).crio, (*host).bandwidth, (*host).restarted},
	},
	{
		name: "crio-folded", target: "crio", release: release{cniVersion: "1.1.0"}, folded: true,
		built: []string{"crio", "pinns"},
		parts: []func(*host) error{(*host).crio, (*host).bandwidth, (*host).restarted},
	},
	{
		name: "nomad", target: "nomad",
		built: []string{"nomad"},
		parts: []func(*host) error{(*host).nomad},
	},
	{
		name: "nomad-folded", target: "nomad", folded: true,
		built: []string{"nomad"},
		parts: []func(*host) error{(*host).nomad},
	},
}

// missingPrograms returns the programs of the trial that dir lacks.
func (t trial) missingPrograms(dir string) string {
	var missing []string
	for _, program := range t.built {
		if _, err := os.Stat(filepath.Join(dir, program)); dir == "" || err != nil {
			missing = append(missing, program)
		}
	}
	return strings.Join(missing, ", ")
}
