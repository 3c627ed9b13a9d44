package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/test/product"
)

func TestMain(m *testing.M) { product.Main(m, nil) }

// lacking has the kernel options that an example needs and some kernels lack, besides those of its
// plugins.
var lacking = map[string]string{"vlans": "CONFIG_BRIDGE_VLAN_FILTERING"}

// refused has the error of ADD for examples that need more than the test's host has.
var refused = map[string]string{"macvlan": "DHCP daemon"}

// unmapped is the kernel's error for a user ID that is not mapped in the user namespace.
const unmapped = "TUNSETOWNER: invalid argument"

// attach writes the file that flanneld writes, and makes the namespace of one container. It exits with 3 if add fails.
const attach = `
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mkdir -p /run/netns /run/flannel
cp "$EXAMPLES/subnet.env" /run/flannel/
touch /run/netns/container
unshare --net=/run/netns/container true

cni-exec add --dry-run $PUBLISH "$NETWORK" /run/netns/container >/run/dry 2>&1 || true
cni-exec add $PUBLISH "$NETWORK" /run/netns/container >/run/added || exit 3
cni-exec check "$NETWORK" /run/netns/container
echo "$VIEWS"
cat /run/dry
cni-exec get "$NETWORK" /run/netns/container
cni-exec ls -o json
cni-exec show "$NETWORK" -o json
cni-exec show cnitool-* -o json || cni-exec ls -o wide
cni-exec tree -o json
cni-exec version "$NETWORK" -o json
cni-exec lint || true
cni-exec doctor "$NETWORK" || true
cni-exec reload
cni-exec gc "$NETWORK" --dry-run
echo "$VIEWS"
cni-exec del "$NETWORK" /run/netns/container

left=$(find /var/lib/cni/results /var/lib/cni/networks /run/cni /run/cnibox -type f ! -name 'last_reserved_ip.*' ! -name '*lock' 2>/dev/null || true)
[ -z "$left" ] || { echo "files are left: $left"; exit 1; }
`

// TestKernelExamples attaches, checks and detaches a container with each configuration of examples, and with its
// folded form, of which cni-exec and its tools print the same.
func TestKernelExamples(t *testing.T) {
	kerneltest.OneKernel(t) // some forty calls an example
	dir := t.TempDir()
	product.Install(t, dir)
	bin := filepath.Join(dir, "cnibox")
	files, err := filepath.Glob("../../examples/*.conflist")
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
			plain, folded := only(t, file), only(t, file)
			views := attached(t, name, bin, plain, list)
			if out, err := exec.Command(bin, "fold", "--in-place", filepath.Join(folded, filepath.Base(file))).CombinedOutput(); err != nil {
				t.Fatalf("fold: %v: %s", err, out)
			} else if len(out) > 0 || t.Failed() || refused[name] != "" { // it cannot be folded
				return
			}
			if again := attached(t, name, bin, folded, list); again != views {
				t.Errorf("the folded list is not the same to cni-exec:\n%s", kerneltest.Diff(views, again))
			}
		})
	}
}

// views separates what cni-exec prints of the attachment from the rest.
const views = "---- views ----"

// changing matches what is another one for each attachment: MAC addresses, link-local ones, times, and the
// spaces of columns.
var changing = regexp.MustCompile(`([0-9a-f]{2}:){5}[0-9a-f]{2}|fe80::[0-9a-f:]+|[0-9-]+T[0-9:]+Z| +[0-9.]+ ?m?s\b *`)

// attached attaches, checks and detaches a container with the network of a directory, and returns what
// cni-exec prints of it meanwhile.
func attached(t *testing.T, name, bin, dir string, l list) string {
	t.Helper()
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-ec", attach)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(bin)+":"+os.Getenv("PATH"), "VIEWS="+views,
		"EXAMPLES="+examples, "NETCONFPATH="+dir, "NETWORK="+l.Name, "PUBLISH="+l.publish())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	host := newHost(t)
	before := kerneltest.Links(t, host)
	var out []byte
	err = host.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err })
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
		return ""
	}
	if after := kerneltest.Links(t, host); !slices.Equal(veths(after), veths(before)) {
		t.Errorf("links are left: %q, before %q", veths(after), veths(before))
	}
	parts := strings.Split(text, views)
	if err != nil || len(parts) != 3 {
		t.Fatalf("%v:\n%s", err, text)
	}
	return changing.ReplaceAllString(strings.ReplaceAll(parts[1], dir, "DIR"), "#")
}

// newHost returns a host with eth0 and a default route, and eth1 without addresses.
func newHost(t *testing.T) *netns.NS {
	t.Helper()
	host := kerneltest.NS(t)
	kerneltest.LoUp(t, host)
	for _, n := range []string{"0", "1"} {
		kerneltest.AddLink(t, host, rtnl.LinkSpec{Name: "eth" + n, Up: true, Peer: &rtnl.LinkSpec{Name: "lan" + n}})
		kerneltest.Address(t, host, "lan"+n)
	}
	kerneltest.WaitUp(t, host, "eth0", "eth1")
	eth0 := kerneltest.Address(t, host, "eth0", "192.0.2.1/24")
	kerneltest.DefaultRoutes(t, host, eth0, "192.0.2.254")
	return host
}

// veths returns the names of veths and of what bandwidth makes for them.
func veths(links []rtnl.Link) (names []string) {
	for _, l := range links {
		if l.Kind == "veth" || l.Kind == "ifb" {
			names = append(names, l.Name)
		}
	}
	return names
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
		if !slices.Contains([]string{"cnibox", "cni-exec", "netavark"}, name) && !slices.Contains(shown, name) {
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
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
