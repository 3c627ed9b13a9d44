package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"cnibox/applets/applettest"
)

// lacking has the kernel options that an example needs and some kernels lack, besides those of its
// plugins.
var lacking = map[string]string{"vlans": "CONFIG_BRIDGE_VLAN_FILTERING"}

// refused has the error of ADD for examples that need more than the test's host has.
var refused = map[string]string{"macvlan": "DHCP daemon"}

// unmapped is the kernel's error for a user ID that is not mapped in the user namespace.
const unmapped = "TUNSETOWNER: invalid argument"

// attach makes a host with eth0 and a default route, eth1 without addresses, the file that flanneld
// writes, and the namespace of one container. It exits with 3 if add fails.
const attach = `
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mkdir -p /run/netns /run/flannel
cp "$EXAMPLES/subnet.env" /run/flannel/
ip link set lo up
for n in 0 1; do
	ip link add eth$n type veth peer name lan$n
	ip link set eth$n up
	ip link set lan$n up
done
ip addr add 192.0.2.1/24 dev eth0
ip route add default via 192.0.2.254
touch /run/netns/container
unshare --net=/run/netns/container true
links() { ip -o link show type veth | cut -d: -f2; ip -o link show type ifb; }
before=$(links)

cni-exec add $PUBLISH "$NETWORK" /run/netns/container || exit 3
cni-exec check "$NETWORK" /run/netns/container
cni-exec get "$NETWORK" /run/netns/container
cni-exec del "$NETWORK" /run/netns/container

[ "$(links)" = "$before" ] || { echo "links are left: $(links)"; exit 1; }
left=$(find /var/lib/cni/results /var/lib/cni/networks /run/cni /run/cnibox -type f ! -name 'last_reserved_ip.*' ! -name '*lock' 2>/dev/null || true)
[ -z "$left" ] || { echo "files are left: $left"; exit 1; }
`

// TestKernelExamples attaches, checks and detaches a container with each configuration of examples.
func TestKernelExamples(t *testing.T) {
	if os.Geteuid() != 0 && os.Getenv("CNIBOX_KERNEL") != "require" {
		t.Skip("SKIPPED: network namespaces need root")
	}
	for _, program := range []string{"go", "ip", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIPPED: %v (ip is in the package iproute2)", err)
		}
	}
	bin := filepath.Join(t.TempDir(), "cnibox")
	build := exec.Command("go", "build", "-C", "../..", "-o", bin, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	if err := os.Symlink("cnibox", filepath.Join(filepath.Dir(bin), "cni-exec")); err != nil {
		t.Fatal(err)
	}
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(examples, "*.conflist"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d examples: %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".conflist")
		t.Run(name, func(t *testing.T) {
			list := decode(t, file)
			for _, p := range list.Plugins {
				applettest.Plugins[p.Type].Need(t)
			}
			cmd := exec.Command("sh", "-ec", attach)
			cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(bin)+":"+os.Getenv("PATH"),
				"EXAMPLES="+examples, "NETCONFPATH="+only(t, file), "NETWORK="+list.Name, "PUBLISH="+list.publish())
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
			out, err := cmd.CombinedOutput()
			text := string(out)
			if option := lacking[name]; option != "" && cmd.ProcessState.ExitCode() == 3 && strings.Contains(text, "this kernel") {
				t.Skipf("SKIPPED: %s: %s", option, text)
			}
			if name == "tap" && strings.Contains(text, unmapped) {
				t.Skipf("SKIPPED: its owner is not in this user namespace: %s", text)
			}
			if want := refused[name]; want != "" {
				if cmd.ProcessState.ExitCode() != 3 || !strings.Contains(text, want) {
					t.Fatalf("%v, want an error of add with %q:\n%s", err, want, text)
				}
				return
			}
			if err != nil {
				t.Fatalf("%v:\n%s", err, text)
			}
		})
	}
}

// Each plugin has an example, and each example a line in the table.
func TestPluginsHaveExamples(t *testing.T) {
	golden, err := os.ReadFile("../../testdata/applets.golden")
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile("../../examples/README.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../examples/*.conflist")
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, file := range files {
		for _, p := range decode(t, file).Plugins {
			shown = append(shown, p.Type, p.IPAM.Type)
		}
		if name := filepath.Base(file); !strings.Contains(string(table), "| `"+name+"` |") {
			t.Errorf("%s has no line in examples/README.md", name)
		}
	}
	for name := range strings.FieldsSeq(string(golden)) {
		if name != "cnibox" && name != "cni-exec" && !slices.Contains(shown, name) {
			t.Errorf("no example has the plugin %s", name)
		}
	}
}

// A list has the members of a configuration that the tests read.
type list struct {
	Name    string
	Plugins []struct {
		Type         string
		IPAM         struct{ Type string }
		Capabilities struct{ PortMappings bool }
	}
}

func decode(t *testing.T, file string) (l list) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return l
}

// publish returns the flag --publish if the list has a plugin for it.
func (l list) publish() string {
	for _, p := range l.Plugins {
		if p.Capabilities.PortMappings {
			return "--publish=8080:80"
		}
	}
	return ""
}

// only makes a directory with the file as its only configuration.
func only(t *testing.T, file string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(file, filepath.Join(dir, filepath.Base(file))); err != nil {
		t.Fatal(err)
	}
	return dir
}
