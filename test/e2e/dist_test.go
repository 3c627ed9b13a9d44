package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
)

// The scripts in dist are valid, and cni-exec accepts the command lines of the units.
func TestDistScripts(t *testing.T) {
	scripts, _ := filepath.Glob("../../dist/*.openrc")
	more, _ := filepath.Glob("../../dist/*.procd")
	for _, script := range append(scripts, more...) {
		if out, err := exec.Command("sh", "-n", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	}
	units, _ := filepath.Glob("../../dist/cnibox-[^d]*.service") // all but that of the DHCP daemon
	if len(scripts) < 3 || len(more) < 2 || len(units) != 4 {
		t.Fatalf("there are %q, %q and %q", scripts, more, units)
	}
	w := &world{Host: &applettest.Host{T: t, Dir: t.TempDir(), Here: true}}
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, w.Path("cni-exec"))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, unit := range units {
		b, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		lines := 0
		for line := range strings.Lines(string(b)) {
			_, args, ok := strings.Cut(strings.TrimSpace(line), "=/opt/cni/bin/cni-exec ")
			if !ok {
				continue
			}
			lines++
			w.must(unit+": "+line, w.run("", nil, append(append([]string{w.Path("cni-exec")}, strings.Fields(args)...), "--help")...))
		}
		if lines == 0 {
			t.Errorf("%s starts nothing", unit)
		}
	}
}

// procdStub prints the calls of OpenWrt's rc.common, functions.sh and procd.sh. An option is set by
// a variable of its name.
const procdStub = `
config_load() { echo "config_load $*"; }
config_get() { eval "$1=\"\${option_$3:-${4-}}\""; }
for f in procd_open_instance procd_set_param procd_close_instance procd_add_reload_trigger; do
	eval "$f() { echo $f \"\$@\"; }"
done
boot() { start; }
reload_service() { start; }
action=$2
. "$1"
start() { start_service; service_triggers; }
reload() { reload_service; }
[ "$USE_PROCD" = 1 ] && $action
`

// The procd scripts run the right commands with the options of UCI.
func TestDistProcd(t *testing.T) {
	const (
		dhcp = "config_load cnibox-dhcp\nprocd_open_instance\nprocd_set_param command %s dhcp daemon -socketpath %s\n" +
			"procd_set_param respawn 3600 1 0\nprocd_set_param stderr 1\nprocd_close_instance\nprocd_add_reload_trigger cnibox-dhcp\n"
		watch = "config_load cnibox\nprocd_open_instance\nprocd_set_param command %s reload --watch%s\n" +
			"procd_set_param respawn 3600 1 0\nprocd_set_param stdout 1\nprocd_set_param stderr 1\nprocd_close_instance\nprocd_add_reload_trigger cnibox\n"
		load  = "config_load cnibox\n"
		flags = " --conf-dir /etc/cni/net.d"
	)
	shell := []string{"sh"}
	if box, err := exec.LookPath("busybox"); err == nil {
		shell = []string{box, "sh"}
	}
	for _, tt := range []struct {
		script, action string
		env            []string
		want           string
	}{
		{"cnibox-dhcp", "start", nil, fmt.Sprintf(dhcp, "/opt/cni/bin/cnibox", "/run/cni/dhcp.sock")},
		{"cnibox-dhcp", "reload", []string{"option_cnibox=/a", "option_socket=/b"}, fmt.Sprintf(dhcp, "/a", "/b")},
		{"cnibox", "start", nil, fmt.Sprintf(watch, "/opt/cni/bin/cni-exec", "")},
		{"cnibox", "start", []string{"option_cni_exec=echo", "option_flags=" + flags}, fmt.Sprintf(watch, "echo", flags)},
		{"cnibox", "boot", []string{"option_cni_exec=echo", "option_flags=" + flags}, load + "reload" + flags + "\n" + fmt.Sprintf(watch, "echo", flags)},
		{"cnibox", "reload", []string{"option_cni_exec=echo"}, fmt.Sprintf(watch, "echo", "") + load + "reload\n"},
	} {
		cmd := exec.Command(shell[0], append(shell[1:], "-euc", procdStub, "sh", "../../dist/"+tt.script+".procd", tt.action)...)
		cmd.Env = append(os.Environ(), tt.env...)
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != tt.want {
			t.Errorf("%s %s %q: %v, got\n%swant\n%s", tt.script, tt.action, tt.env, err, out, tt.want)
		}
	}
}
