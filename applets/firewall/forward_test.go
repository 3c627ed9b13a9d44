package firewall_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/spec"
)

// A bridged is an applettest.Bridged for firewall.
type bridged struct{ *applettest.Bridged }

// newBridged returns one, and runs the test in parallel.
func newBridged(t *testing.T) *bridged {
	t.Helper()
	t.Parallel()
	return &bridged{applettest.NewBridged(t)}
}

// firewall runs a verb for c1 or c2.
func (n *bridged) firewall(v spec.Verb, id, keys string) error {
	n.Helper()
	c := n.C1
	if id == "c2" {
		c = n.C2
	}
	prev := fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"br0"},{"name":"v%s"},{"name":"eth0","sandbox":%q}],
		"ips":[{"address":"10.9.0.1%s/24","interface":2},{"address":"fd00:9::1%s/64","interface":2}]}`, id, c.Path, id[1:], id[1:])
	_, err := n.Do(v, "firewall", c.Call(), keys, prev)
	return err
}

func (n *bridged) dropForward() {
	n.Helper()
	n.Tool("", "iptables-nft", "-P", "FORWARD", "DROP")
	n.Tool("", "ip6tables-nft", "-P", "FORWARD", "DROP")
}

// If the policy of FORWARD becomes DROP after ADD, as when Docker starts, egress, traffic between
// containers and published ports still work in both families, and nothing else.
func TestKernelFirewallForwardDropAfterAdd(t *testing.T) {
	for _, backend := range []string{"", "iptables"} {
		t.Run("backend "+backend, func(t *testing.T) {
			n := newBridged(t)
			keys := `"backend":"` + backend + `"`
			// with br_netfilter, bridged frames pass FORWARD too
			_ = n.NS.SetSysctls(netns.Sysctl{Key: "net/bridge/bridge-nf-call-iptables", Value: "1", Optional: true},
				netns.Sysctl{Key: "net/bridge/bridge-nf-call-ip6tables", Value: "1", Optional: true})
			n.Listen(n.C1.NS, "one")
			n.Listen(n.C2.NS, "two")
			n.Listen(n.Outside, "out")
			n.NoError(n.Publish(spec.Add, "c1", applettest.BothProtocols))
			n.NoError(n.firewall(spec.Add, "c1", keys))
			n.NoError(n.firewall(spec.Add, "c2", keys))
			n.dropForward()
			n.NoError(n.firewall(spec.Check, "c1", keys))
			n.NoError(n.firewall(spec.Check, "c2", keys))
			n.WantAnswer(n.C1.NS, "192.0.2.2:80", "out 10.9.0.11")
			n.WantAnswer(n.C1.NS, "[fd00:2::2]:80", "out fd00:9::11")
			n.WantAnswer(n.C1.NS, "10.9.0.12:80", "two 10.9.0.11")
			n.WantAnswer(n.C2.NS, "[fd00:9::11]:80", "one fd00:9::12")
			n.WantAnswer(n.Outside, "192.0.2.1:8080", "one 192.0.2.2")
			n.WantAnswer(n.Outside, "[fd00:2::1]:8080", "one fd00:2::2")
			n.WantAnswer(n.NS, "127.0.0.1:8080", "one 10.9.0.1")
			for _, to := range []string{"10.9.0.11:80", "[fd00:9::11]:80"} { // unpublished
				n.WantNone(n.Outside, "tcp", to)
			}
			n.NoError(n.firewall(spec.Del, "c1", keys))
			for _, to := range []string{"192.0.2.2:80", "[fd00:2::2]:80"} {
				n.WantNone(n.C1.NS, "tcp", to)
			}
		})
	}
}

// ADD creates the tables of iptables-nft without any iptables program on the host, and the last DEL
// leaves the chains.
func TestKernelFirewallCreatesFilterTables(t *testing.T) {
	n := newBridged(t)
	for range 2 {
		n.NoError(n.firewall(spec.Add, "c1", ""))
		n.NoError(n.firewall(spec.Add, "c2", ""))
		made := n.ruleset()
		for _, want := range []string{"table ip filter {", "table ip6 filter {", "\tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy accept;\n"} {
			if !strings.Contains(made, want) {
				t.Errorf("no %q in\n%s", want, made)
			}
		}
		for program, ip := range map[string]string{"iptables-nft": "10.9.0.1%d/32", "ip6tables-nft": "fd00:9::1%d/128"} {
			for _, args := range [][]string{{"-S"}, {"-L", "-v", "-n"}} {
				if got := n.Tool("", program, args...); strings.Contains(got, "ncompatible") || strings.Contains(got, "#") {
					t.Errorf("%s %v: %s", program, args, got)
				}
			}
			save := n.Tool("", program+"-save")
			for i := 1; i <= 2; i++ {
				if want := "-A CNI-FORWARD -s " + fmt.Sprintf(ip, i) + " -j ACCEPT\n"; !strings.Contains(save, want) {
					t.Errorf("no %q in\n%s", want, save)
				}
			}
		}
		if got := n.ruleset(); got != made {
			t.Errorf("listing changed\n%s\nto\n%s", made, got)
		}
		n.NoError(n.firewall(spec.Del, "c1", ""))
		n.NoError(n.firewall(spec.Check, "c2", ""))
		n.NoError(n.firewall(spec.Del, "c2", ""))
		n.NoError(n.firewall(spec.Del, "c2", ""))
		n.wantNoRules("after the last DEL", "ip", "ip6")
	}
}

func (n *bridged) ruleset() string {
	n.Helper()
	return nfttest.Ruleset(n.T, n.NS)
}

// noRules returns the filter tables without a container, as the reference leaves them.
func noRules(families ...string) (text string) {
	for _, family := range families {
		text += "table " + family + " filter {\n\tchain CNI-ADMIN {\n\t}\n\tchain CNI-FORWARD {\n\t\t counter jump CNI-ADMIN\n\t}\n" +
			"\tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy accept;\n\t\t counter jump CNI-FORWARD\n\t}\n}\n"
	}
	return text
}

// wantNoRules requires noRules at the end of the ruleset.
func (n *bridged) wantNoRules(what string, families ...string) {
	n.Helper()
	got := n.ruleset()
	if from := strings.Index(got, "table ip"); from < 0 || got[from:] != noRules(families...) {
		n.Errorf("%s: got\n%s\nwant\n%s", what, got, noRules(families...))
	}
}

// The last DEL keeps the rules of others and those that the administrator changed.
func TestKernelFirewallKeepsForeignFilterRules(t *testing.T) {
	for name, tt := range map[string]struct{ change, want string }{
		"policy":                         {"chain ip filter FORWARD { policy drop; }", "chain FORWARD {\n\t\ttype filter hook forward priority filter; policy drop;\n\t\t counter jump CNI-FORWARD\n\t}\n"},
		"rule of FORWARD":                {"add rule ip filter FORWARD tcp dport 23 drop", "dport 23 drop"},
		"rule of CNI-ADMIN":              {"add rule ip filter CNI-ADMIN tcp dport 23 drop", "chain CNI-ADMIN {\n\t\ttcp dport 23 drop"},
		"rule of CNI-FORW":               {"add rule ip filter CNI-FORWARD tcp dport 23 drop", "jump CNI-ADMIN\n\t\ttcp dport 23 drop"},
		"jump to CNI-FORW":               {"add chain ip filter more\nadd rule ip filter more jump CNI-FORWARD", "chain more {\n\t\tjump CNI-FORWARD"},
		"jump to CNI-ADMIN":              {"add chain ip filter more\nadd rule ip filter more jump CNI-ADMIN", "chain more {\n\t\tjump CNI-ADMIN"},
		"another chain":                  {"add chain ip filter more", "\tchain more {\n\t}\n"},
		"a set":                          {"add set ip filter more { type ipv4_addr; }", "\tset more {\n\t\ttype ipv4_addr\n\t}\n"},
		"CNI-FORWARD of another program": {"flush ruleset\ntable ip filter { chain CNI-FORWARD { }; }", "jump CNI-ADMIN"},
		"table of another program":       {"flush ruleset\ntable ip filter { }", noRules("ip")},
	} {
		t.Run(name, func(t *testing.T) {
			n := newBridged(t)
			n.NoError(n.firewall(spec.Add, "c1", ""))
			n.Tool(tt.change, "nft", "-f", "-")
			n.NoError(n.firewall(spec.Add, "c1", ""))
			n.NoError(n.firewall(spec.Check, "c1", ""))
			n.NoError(n.firewall(spec.Del, "c1", ""))
			got := n.ruleset()
			if !strings.Contains(got, tt.want) || strings.Contains(got, "10.9.0.1") {
				t.Errorf("want %q in\n%s", tt.want, got)
			}
			if !strings.HasSuffix(got, noRules("ip6")) {
				t.Errorf("of IPv6: got\n%s\nwant\n%s", got, noRules("ip6"))
			}
		})
	}
}

// "backend": "nftables" uses only the table of cnibox.
func TestKernelFirewallOwnTable(t *testing.T) {
	n := newBridged(t)
	const alone = `"backend":"nftables"`
	n.NoError(n.firewall(spec.Add, "c1", alone))
	n.NoError(n.firewall(spec.Check, "c1", alone))
	if got := n.ruleset(); strings.Contains(got, " filter {") {
		t.Errorf("made\n%s", got)
	}
	n.NoError(n.firewall(spec.Add, "c2", ""))
	if got := n.ruleset(); strings.Contains(got, "ip saddr 10.9.0.11") {
		t.Errorf("another's ADD made\n%s", got)
	}
	n.NoError(n.firewall(spec.Add, "c1", "")) // change of the backend without DEL
	if got := n.ruleset(); !strings.Contains(got, "ip saddr 10.9.0.11") {
		t.Errorf("from nftables to none: got\n%s", got)
	}
	n.NoError(n.firewall(spec.Add, "c1", alone))
	if got := n.ruleset(); strings.Contains(got, "ip saddr 10.9.0.11") {
		t.Errorf("from none to nftables: got\n%s", got)
	}
	n.NoError(n.firewall(spec.Del, "c2", ""))
	n.wantNoRules("after the last DEL that has something there", "ip", "ip6")
	n.NoError(n.firewall(spec.Check, "c1", alone))
}

// CHECK fails if rules of the attachment are missing, whatever deleted them, and ignores missing
// rules of others. If the jump to them is missing, the next ADD of any container adds the rules of
// all.
func TestKernelFirewallFilterTablesDeleted(t *testing.T) {
	for name, change := range map[string]string{
		"table":       "delete table ip filter",
		"both tables": "delete table ip filter\ndelete table ip6 filter",
		"FORWARD":     "flush chain ip filter FORWARD",
		"all rules":   "flush table ip filter",
	} {
		t.Run(name, func(t *testing.T) {
			n := newBridged(t)
			n.NoError(n.firewall(spec.Add, "c1", ""))
			n.NoError(n.firewall(spec.Add, "c2", ""))
			before := n.ruleset()
			n.Tool(change, "nft", "-f", "-")
			err := n.firewall(spec.Check, "c1", "")
			if err == nil || spec.AsError(err).Code != spec.CodeCheck || !strings.Contains(err.Error(), "table ip filter") {
				t.Errorf("CHECK: %v", err)
			}
			n.NoError(n.firewall(spec.Add, "c2", ""))
			n.NoError(n.firewall(spec.Check, "c1", ""))
			if got := n.ruleset(); len(got) != len(before) { // the order may differ
				t.Errorf("got\n%s\nwant\n%s", got, before)
			}
			n.Tool(change, "nft", "-f", "-")
			n.NoError(n.firewall(spec.Del, "c1", ""))
			n.NoError(n.firewall(spec.Del, "c2", ""))
			if got := n.ruleset(); strings.Contains(got, "10.9.0.1") || strings.Contains(got, "fd00:9::1") || strings.Contains(got, "table ip filter {") && !strings.Contains(change, "flush") {
				t.Errorf("after the last DEL\n%s", got)
			}
		})
	}
	n := newBridged(t)
	n.NoError(n.firewall(spec.Add, "c1", ""))
	n.NoError(n.firewall(spec.Add, "c2", ""))
	n.Tool("", "iptables-nft", "-D", "CNI-FORWARD", "-s", "10.9.0.12", "-j", "ACCEPT")
	n.NoError(n.firewall(spec.Check, "c1", ""))
	if err := n.firewall(spec.Check, "c2", ""); err == nil || !strings.Contains(err.Error(), "rule -s 10.9.0.12 -j ACCEPT") {
		t.Errorf("CHECK of c2: %v", err)
	}
}

// DEL and GC delete the rules in the filter table even if the table of cnibox, which has the
// owners, was deleted.
func TestKernelFirewallDelWithoutOwnTable(t *testing.T) {
	n := newBridged(t)
	n.NoError(n.firewall(spec.Add, "c1", ""))
	n.Tool("delete table inet cnibox", "nft", "-f", "-")
	n.NoError(n.firewall(spec.Del, "c1", ""))
	n.wantNoRules("after DEL without our table", "ip", "ip6")
	n.NoError(n.firewall(spec.Add, "c1", ""))
	n.NoError(n.firewall(spec.Add, "c2", ""))
	gc := func(valid string) {
		t.Helper()
		_, err := n.Do(spec.GC, "firewall", spec.Call{}, `"cni.dev/valid-attachments":[`+valid+`]`, "")
		n.NoError(err)
	}
	gc(`{"containerID":"c2","ifname":"eth0"}`)
	if got := n.ruleset(); strings.Contains(got, "10.9.0.11") {
		t.Errorf("after GC\n%s", got)
	}
	n.NoError(n.firewall(spec.Check, "c2", ""))
	gc("")
	n.wantNoRules("after GC of all", "ip", "ip6")
}

// Concurrent ADDs and DELs, while iptables changes the same tables, have the same outcome as
// sequential ones.
func TestKernelFirewallConcurrentWithIptables(t *testing.T) {
	n := newBridged(t)
	stop, done := make(chan bool), make(chan error, 1)
	go func() { // changes the policy, adds and deletes a rule
		done <- n.NS.Do(func() error {
			for {
				select {
				case <-stop:
					return nil
				default:
				}
				for _, args := range [][]string{{"-P", "FORWARD", "DROP"}, {"-A", "FORWARD", "-p", "tcp", "-j", "DROP"},
					{"-D", "FORWARD", "-p", "tcp", "-j", "DROP"}, {"-P", "FORWARD", "ACCEPT"}} {
					if out, err := exec.Command("iptables-nft", args...).CombinedOutput(); err != nil {
						return fmt.Errorf("iptables-nft %q: %w: %s", args, err, out)
					}
				}
			}
		})
	}()
	errs := make(chan error)
	for _, id := range []string{"c1", "c2"} {
		go func() {
			for range 10 {
				for _, v := range []spec.Verb{spec.Add, spec.Check, spec.Del} {
					if err := n.firewall(v, id, ""); err != nil {
						errs <- fmt.Errorf("%s of %s: %w", v, id, err)
						return
					}
				}
			}
			errs <- nil
		}()
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	n.wantNoRules("at the end", "ip", "ip6")
}

// An attachment by a version without filter tables passes CHECK and DEL, and the next ADD of any
// container adds its rules.
func TestKernelFirewallUpgradeFromNoFilterRules(t *testing.T) {
	n := newBridged(t)
	n.Listen(n.Outside, "out")
	n.NoError(n.firewall(spec.Add, "c1", ""))
	before := n.Tool("", "nft", "list", "table", "inet", "cnibox")
	before = strings.ReplaceAll(before, ` filter"`, `"`) // marks that there are filter rules
	old := func() {
		t.Helper()
		n.Tool("flush ruleset\n"+before, "nft", "-f", "-")
		n.NoError(n.firewall(spec.Check, "c1", ""))
		if got := n.ruleset(); strings.Contains(got, " filter {") {
			t.Fatalf("not as before:\n%s", got)
		}
	}
	old()
	n.NoError(n.firewall(spec.Del, "c1", ""))
	if got := n.ruleset(); strings.Contains(got, " filter {") || strings.Contains(got, "10.9.0.11") {
		t.Errorf("after DEL\n%s", got)
	}
	old()
	n.NoError(n.firewall(spec.Add, "c2", `"iptablesAdminChainName":"MINE"`))
	n.NoError(n.firewall(spec.Check, "c1", ""))
	n.dropForward()
	if got := n.Ask(n.C1.NS, "tcp", "192.0.2.2:80"); got != "out 10.9.0.11" {
		t.Errorf("got %q", got)
	}
	n.NoError(n.firewall(spec.Del, "c2", ""))
	n.NoError(n.firewall(spec.Check, "c1", ""))
	n.NoError(n.firewall(spec.Del, "c1", ""))
	if got := n.ruleset(); strings.Contains(got, "10.9.0.1") || strings.Contains(got, "fd00:9::1") {
		t.Errorf("after the last DEL\n%s", got)
	}
}
