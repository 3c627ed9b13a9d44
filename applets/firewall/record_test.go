package firewall_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/dbus/dbustest"
	"github.com/cnibox/cnibox/spec"
)

// recordOf returns the path of the record for c1 or c2.
func (n *bridged) recordOf(id string) string {
	return filepath.Join(n.Records, record.Name(spec.Attachment{Network: "net1", ContainerID: id, IfName: "eth0"}))
}

// recordedHandles returns the recorded rule handles by address, or nil without a record.
func (n *bridged) recordedHandles(id string) map[string][]uint64 {
	n.T.Helper()
	b, err := os.ReadFile(n.recordOf(id))
	if err != nil {
		return nil
	}
	var rec struct {
		Handles map[string][]uint64 `json:"handles"`
	}
	n.NoError(json.Unmarshal(b, &rec))
	return rec.Handles
}

var ruleHandle = regexp.MustCompile(`(?m)^.* # handle (\d+)$`)

// handles returns the handles of the rules in CNI-FORWARD that contain a text.
func (n *bridged) handles(family, text string) (all []uint64) {
	n.T.Helper()
	for _, m := range ruleHandle.FindAllStringSubmatch(n.Tool("", "nft", "-a", "list", "chain", family, "filter", "CNI-FORWARD"), -1) {
		if h, _ := strconv.ParseUint(m[1], 10, 64); strings.Contains(m[0], text) {
			all = append(all, h)
		}
	}
	return all
}

// wantRecord requires a record with the handles of the attachment's rules. It may also have that of
// the jump to the administrator's chain, which the attachment added or found.
func (n *bridged) wantRecord(what, id string) {
	n.T.Helper()
	got := n.recordedHandles(id)
	if len(got) != 2 {
		n.T.Errorf("%s: on record for %s: %v", what, id, got)
	}
	for family, ip := range map[string]string{"ip": "10.9.0.1" + id[1:], "ip6": "fd00:9::1" + id[1:]} {
		jump := n.handles(family, "jump CNI-ADMIN")
		rules := slices.DeleteFunc(slices.Clone(got[ip]), func(h uint64) bool { return slices.Contains(jump, h) })
		if want := n.handles(family, "addr "+ip+" "); len(want) != 3 || !slices.Equal(rules, want) {
			n.T.Errorf("%s: on record for %s: %v, want %v", what, ip, got[ip], want)
		}
	}
}

// The record has the handles of the rules, and is deleted with them.
func TestKernelFirewallRecord(t *testing.T) {
	n := newBridged(t)
	for range 2 {
		for _, id := range []string{"c1", "c2"} {
			n.NoError(n.firewall(spec.Add, id, ""))
			n.wantRecord("after ADD", id)
		}
	}
	if jump := n.handles("ip", "jump CNI-ADMIN"); len(jump) != 1 || !slices.Contains(n.recordedHandles("c1")["10.9.0.11"], jump[0]) {
		t.Errorf("on record for c1: %v, want the jump %v as well", n.recordedHandles("c1"), jump)
	}
	n.Tool("flush chain ip filter CNI-FORWARD\ndelete table ip6 filter", "nft", "-f", "-")
	n.NoError(n.firewall(spec.Restore, "c1", ""))
	n.wantRecord("after RESTORE", "c1")
	n.NoError(n.firewall(spec.Add, "c1", `"backend":"nftables"`))
	if got := n.recordedHandles("c1"); got != nil {
		t.Errorf("with the backend nftables: on record %v", got)
	}
	n.NoError(n.firewall(spec.Restore, "c2", ""))
	n.wantRecord("after RESTORE", "c2")
	n.NoError(n.firewall(spec.Add, "c1", ""))
	n.NoError(n.firewall(spec.Del, "c1", ""))
	_, err := n.Do(spec.GC, "firewall", spec.Call{}, `"cni.dev/valid-attachments":[]`, "")
	n.NoError(err)
	n.wantNoRules("after GC", "ip", "ip6")
	if got := n.Files(); got != "" {
		t.Errorf("records left: %s", got)
	}
}

// A record that outlived the rules, of an ADD with another backend and other addresses, hides nothing from CHECK.
func TestKernelFirewallStaleRecord(t *testing.T) {
	for name, keys := range map[string]string{"nftables": `"backend":"nftables"`, "firewalld": ""} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			lose := func() { w.Tool("", "nft", "flush", "ruleset") }
			w.NoError(w.verb(spec.Add, 1, ""))
			lose()
			if name == "firewalld" {
				socket := dbustest.Bus(t)
				lose = dbustest.Start(t, socket).Reload
				keys = `"backend":"firewalld","dbusSocket":"` + socket + `"`
			}
			moved := strings.NewReplacer("10.9.0.11", "10.9.0.77", "fd00:9::11", "fd00:9::77").Replace(w.result(1))
			for _, v := range []spec.Verb{spec.Add, spec.Restore} {
				w.Result(w.Do(v, "firewall", w.callOf(1), keys, moved))
				w.Result(w.Do(spec.Check, "firewall", w.callOf(1), keys, moved))
				lose()
				if _, err := w.Do(spec.Check, "firewall", w.callOf(1), keys, moved); err == nil {
					t.Errorf("after %s: CHECK finds nothing wrong", v)
				}
			}
		})
	}
}

// CHECK and DEL find the rules of their attachment and no others, even if the record is lost, or
// has the handles of rules that iptables replaced, or of another attachment.
func TestKernelFirewallWrongRecord(t *testing.T) {
	for name, spoil := range map[string]func(n *bridged){
		"lost":       func(n *bridged) { n.NoError(os.Remove(n.recordOf("c1"))) },
		"unreadable": func(n *bridged) { n.NoError(os.WriteFile(n.recordOf("c1"), []byte("{"), 0o600)) },
		"replaced by iptables": func(n *bridged) {
			for _, program := range []string{"iptables-nft", "ip6tables-nft"} {
				save := n.Tool("", program+"-save")
				n.Tool(save, program+"-restore")
			}
			if got := n.handles("ip", "ip saddr 10.9.0.11 "); len(got) != 1 || slices.Contains(n.recordedHandles("c1")["10.9.0.11"], got[0]) {
				n.T.Fatalf("handles did not change: %v", got)
			}
		},
		"of another attachment": func(n *bridged) {
			b, err := os.ReadFile(n.recordOf("c1"))
			n.NoError(err)
			handles, err := json.Marshal(map[string][]uint64{
				"10.9.0.11": n.recordedHandles("c2")["10.9.0.12"], "10.9.0.12": n.recordedHandles("c2")["10.9.0.12"], "fd00:9::11": {1, 2, 1 << 60},
			})
			n.NoError(err)
			before, _, _ := strings.Cut(string(b), `"handles":`)
			n.NoError(os.WriteFile(n.recordOf("c1"), fmt.Appendf(nil, `%s"handles":%s}`, before, handles), 0o600))
		},
		"one rule replaced": func(n *bridged) {
			n.Tool("", "iptables-nft", "-D", "CNI-FORWARD", "-s", "10.9.0.11", "-j", "ACCEPT")
			n.Tool("", "iptables-nft", "-A", "CNI-FORWARD", "-s", "10.9.0.11", "-j", "ACCEPT")
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newBridged(t)
			n.NoError(n.firewall(spec.Add, "c1", ""))
			n.NoError(n.firewall(spec.Add, "c2", ""))
			spoil(n)
			n.NoError(n.firewall(spec.Check, "c1", ""))
			n.NoError(n.firewall(spec.Del, "c1", ""))
			if got := n.ruleset(); strings.Contains(got, "10.9.0.11") || strings.Contains(got, "fd00:9::11") {
				t.Errorf("after DEL\n%s", got)
			}
			n.NoError(n.firewall(spec.Check, "c2", ""))
		})
	}
}

// CHECK reports each missing rule. It does not require the one that the reference does not add,
// since the attachment may be the reference's.
func TestKernelFirewallRecordCheck(t *testing.T) {
	n := newBridged(t)
	n.NoError(n.firewall(spec.Add, "c1", ""))
	n.NoError(n.firewall(spec.Add, "c2", ""))
	for rule, want := range map[string]string{
		"CNI-FORWARD -s 10.9.0.12 -j ACCEPT":                                                            "rule -s 10.9.0.12 -j ACCEPT of chain CNI-FORWARD of table ip filter",
		"CNI-FORWARD -d 10.9.0.12 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT":                 "rule -d 10.9.0.12 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT of chain",
		"CNI-FORWARD -m comment --comment CNI\x00firewall\x00plugin\x00admin\x00overrides -j CNI-ADMIN": "rule -j CNI-ADMIN of chain CNI-FORWARD",
		"FORWARD -m comment --comment CNI\x00firewall\x00plugin\x00rules -j CNI-FORWARD":                "rule -j CNI-FORWARD of chain FORWARD",
	} {
		args := strings.Fields(rule)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "\x00", " ")
		}
		n.Tool("", "iptables-nft", append([]string{"-D"}, args...)...)
		for _, id := range []string{"c1", "c2"} {
			err := n.firewall(spec.Check, id, "")
			if lacks := err != nil && spec.AsError(err).Code == spec.CodeCheck && strings.Contains(err.Error(), want); lacks != (id == "c2" || !strings.Contains(rule, "10.9")) {
				t.Errorf("without %q: CHECK of %s: %v", args, id, err)
			}
		}
		n.NoError(n.firewall(spec.Restore, "c2", ""))
		n.NoError(n.firewall(spec.Check, "c1", ""))
		n.NoError(n.firewall(spec.Check, "c2", ""))
	}
}

// STATUS reports that records cannot be written, and ADD fails without leaving anything.
func TestKernelFirewallWithoutRecords(t *testing.T) {
	n := newBridged(t)
	n.NoError(os.WriteFile(n.Records, nil, 0o600))
	if err := n.firewall(spec.Status, "c1", ""); err == nil || spec.AsError(err).Code != spec.CodeNotReady {
		t.Errorf("STATUS: %v", err)
	}
	if err := n.firewall(spec.Add, "c1", ""); err == nil || spec.AsError(err).Code != spec.CodeIO {
		t.Errorf("ADD: %v", err)
	}
	n.wantNoRules("after a failed ADD", "ip", "ip6")
	n.NoError(n.firewall(spec.Status, "c1", `"backend":"nftables"`))
	for _, v := range []spec.Verb{spec.Add, spec.Check, spec.Restore, spec.Del} {
		n.NoError(n.firewall(v, "c1", `"backend":"nftables"`))
	}
}
