package lint_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets"
	"github.com/cnibox/cnibox/applets/lint"
	"github.com/cnibox/cnibox/spec"
)

func linter() *lint.Linter {
	return &lint.Linter{Applets: applets.All()}
}

// run lints a document as the file net.conflist and returns the findings without the directory.
func run(t *testing.T, doc string) []string {
	t.Helper()
	return runFiles(t, linter(), map[string]string{"net.conflist": doc})
}

// runFiles is run for several files.
func runFiles(t *testing.T, l *lint.Linter, files map[string]string) (lines []string) {
	t.Helper()
	dir := t.TempDir()
	for name, doc := range files {
		os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700) // WriteFile fails without it
		if err := os.WriteFile(filepath.Join(dir, name), []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, err := l.Files(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		lines = append(lines, strings.ReplaceAll(f.String(), dir+"/", ""))
	}
	return lines
}

// list returns the configuration of a network, with plugins from line 2.
func list(plugins string) string {
	return `{"cniVersion":"1.1.0","name":"net","plugins":[` + "\n" + plugins + "\n]}"
}

// bridge returns a network with plugin bridge, and keys in line 3.
func bridge(keys string) string {
	return list(`{"type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/24"},` + "\n" + keys + "}")
}

// ranges returns a network with bridge and host-local, and keys of "ipam" in line 3.
func ranges(keys string) string {
	return list(`{"type":"bridge","ipam":{"type":"host-local",` + "\n" + keys + "}}")
}

// chained returns a network with bridge, and another plugin in line 3.
func chained(plugin string) string {
	return list(`{"type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}},` + "\n" + plugin)
}

// pluginWith returns a network with a plugin and host-local, and keys in line 3.
func pluginWith(plugin, keys string) string {
	return list(`{"type":"` + plugin + `","ipam":{"type":"host-local","subnet":"10.1.0.0/24"},` + "\n" + keys + "}")
}

// static returns a network with bridge and static, and keys of "ipam" in line 3.
func static(keys string) string {
	return list(`{"type":"bridge","ipam":{"type":"static",` + "\n" + keys + "}}")
}

// matches compares a finding with the one that is wanted. … stands for words that are in the golden
// file of test/messages, which compares findings with the errors of add.
func matches(got, want string) bool {
	parts := strings.Split(want, "…")
	for i, part := range parts {
		parts[i] = regexp.QuoteMeta(part)
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".+") + "$").MatchString(got)
}

// Each document has one mistake, which is the only finding.
func TestOneMistake(t *testing.T) {
	tests := []struct{ name, doc, want string }{
		// JSON
		{"empty", ``, `1:1: the file …`},
		{"no object", `[]`, `1:1: an array … an object …`},
		{"comma behind the last", "{\"name\":\"n\",\n\"plugins\":[],\n}", `2:13: not JSON: a comma before …`},
		{"comma missing", "{\"name\":\"n\"\n\"plugins\":[]}", `2:1: not JSON: a comma is missing before this`},
		{"end missing", "{\"name\":\"n\",", `1:13: not JSON: the end …`},
		{"comma too many", "{\"name\":\"n\",\n,\"plugins\":[]}", `2:1: not JSON: a comma too many: remove it`},
		{"comma missing in an array", "{\"plugins\":[{}\n{}]}", `2:1: not JSON: a comma is missing before this`},
		{"colon missing", "{\n\"name\" \"n\"}", `2:8: not JSON: a colon is missing before this`},
		{"value missing", "{\"name\":\n}", `2:1: not JSON: a value is missing before this`},
		{"brace missing", "{\"plugins\":[\n{\"type\":\"bridge\"]}", `2:17: not JSON: "}" is missing before this`},
		{"bracket missing", "{\"plugins\":[\n{\"type\":\"bridge\"}}", `2:18: not JSON: "]" is missing before this`},
		{"brace too many", list(`{"type":"loopback"}`) + "\n}", `4:1: not JSON: the document …: remove it`},
		{"key without quotes", "{\nname:\"n\"}", `2:1: not JSON: a key …`},
		{"string without quotes", "{\n\"name\": net}", `2:10: not JSON: a string must be in double quotes`},
		{"address without quotes", "{\n\"gateway\": 10.1.0.1}", `2:16: not JSON: this is not a number: write a string in double quotes`},
		{"quote missing", "{\n\"type\":\"bridge, \"mtu\":1500}", `2:18: not JSON: a comma or a double quote is missing before this`},
		{"quote missing at the end of a line", "{\n\"name\":\"n,\n\"plugins\":[]}", `2:11: not JSON: a string must end in its line, with a double quote; a tab in it is written \t`},
		{"bool of Python", "{\n\"name\": True}", `2:9: not JSON: "True" is written true`},
		{"comment", "{\n// a network\n\"name\":\"n\"}", `2:1: not JSON: there are no comments in JSON`},
		{"single quotes", "{\n'name':'n'}", `2:1: not JSON: strings are …`},
		{"quotes of a word processor", "{\n“name”:\"n\"}", `2:1: not JSON: '“' is neither a double quote nor a blank: replace it`},
		{"no-break space", "{\n\u00a0\"name\":\"n\"}", `2:1: not JSON: '\u00a0' is neither a double quote nor a blank: replace it`},
		{"byte order mark", "\ufeff" + list(`{"type":"loopback"}`), `1:1: not JSON: a byte order mark: save the file as UTF-8 without one`},
		{"UTF-16", "\xff\xfe{\x00}\x00", `1:1: not JSON: the file is UTF-16: save it as UTF-8`},
		{"two documents", list(`{"type":"dummy","ipam":{"type":"static"}}`) + "\n{}", `4:1: not JSON: the document …: remove it`},
		{"twice", bridge(`"mtu":1400,"mtu":1500`), `3:12: "mtu" is here twice: the last one counts`},
		{"twice in other letters", bridge(`"isGateway":true,"isgateway":false`), `3:18: "isgateway" is here twice: the last one counts`},
		{"object twice", bridge(`"ipam":{"type":"host-local","subnet":"10.2.0.0/24"}`), `3:1: "ipam" is here twice: the last one counts`},

		// the list
		{"name missing", `{"cniVersion":"1.1.0","plugins":[{"type":"loopback"}]}`, `1:1: "name" is missing`},
		{"name is a number", `{"cniVersion":"1.1.0","name":7,"plugins":[{"type":"loopback"}]}`, `1:30: "name" is "7" and must be a string`},
		{"name with a blank", `{"cniVersion":"1.1.0","name":"my net","plugins":[{"type":"loopback"}]}`, `1:30: invalid characters found in network name; my net`},
		{"name too long", `{"cniVersion":"1.1.0","name":"` + strings.Repeat("n", 201) + `","plugins":[{"type":"loopback"}]}`, `1:30: network name is too long; 200 bytes at most`},
		{"one plugin in a list's file", `{"cniVersion":"1.1.0","name":"net",` + "\n" + `"type":"loopback"}`, `2:8: the configuration of one plugin belongs in a file that ends in .conf, or in the list "plugins"`},
		{"no plugins", `{"cniVersion":"1.1.0","name":"net","plugins":[]}`, `1:46: no plugins …: "plugins" is empty`},
		{"plugins missing", `{"cniVersion":"1.1.0","name":"net"}`, `1:1: no plugin configs found, neither in it nor in net`},
		{"plugins is an object", `{"cniVersion":"1.1.0","name":"net","plugins":{"type":"loopback"}}`, `1:46: "plugins" is an object … an array …`},
		{"plugin misspelled", `{"cniVersion":"1.1.0","name":"net","plugin":[],"plugins":[{"type":"loopback"}]}`, `1:36: unknown key "plugin": did you mean "plugins"?`},
		{"version of two numbers", `{"cniVersion":"1.0","name":"net","plugins":[{"type":"loopback"}]}`, `1:15: incompatible …; config is "1.0", this … [0.1.0 0.2.0 0.3.0 0.3.1 0.4.0 1.0.0 1.1.0]`},
		{"version of the future", `{"cniVersion":"9.0.0","name":"net","plugins":[{"type":"loopback"}]}`, `1:15: incompatible …; config is "9.0.0", this … [0.1.0 0.2.0 0.3.0 0.3.1 0.4.0 1.0.0 1.1.0]`},
		{"version is a number", `{"cniVersion":1,"name":"net","plugins":[{"type":"loopback"}]}`, `1:15: "cniVersion" is "1" and must be a string`},
		{"versions is a string", `{"cniVersions":"1.0.0","name":"net","plugins":[{"type":"loopback"}]}`, `1:16: "cniVersions" "1.0.0" is not a list of strings`},
		{"disableCheck is a word", `{"cniVersion":"1.1.0","name":"net","disableCheck":"yes","plugins":[{"type":"loopback"}]}`, `1:51: "disableCheck": "yes" is neither true nor false`},
		{"key of a plugin", `{"cniVersion":"1.1.0","name":"net","ipMasq":true,"plugins":[{"type":"bridge"}]}`, `1:36: unknown key "ipMasq": it belongs in an element of "plugins"`},
		{"disableCheck is a number", `{"cniVersion":"1.1.0","name":"net","disableCheck":1,"plugins":[{"type":"loopback"}]}`, `1:51: "disableCheck": "1" is neither true nor false`},
		{"disableGc misspelled", `{"cniVersion":"1.1.0","name":"net","disableGCs":true,"plugins":[{"type":"loopback"}]}`, `1:36: unknown key "disableGCs": did you mean "disableGC"?`},
		{"version too old for firewall", `{"cniVersion":"0.3.1","name":"net","plugins":[{"type":"bridge"},` + "\n" + `{"type":"firewall"}]}`, `2:1: incompatible CNI versions; config is "0.3.1", plugin supports ["0.4.0" "1.0.0" "1.1.0"]`},

		{"no version for firewall", `{"name":"net","plugins":[{"type":"flannel"},` + "\n" + `{"type":"firewall"}]}`, `2:1: incompatible CNI versions; config is "0.1.0", plugin supports ["0.4.0" "1.0.0" "1.1.0"]; without "cniVersion" it is the first one`},

		// plugins
		{"type missing", list(`{"bridge":"br0"}`), `2:1: plugins[0]: missing 'type'`},
		{"type is a path", list(`{"type":"../bin/sh"}`), `2:9: invalid plugin type "../bin/sh"`},
		{"type misspelled", list(`{"type":"brigde"}`), `2:9: unknown plugin "brigde": did you mean "bridge"?`},
		{"type is a number", list(`{"type":1}`), `2:9: "plugins[0].type" is a number where a string is expected`},
		{"ipam misspelled", list(`{"type":"bridge","ipam":{"type":"host-locale","subnet":"10.1.0.0/24"}}`), `2:33: unknown plugin "host-locale": did you mean "host-local"?`},
		{"ipam without type", list(`{"type":"bridge",` + "\n" + `"ipam":{"subnet":"10.1.0.0/24"}}`), `3:8: "ipam" has no "type": nothing reads it`},
		{"type of ipam is of another plugin", list(`{"type":"bridge","ipam":{"type":"portmap"}}`), `2:33: "ipam.type" "portmap" is not an address plugin: ` + "`cnibox` lists these"},
		{"ipam is a string", list(`{"type":"bridge","ipam":"host-local"}`), `2:25: "plugins[0].ipam" is a string where an object is expected`},
		{"ipam missing for ptp", list(`{"type":"ptp"}`), `2:1: ptp interface requires an IPAM configuration; no plugin …: set "ipam.type"`},
		{"ipam of a chained plugin", chained(`{"type":"tuning","ipam":{"type":"dhcp"}}`), `3:18: unknown key "ipam"`},
		{"capability of no plugin", bridge(`"capabilities":{"portMappings":true}`), `3:17: bridge with host-local does not use the capability "portMappings"`},
		{"capability misspelled", chained(`{"type":"portmap","capabilities":{"portMapping":true}}`), `3:35: portmap does not use the capability "portMapping": did you mean "portMappings"?`},
		{"capability missing", chained(`{"type":"portmap","capabilities":{"portMappings":false}}`), `3:9: portmap publishes no port without "capabilities": {"portMappings": true}`},
		{"subnet of all addresses", ranges(`"subnet":"0.0.0.0/0"`), `3:10: 0.0.0.0/0 is every address: "subnet" must be that of the containers, as 10.1.0.0/24`},
		{"subnet of all IPv6 addresses", ranges(`"ranges":[[{"subnet":"::/0"}]]`), `3:22: ::/0 is every address: "subnet" must be that of the containers, as fd00:1::/64`},
		{"capability is a string", chained(`{"type":"portmap","capabilities":{"portMappings":"true"}}`), `3:50: "plugins[1].capabilities.portMappings" is a string … a bool …`},
		{"capability ips with dhcp", list(`{"type":"bridge","ipam":{"type":"dhcp"},"capabilities":{"ips":true}}`), `2:57: bridge with dhcp does not use the capability "ips"`},
		{"args.cni.ips is a string", bridge(`"args":{"cni":{"ips":"10.1.0.5"}}`), `3:22: "args.cni.ips" is a string … an array …`},
		{"dns is a list", bridge(`"dns":["10.1.0.1"]`), `3:7: "plugins[0].dns" is an array … an object …`},
		{"nameserver is a name", bridge(`"dns":{"nameservers":["ns.example.com"]}`), `3:23: dns.nameservers[0]: "ns.example.com" is not an IP address`},
		{"nameserver misspelled", bridge(`"dns":{"nameserver":["10.1.0.1"]}`), `3:8: unknown key "nameserver": did you mean "nameservers"?`},
		{"prevResult with a bad address", bridge(`"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.5"}]}`), `3:54: prevResult: "ips[0].address": "10.1.0.5" is not …, as 10.1.0.5/24 or fd00::5/64`},
		{"mac of multicast", bridge(`"mac":"01:00:5e:00:00:01"`), `3:7: mac: "01:00:5e:00:00:01" is a multicast MAC address`},
		{"mac of a plugin without", chained(`{"type":"portmap","mac":"02:00:00:00:00:01","capabilities":{"portMappings":true}}`), `3:19: unknown key "mac"`},

		// order
		{"chained first", list(`{"type":"portmap"}`), `2:9: portmap works on what an earlier plugin made, and is the first of the list`},
		{"chained before the interface", list(`{"type":"loopback"},` + "\n" + `{"type":"tuning"},` + "\n" + `{"type":"bridge"}`), `3:9: tuning is before the plugin that makes the interface: put it behind that`},
		{"two interfaces", chained(`{"type":"dummy","ipam":{"type":"host-local","subnet":"10.2.0.0/24"}}`), `3:9: dummy makes the interface that bridge has made already: a list has one of them`},
		{"ipam as a plugin", chained(`{"type":"host-local","ipam":{"type":"host-local","subnet":"10.2.0.0/24"}}`), `3:9: host-local gives addresses to another plugin: name it in the "type" of that one's "ipam"`},

		// bridge
		{"key misspelled", bridge(`"isGatway":true`), `3:1: unknown key "isGatway": did you mean "isGateway"?`},
		{"key of ipam", bridge(`"subnet":"10.1.0.0/24"`), `3:1: unknown key "subnet": it belongs in "ipam"`},
		{"key of no plugin", bridge(`"frobnicate":true`), `3:1: unknown key "frobnicate"`},
		{"bool as a string", bridge(`"ipMasq":"true"`), `3:10: "ipMasq" is a string … a bool …`},
		{"number as a string", bridge(`"mtu":"1500"`), `3:7: "mtu" is a string … an integer …`},
		{"fraction", bridge(`"mtu":1500.5`), `3:7: "mtu" is a number 1500.5 where an integer is expected`},
		{"mtu too large", bridge(`"mtu":70000`), `3:7: "mtu" 70000 is not within 68 to 65535`},
		{"mtu too small", bridge(`"mtu":67`), `3:7: "mtu" 67 is not within 68 to 65535`},
		{"bridge's name too long", bridge(`"bridge":"a-bridge-with-a-long-name"`), `3:10: "bridge" "a-bridge-with-a-long-name": interface name is too long; interface name should be less than 16 characters`},
		{"bridge's name with a slash", bridge(`"bridge":"br/0"`), `3:10: "bridge" "br/0": interface name contains / …`},
		{"backend", bridge(`"ipMasqBackend":"ipfw"`), `3:17: unknown ipmasq backend "ipfw": "ipMasqBackend" is "iptables" or "nftables"`},
		{"hairpin and promisc", bridge(`"hairpinMode":true,"promiscMode":true`), `3:34: cannot set hairpin mode and promiscuous mode at the same time: drop "hairpinMode" or "promiscMode"`},
		{"container interface down", bridge(`"disableContainerInterface":true`), `3:29: cannot use IPAM when DisableContainerInterface flag is set: drop "ipam" or "disableContainerInterface"`},
		{"vlan too large", bridge(`"vlan":4095`), `3:8: invalid VLAN ID 4095: "vlan" is within 0 to 4094`},
		{"trunk without end", bridge(`"vlanTrunk":[{"minID":5}]`), `3:14: minID and maxID should be configured simultaneously, maxID is missing`},
		{"trunk key misspelled", bridge(`"vlanTrunk":[{"ids":5}]`), `3:15: unknown key "ids": did you mean "id"?`},
		{"trunk is an object", bridge(`"vlanTrunk":{"id":5}`), `3:13: "vlanTrunk" is an object … an array …`},

		// host-local
		{"no range", list(`{"type":"bridge",` + "\n" + `"ipam":{"type":"host-local"}}`), `3:8: no IP …; set "ipam.subnet" or "ipam.ranges"`},
		{"subnet is an address", ranges(`"subnet":"10.1.0.0"`), `3:10: "ipam.subnet": "10.1.0.0" is not …, as 10.1.0.0/24 or fd00::/64`},
		{"subnet with host bits", ranges(`"subnet":"10.1.0.1/24"`), `3:10: invalid range set 0: Network has … 10.1.0.0; "ipam.subnet" is 10.1.0.1/24: write 10.1.0.0/24`},
		{"subnet too small", ranges(`"subnet":"10.1.0.0/31"`), `3:10: invalid range set 0: Network 10.1.0.0/31 too small …; "ipam.subnet" needs a … /30 or less`},
		{"subnet of multicast", ranges(`"subnet":"224.1.0.0/24"`), `3:10: invalid range set 0: network 224.1.0.0/24 has no address for an interface`},
		{"start outside", ranges(`"subnet":"10.1.0.0/24","rangeStart":"10.2.0.5"`), `3:37: invalid range set 0: RangeStart 10.2.0.5 not in network 10.1.0.0/24; "ipam.rangeStart" must be from 10.1.0.1 to 10.1.0.254`},
		{"end outside", ranges(`"subnet":"10.1.0.0/24",` + "\n" + `"rangeEnd":"10.1.1.5"`), `4:12: invalid range set 0: RangeEnd 10.1.1.5 not in network 10.1.0.0/24; "ipam.rangeEnd" must be from 10.1.0.1 to 10.1.0.254`},
		{"end before start", ranges(`"subnet":"10.1.0.0/24","rangeStart":"10.1.0.9","rangeEnd":"10.1.0.5"`), `3:37: invalid range set 0: RangeStart 10.1.0.9 is after RangeEnd 10.1.0.5; exchange the values of "ipam.rangeStart" and "ipam.rangeEnd"`},
		{"gateway of the other family", ranges(`"subnet":"10.1.0.0/24","gateway":"fd00::1"`), `3:34: invalid range set 0: gateway fd00::1 cannot be … 10.1.0.0/24; "ipam.gateway" must be …, as 10.1.0.1`},
		{"gateway outside", ranges(`"subnet":"10.1.0.0/24","gateway":"10.2.0.1","routes":[{"dst":"0.0.0.0/0","gw":"10.2.0.1"}]`), `3:34: the gateway 10.2.0.1 is in …; "ipam.gateway" must be in 10.1.0.0/24`},
		{"gateway outside of a range", ranges(`"ranges":[[{"subnet":"10.1.0.0/24","gateway":"10.2.0.1"}]]`), `3:46: the gateway 10.2.0.1 is in …; "ipam.ranges[0][0].gateway" must be in 10.1.0.0/24`},
		{"gateway is broadcast", ranges(`"subnet":"10.1.0.0/24","gateway":"10.1.0.255"`), `3:34: invalid range set 0: gateway 10.1.0.255 cannot be … 10.1.0.0/24; "ipam.gateway" must be …, as 10.1.0.1`},
		{"gateway is a name", ranges(`"subnet":"10.1.0.0/24","gateway":"router"`), `3:34: "ipam.gateway": "router" is not an IP address`},
		{"ranges without the inner list", ranges(`"ranges":[{"subnet":"10.1.0.0/24"}]`), `3:11: "ipam.ranges[0]" is an object … an array …`},
		{"empty set", ranges(`"ranges":[[]]`), `2:25: invalid range set 0: empty range set`},
		{"families in a set", ranges(`"ranges":[[{"subnet":"10.1.0.0/24"},{"subnet":"fd00::/64"}]]`), `2:25: invalid range set 0: mixed address families`},
		{"sets overlap", ranges(`"ranges":[[{"subnet":"10.1.0.0/24"}],` + "\n" + `[{"subnet":"10.1.0.0/25"}]]`), `2:25: range set 0 overlaps with 1`},
		{"second range outside", ranges(`"ranges":[[{"subnet":"10.1.0.0/24"}],` + "\n" + `[{"subnet":"fd00::/64",` + "\n" + `"rangeStart":"fd01::5"}]]`), `5:14: invalid range set 1: RangeStart fd01::5 not in network fd00::/64; "ipam.ranges[1][0].rangeStart" must be from fd00::1 to fd00::ffff:ffff:ffff:ffff`},
		{"key of a range misspelled", ranges(`"ranges":[[{"subnet":"10.1.0.0/24","rangestrat":"10.1.0.5"}]]`), `3:36: unknown key "rangestrat": did you mean "rangeStart"?`},
		{"nothing but the gateway", ranges(`"subnet":"10.1.0.0/24","rangeStart":"10.1.0.1","rangeEnd":"10.1.0.1"`), `2:25: invalid range set 0: 10.1.0.1-10.1.0.1 has no address but gateways`},
		{"relative dataDir", ranges(`"subnet":"10.1.0.0/24","dataDir":"leases"`), `3:34: "dataDir" "leases" is not an absolute path`},
		{"route without dst", ranges(`"subnet":"10.1.0.0/24","routes":[{"gw":"10.1.0.1"}]`), `3:34: ipam.routes[0].dst: missing`},
		{"route's gateway of the other family", ranges(`"subnet":"10.1.0.0/24","routes":[{"dst":"0.0.0.0/0","gw":"fd00::1"}]`), `3:58: ipam.routes[0].gw: gateway fd00::1 is of another family than 0.0.0.0/0`},
		{"route's key misspelled", ranges(`"subnet":"10.1.0.0/24","routes":[{"dst":"0.0.0.0/0","gateway":"10.1.0.1"}]`), `3:53: unknown key "gateway"`},
		{"route's gateway out of reach", ranges(`"subnet":"10.1.0.0/24","routes":[{"dst":"0.0.0.0/0","gw":"10.9.0.1"}]`), `3:58: the gateway 10.9.0.1 of the … 0.0.0.0/0 is in …; "ipam.routes[0].gw" must be in 10.1.0.0/24`},
		{"routes is a string", ranges(`"subnet":"10.1.0.0/24","routes":"0.0.0.0/0"`), `3:33: "ipam.routes" is a string … an array …`},
		{"two addresses in 0.2.0", `{"cniVersion":"0.2.0","name":"net","plugins":[{"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.2.0.0/24"}]]}}]}`, `1:71: CNI version 0.2.0 does not support more than 1 address per family`},

		// static and dhcp
		{"address without length", static(`"addresses":[{"address":"10.1.0.5"}]`), `3:25: the 'address' field …, got: '10.1.0.5'; ipam.addresses[0].address: write an …, as 10.1.0.5/24 or fd00::5/64`},
		{"address of no interface", static(`"addresses":[{"address":"0.0.0.0/0"}]`), `3:25: ipam.addresses[0].address: no interface can have the address "0.0.0.0/0"`},
		{"gateway with a length", static(`"addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1/24"}]`), `3:49: invalid gateway address: 10.1.0.1/24; ipam.addresses[0].gateway: write an address without prefix length and zone, as 10.1.0.1 or fd00::1`},
		{"addresses of strings", static(`"addresses":["10.1.0.5/24"]`), `3:14: "ipam.addresses[0]" is a string where an object is expected`},
		{"addresses misspelled", static(`"addrs":[{"address":"10.1.0.5/24"}]`), `3:1: unknown key "addrs"`},
		{"socket", list(`{"type":"bridge","ipam":{"type":"dhcp",` + "\n" + `"daemonSocketPath":"dhcp.sock"}}`), `3:20: "ipam.daemonSocketPath" "dhcp.sock" is not an absolute path`},
		{"option", list(`{"type":"bridge","ipam":{"type":"dhcp",` + "\n" + `"request":[{"option":"resolver"}]}}`), `3:22: Can not parse option: "resolver" is neither a known name nor 0 to 255`},
		{"nothing to lease", list(`{"type":"bridge","ipam":{"type":"dhcp",` + "\n" + `"ipv4":false}}`), `3:8: "ipam.ipv4" is false and "ipam.ipv6" is not true: there is nothing to lease`},

		// the other interfaces
		{"mode of macvlan", pluginWith("macvlan", `"mode":"bridged"`), `3:8: unknown macvlan …: "bridged": "mode" is …`},
		{"mode of ipvlan", pluginWith("ipvlan", `"mode":"l4"`), `3:8: unknown ipvlan mode: "l4" is not one of l2, l3, l3s`},
		{"flag of ipvlan", pluginWith("ipvlan", `"flag":"shared"`), `3:8: unknown ipvlan flag: "shared" is not one of bridge, private, vepa`},
		{"vlan without master", pluginWith("vlan", `"vlanId":5`), `2:1: "master" field is required. It specifies …`},
		{"vlanId", pluginWith("vlan", `"master":"eth0","vlanId":5000`), `3:26: invalid … 5000: "vlanId" must … 0 to 4094`},
		{"vlanID of another", pluginWith("vlan", `"master":"eth0","vlan":5`), `3:17: unknown key "vlan": did you mean "vlanId"?`},
		{"master", pluginWith("macvlan", `"master":"eth 0"`), `3:10: "master" "eth 0": interface name contains / …`},
		{"host-device without device", list(`{"type":"host-device"}`), `2:9: specify … "device", …`},
		{"PCI address", list(`{"type":"host-device","pciBusID":"3b:00.2"}`), `2:34: "pciBusID" "3b:00.2" is not a PCI address such as 0000:3b:00.2`},
		{"hwaddr", list(`{"type":"host-device","hwaddr":"1:2"}`), `2:32: "hwaddr": "1:2" is not … 6 octets, as 02:00:00:00:00:05`},
		{"owner of a tap", pluginWith("tap", `"owner":"root"`), `3:9: "owner" is a string where an integer of 0 or more is expected`},
		{"key of dummy", pluginWith("dummy", `"mtu":1400`), `3:1: unknown key "mtu"`},
		{"key of loopback", list(`{"type":"loopback","bridge":"br0"}`), `2:20: unknown key "bridge"`},
		{"key of the delegate", list(`{"type":"flannel",` + "\n" + `"delegate":{"isGatway":true}}`), `3:13: unknown key "isGatway": did you mean "isGateway"?`},
		{"value of the delegate", list(`{"type":"flannel",` + "\n" + `"delegate":{"vlan":4095}}`), `3:20: invalid VLAN ID 4095: "vlan" is within 0 to 4094`},
		{"key beside the delegate", list(`{"type":"flannel",` + "\n" + `"hairpinMode":true}`), `3:1: unknown key "hairpinMode": it belongs in "delegate"`},
		{"ipam in the delegate", list(`{"type":"flannel",` + "\n" + `"delegate":{"ipam":{}}}`), `3:20: 'delegate' dictionary: it must not have an 'ipam' field: flannel makes it of its own "ipam"`},
		{"key of flannel's ipam", list(`{"type":"flannel",` + "\n" + `"ipam":{"datadir":"/x","resolv":"/y"}}`), `3:24: unknown key "resolv": did you mean "resolvConf"?`},
		{"subnetFile", list(`{"type":"flannel","subnetFile":"subnet.env"}`), `2:32: "subnetFile" "subnet.env" is not an absolute path`},

		// the chained plugins
		{"backend of portmap", chained(`{"type":"portmap","backend":"ipvs","capabilities":{"portMappings":true}}`), `3:29: unrecognized backend "ipvs": "backend" must be nftables (or iptables, which means the same here)`},
		{"condition", chained(`{"type":"portmap","conditionsV4":["-m","time"],"capabilities":{"portMappings":true}}`), `3:34: conditionsV4: conditions: "-m" is not understood; understood are, of iptables: [!] -s -d -i -o, -m mark [!] --mark; of nft: ip|ip6 saddr|daddr, iifname, oifname, meta mark, ct mark, each with an optional != and a value or { a, b }`},
		{"bit of the mark", chained(`{"type":"portmap","markMasqBit":40,"capabilities":{"portMappings":true}}`), `3:33: MasqMarkBit must be between 0 and 31: markMasqBit is 40`},
		{"port of a mapping", chained(`{"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":70000}]},"capabilities":{"portMappings":true}}`), `3:83: runtimeConfig.portMappings[0].containerPort: Invalid container …: 70000: it must be from 1 to 65535`},
		{"protocol of a mapping", chained(`{"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"protocol":"icmp"}]},"capabilities":{"portMappings":true}}`), `3:97: runtimeConfig.portMappings[0].protocol: "icmp" must be …`},
		{"backend of firewall", chained(`{"type":"firewall","backend":"ufw"}`), `3:30: unrecognized … "ufw": "backend" must be …`},
		{"policy", chained(`{"type":"firewall","ingressPolicy":"closed"}`), `3:36: unknown ingress policy: "closed": "ingressPolicy" must be open, same-bridge or isolated`},
		{"chain of the administrator", chained(`{"type":"firewall","iptablesAdminChainName":"FORWARD"}`), `3:45: "iptablesAdminChainName" "FORWARD" is taken: it needs a chain of its own`},
		{"burst without rate", chained(`{"type":"bandwidth","ingressBurst":1000}`), `3:36: if burst …; ingressBurst is 1000, ingressRate is missing`},
		{"rate too small", chained(`{"type":"bandwidth","egressRate":7}`), `3:34: egressRate 7 is less than 8 bits per second`},
		{"rate with a unit", chained(`{"type":"bandwidth","egressRate":"10M"}`), `3:34: "egressRate" is a string where an integer of 0 or more is expected`},
		{"latency", chained(`{"type":"bandwidth","egressRate":8000,"latency":-1}`), `3:49: "latency" -1 is not within 1 to 10000 milliseconds`},
		{"sysctl as a number", chained(`{"type":"tuning","sysctl":{"net.core.somaxconn":500}}`), `3:27: "sysctl": the value of net.core.somaxconn is not a string`},
		{"sysctl of the host", chained(`{"type":"tuning","sysctl":{"kernel.shmmax":"1"}}`), `3:27: invalid net …: "kernel.shmmax"; a key of "sysctl" must begin …`},
		{"txqlen", chained(`{"type":"tuning","txQLen":-1}`), `3:27: "txQLen" -1 is not within 0 to 2147483647`},
		{"table of sbr", chained(`{"type":"sbr","table":254}`), `3:23: "table" 254 is not within 1 to 2147483647, or is one that every namespace has (253 to 255)`},
		{"gateways of sbr", chained(`{"type":"sbr","gateways":["10.1.0.1","10.1.0.2"]}`), `3:26: gateways list has multiple addresses of one family: [10.1.0.1 10.1.0.2]`},
		{"vrf without name", chained(`{"type":"vrf"}`), `3:1: configuration is … (vrfname): interface name …; set "vrfname"`},
		{"table of vrf", chained(`{"type":"vrf","vrfname":"blue","table":255}`), `3:40: "table" 255 is not within 1 to 2147483647, or is one that every namespace has (253 to 255)`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := run(t, tt.doc); len(got) != 1 || !matches(got[0], "net.conflist:"+tt.want) {
				t.Errorf("got\n%s\nwant\nnet.conflist:%s", strings.Join(got, "\n"), tt.want)
			}
		})
	}
}

// What ADD refuses is a fault; what it takes, and may hurt later, is a risk. The gravest of one place is kept.
func TestSeverity(t *testing.T) {
	for doc, want := range map[string]lint.Severity{
		``:                              lint.Fault,
		"{\n":                           lint.Fault,
		bridge(`"mtu":67`):              lint.Fault,
		list(`{"type":"brigde"}`):       lint.Fault,
		list(`{"type":"portmap"}`):      lint.Fault,
		ranges(`"subnet":"0.0.0.0/0"`):  lint.Fault,
		bridge(`"isGatway":true`):       lint.Risk,
		bridge(`"mtu":1400,"mtu":1500`): lint.Risk,
		chained(`{"type":"portmap"}`):   lint.Risk,
		list(`{"type":"bridge","ipam":{"subnet":"10.1.0.0/24"}}`): lint.Risk,
		bridge(`"capabilities":{"portMappings":true}`):            lint.Risk,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "net.conflist"), []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		found, err := linter().Files(dir)
		if err != nil || len(found) != 1 || found[0].Severity != want {
			t.Errorf("%s: want one %s, got %v: %v", doc, want, found, err)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "net.conflist.old"), []byte(bridge(`"mtu":67`)), 0o600); err != nil {
		t.Fatal(err)
	}
	if found, err := linter().Files(dir); err != nil || len(found) != 1 || found[0].Severity != lint.Hint {
		t.Errorf("a file that nothing reads: got %v: %v", found, err)
	}
}

func TestExamplesHaveNoFindings(t *testing.T) {
	found, err := linter().Files("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if filepath.Base(f.File) != "oci-hook.json" { // it is for podman --hooks-dir
			t.Error(f)
		}
	}
}

// There are no findings in all keys that the reference documents, nor in its examples.
func TestReferenceDocumentation(t *testing.T) {
	tests := map[string]string{
		"bridge": list(`{"type":"bridge","bridge":"mynet0","isGateway":true,"isDefaultGateway":true,"forceAddress":false,"ipMasq":true,
			"ipMasqBackend":"nftables","mtu":1400,"hairpinMode":true,"promiscMode":false,"vlan":100,"vlanTrunk":[{"id":101},{"minID":200,"maxID":299}],
			"preserveDefaultVlan":false,"macspoofchk":true,"enabledad":true,"portIsolation":true,"mac":"02:00:00:00:00:01",
			"capabilities":{"mac":true,"ips":true,"dns":true},"args":{"cni":{"mac":"02:00:00:00:00:02"}},
			"dns":{"nameservers":["10.10.0.1"],"domain":"example.net","search":["example.net"],"options":["ndots:2"]},
			"ipam":{"type":"host-local","subnet":"10.10.0.0/16"}}`),
		"bridge, layer 2":       list(`{"type":"bridge","bridge":"mynet0","disableContainerInterface":true,"ipam":{}}`),
		"a single one":          `{"cniVersion":"0.3.1","name":"mynet","type":"bridge","isDefaultGateway":true,"ipam":{"type":"host-local","subnet":"10.10.0.0/16"}}`,
		"without version":       `{"name":"mynet","type":"macvlan","master":"eth0","linkInContainer":false,"ipam":{"type":"dhcp"}}`,
		"flannel's least":       `{"name":"mynet","type":"flannel"}`,
		"ptp":                   list(`{"type":"ptp","ipMasq":true,"ipMasqBackend":"iptables","mtu":1400,"dns":{"nameservers":["10.1.1.1","8.8.8.8"]},"ipam":{"type":"host-local","subnet":"10.1.1.0/24"}}`),
		"macvlan":               list(`{"type":"macvlan","master":"eth0","mode":"vepa","mtu":1400,"mac":"02:00:00:00:00:01","bcqueuelen":2000,"linkInContainer":true,"capabilities":{"mac":true},"ipam":{"type":"dhcp"}}`),
		"macvlan, layer 2":      list(`{"type":"macvlan","master":"eth0","ipam":{}}`),
		"ipvlan":                list(`{"type":"ipvlan","master":"eth0","mode":"l3s","mtu":1400,"linkInContainer":false,"ipam":{"type":"host-local","subnet":"10.1.2.0/24"}}`),
		"ipvlan in a chain":     list(`{"type":"host-device","device":"eth1","ipam":{"type":"dhcp"}},{"type":"tuning"}`),
		"ipvlan behind another": list(`{"type":"another-plugin","key":1,"ipam":{"type":"its-ipam","pool":"a"}},{"type":"ipvlan","mode":"l3"}`),
		"vlan":                  list(`{"type":"vlan","master":"eth0","vlanId":5,"mtu":1400,"linkInContainer":false,"dns":{"nameservers":["10.1.1.1"]},"ipam":{"type":"host-local","subnet":"10.1.1.0/24"}}`),
		"host-device":           list(`{"type":"host-device","device":"enp0s1","ipam":{"type":"static","addresses":[{"address":"10.0.0.5/24"}]}}`),
		"host-device, PCI":      list(`{"type":"host-device","pciBusID":"0000:3d:00.1","capabilities":{"deviceID":true}}`),
		"host-device, path":     list(`{"type":"host-device","kernelpath":"/sys/devices/pci0000:00/0000:00:03.0"}`),
		"host-device, address":  list(`{"type":"host-device","hwaddr":"02:00:00:00:00:01"}`),
		"loopback":              list(`{"type":"loopback"}`),
		"dummy":                 list(`{"type":"dummy","ipam":{"type":"host-local","subnet":"10.1.2.0/24"}}`),
		"tap": list(`{"type":"tap","multiQueue":true,"mac":"00:11:22:33:44:55","mtu":1500,"selinuxContext":"system_u:system_r:container_t:s0",
			"owner":0,"group":0,"bridge":"br1","capabilities":{"mac":true},"args":{"cni":{"ips":["10.0.0.1"]}},"ipam":{}}`),
		"host-local": list(`{"type":"bridge","capabilities":{"ipRanges":true,"ips":true},"args":{"cni":{"ips":["10.10.1.20"]}},"ipam":{"type":"host-local",
			"ranges":[[{"subnet":"10.10.0.0/16","rangeStart":"10.10.1.20","rangeEnd":"10.10.3.50","gateway":"10.10.0.254"},{"subnet":"172.16.5.0/24"}],
			[{"subnet":"3ffe:ffff:0:01ff::/64","rangeStart":"3ffe:ffff:0:01ff::0010","rangeEnd":"3ffe:ffff:0:01ff::0020"}]],
			"routes":[{"dst":"0.0.0.0/0"},{"dst":"192.168.0.0/16","gw":"10.10.5.1","mtu":1400,"advmss":1360,"priority":100,"table":50,"scope":0},{"dst":"3ffe:ffff:0:01ff::1/64"}],
			"dataDir":"/run/my-orchestrator/container-ipam-state","resolvConf":"/etc/resolv.conf"}}`),
		"host-local, gateways by other ways": list(`{"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24","gateway":"169.254.1.1"}],[{"subnet":"fd00::/64","gateway":"fe80::1"}]],
			"routes":[{"dst":"169.254.1.1/32"},{"dst":"0.0.0.0/0","gw":"169.254.1.1"},{"dst":"fd01::/64","gw":"fe80::2"}]}}`),
		"host-local, ranges of the runtime": list(`{"type":"ptp","capabilities":{"ipRanges":true},"ipam":{"type":"host-local","routes":[{"dst":"0.0.0.0/0"}]}}`),
		"static": list(`{"type":"bridge","capabilities":{"ips":true},"ipam":{"type":"static","addresses":[{"address":"10.10.0.1/24","gateway":"10.10.0.254"},
			{"address":"3ffe:ffff:0:01ff::1/64","gateway":"3ffe:ffff:0::1"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"192.168.0.0/16","gw":"10.10.5.1"},
			{"dst":"10.10.5.0/24","gw":"10.10.0.2"},{"dst":"3ffe:ffff:0:01ff::1/64"}],
			"dns":{"nameservers":["8.8.8.8"],"domain":"example.com","search":["example.com"],"options":["ndots:1"]}}}`),
		"dhcp": list(`{"type":"macvlan","master":"eth0","ipam":{"type":"dhcp","daemonSocketPath":"/run/cni/dhcp.sock","priority":10,
			"request":[{"skipDefault":false},{"option":"routers"},{"option":"121"}],
			"provide":[{"option":"12","value":"host"},{"option":"host-name","fromArg":"K8S_POD_NAME"},{"option":"vendor-class-identifier","value":"cni"}]}}`),
		"tuning": chained(`{"type":"tuning","sysctl":{"net.core.somaxconn":"500","net.ipv4.conf.IFNAME.arp_filter":"1"},"mac":"c2:b0:57:49:47:f1","mtu":1454,
			"promisc":true,"allmulti":true,"txQLen":2000,"dataDir":"/run/cni/tuning","capabilities":{"mac":true},"args":{"cni":{"mtu":1300,"sysctl":{"net.core.somaxconn":"100"}}}}`),
		"portmap": chained(`{"type":"portmap","capabilities":{"portMappings":true},"backend":"iptables","snat":true,"masqAll":false,"markMasqBit":13,
			"conditionsV4":["!","-d","192.0.2.0/24"],"conditionsV6":["!","-d","fc00::/7"],"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"10.0.0.1"}]}}`),
		"portmap, another chain": chained(`{"type":"portmap","capabilities":{"portMappings":true},"externalSetMarkChain":"KUBE-MARK-MASQ"}`),
		"bandwidth":              chained(`{"type":"bandwidth","ingressRate":123,"ingressBurst":456,"egressRate":123,"egressBurst":456}`),
		"bandwidth by the pod":   chained(`{"type":"bandwidth","capabilities":{"bandwidth":true}}`),
		"firewall":               chained(`{"type":"firewall","backend":"firewalld","firewalldZone":"trusted","iptablesAdminChainName":"CNI-ADMIN","ingressPolicy":"same-bridge"}`),
		"sbr":                    chained(`{"type":"sbr","gateways":["10.1.0.1","fd00::1"],"addSourceHints":true}`),
		"sbr with a table":       chained(`{"type":"sbr","table":100}`),
		"vrf":                    chained(`{"type":"vrf","vrfname":"blue","table":1001}`),
		"flannel": list(`{"type":"flannel","subnetFile":"/run/flannel/subnet.env","dataDir":"/var/lib/cni/flannel","capabilities":{"portMappings":false,"ips":true,"mac":true},
			"delegate":{"type":"bridge","bridge":"mynet0","mtu":1400,"hairpinMode":true,"isDefaultGateway":true},
			"ipam":{"type":"host-local","dataDir":"/run/ipam","routes":[{"dst":"10.96.0.0/12"}]},"runtimeConfig":{"anything":1}},{"type":"portmap","capabilities":{"portMappings":true}}`),
		"flannel, macvlan":           list(`{"type":"flannel","delegate":{"type":"macvlan","master":"eth0","mode":"bridge"}}`),
		"flannel, another":           list(`{"type":"flannel","delegate":{"type":"another","key":1},"capabilities":{"bandwidth":true}}`),
		"keys of a list":             `{"cniVersion":"1.0.0","cniVersions":["0.4.0","1.0.0"],"name":"net","disableCheck":true,"disableGC":"false","loadOnlyInlinedPlugins":true,"plugins":[{"type":"loopback"}]}`,
		"keys of podman and nerdctl": `{"args":{"podman_labels":{"a":"b","A":"b"}},"cniVersion":"1.0.0","name":"net","nerdctlID":"17f2","nerdctlLabels":{"a":"b"},"plugins":[{"type":"loopback"}]}`,
		"arguments of a runtime":     bridge(`"args":{"podman_labels":{"a":"b"},"cni":{"labels":[{"key":"app","value":"web"}],"x":1}},"_comment":"why","// and":2`),
	}
	for name, doc := range tests {
		t.Run(name, func(t *testing.T) {
			file := "net.conflist"
			if !strings.Contains(doc, `"plugins"`) {
				file = "net.conf"
			}
			for _, line := range runFiles(t, linter(), map[string]string{file: doc}) {
				t.Error(line)
			}
		})
	}
}

// Mistakes that are in several files together.
func TestMistakesAcrossFiles(t *testing.T) {
	network := func(name, bridge, subnet string) string {
		return `{"cniVersion":"1.1.0",` + "\n" + `"name":"` + name + `","plugins":[{"type":"bridge","bridge":"` + bridge + `","isGateway":true,` +
			"\n" + `"ipam":{"type":"host-local","subnet":"` + subnet + `"}}]}`
	}
	segment := func(name, plugin, keys string) string {
		return `{"cniVersion":"1.1.0","name":"` + name + `","plugins":[` + "\n" + `{"type":"` + plugin + `",` + keys + `,"ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}]}`
	}
	on := func(link, alias string) *lint.Linter {
		l := linter()
		l.Routes = []lint.HostRoute{{Dst: netip.MustParsePrefix("0.0.0.0/0"), Link: "eth0"},
			{Dst: netip.MustParsePrefix("10.0.0.0/8"), Link: "eth0"}, {Dst: netip.MustParsePrefix("10.1.0.128/25"), Link: link, Alias: alias}}
		return l
	}
	tests := map[string]struct {
		linter *lint.Linter
		files  map[string]string
		want   []string
	}{
		"mistake in what is twice": {linter(), map[string]string{"a.conflist": bridge(`"vlan":5,"vlan":4095`)},
			[]string{`a.conflist:3:10: "vlan" is here twice: the last one counts`, `a.conflist:3:17: invalid VLAN ID 4095: "vlan" is within 0 to 4094`}},
		"apart": {linter(), map[string]string{"a.conflist": network("a", "br0", "10.1.0.0/24"), "b.conflist": network("b", "br1", "10.1.1.0/24"), "c.txt": "no network"}, nil},
		"one name": {linter(), map[string]string{"a.conflist": network("a", "br0", "10.1.0.0/24"), "b.conflist": network("a", "br0", "10.1.0.0/24")},
			[]string{`b.conflist:2:8: network "a" is in a.conflist too, which is used instead`}},
		"one name, a list is before one plugin": {linter(), map[string]string{"a.conf": `{"cniVersion":"1.1.0","name":"a","type":"loopback"}`, "b.conflist": network("a", "br0", "10.1.0.0/24")},
			[]string{`a.conf:1:30: network "a" is in b.conflist too, which is used instead`}},
		"addresses given out twice": {linter(), map[string]string{"a.conflist": network("a", "br0", "10.1.0.0/16"), "b.conflist": network("b", "br0", "10.1.2.0/24")},
			[]string{`b.conflist:3:38: addresses of 10.1.2.0/24 of network "b" are given out by network "a" as well, 10.1.0.0/16 in a.conflist`}},
		"a static address of a range": {linter(), map[string]string{"a.conflist": network("a", "br0", "10.1.0.0/16"), "b.conflist": static(`"addresses":[{"address":"10.1.0.5/16"}]`)},
			[]string{`b.conflist:3:25: addresses of 10.1.0.5/16 of network "net" are given out by network "a" as well, 10.1.0.0/16 in a.conflist`}},
		"two links for one subnet": {linter(), map[string]string{"a.conflist": network("a", "br0", `10.1.0.0/24","rangeEnd":"10.1.0.9`), "b.conflist": network("b", "br1", `10.1.0.0/16","rangeStart":"10.1.9.0`)},
			[]string{`b.conflist:3:38: 10.1.0.0/16 of network "b" overlaps with 10.1.0.0/24 of network "a" in a.conflist: the host can route it to one link`}},
		"ranges of one LAN": {linter(), map[string]string{"a.conflist": network("a", "br0", `10.1.0.0/24","rangeEnd":"10.1.0.9`), "b.conflist": network("b", "br0", `10.1.0.0/24","rangeStart":"10.1.0.20`)}, nil},
		"addresses of two VLANs": {linter(), map[string]string{"a.conflist": segment("a", "vlan", `"master":"eth0","vlanId":5`), "b.conflist": segment("b", "vlan", `"master":"eth0","vlanId":6`),
			"c.conflist": segment("c", "macvlan", `"master":"eth0"`), "d.conflist": segment("d", "macvlan", `"master":"eth1"`), "e.conflist": segment("e", "bridge", `"bridge":"br5"`), "f.conflist": segment("f", "bridge", `"bridge":"br6"`)}, nil},
		"addresses of one LAN": {linter(), map[string]string{"a.conflist": segment("a", "macvlan", `"master":"eth0"`), "b.conflist": segment("b", "macvlan", `"master":"eth0"`)},
			[]string{`b.conflist:2:72: addresses of 10.1.0.0/24 of network "b" are given out by network "a" as well, 10.1.0.0/24 in a.conflist`}},
		"host's route": {on("eth1", ""), map[string]string{"a.conflist": network("a", "br0", "10.1.0.0/24")},
			[]string{`a.conflist:3:38: 10.1.0.0/24: the host has a route to 10.1.0.128/25 by eth1, so it does not reach containers there`}},
		"route of the bridge":    {on("br0", ""), map[string]string{"a.conflist": network("a", "br0", "10.1.0.0/24")}, nil},
		"route of an attachment": {on("veth1", spec.Attachment{Network: "a", ContainerID: "c1", IfName: "eth0"}.Label(255)), map[string]string{"a.conflist": network("a", "br0", "10.1.0.0/24")}, nil},
		"host's network around it": {&lint.Linter{Applets: applets.All(), Routes: []lint.HostRoute{{Dst: netip.MustParsePrefix("10.0.0.0/8"), Link: "eth0", Connected: true}}},
			map[string]string{"a.conflist": network("a", "br0", "10.1.0.0/24"), "b.conflist": strings.ReplaceAll(segment("b", "macvlan", `"master":"eth0"`), "10.1.0.0", "10.2.0.0")},
			[]string{`a.conflist:3:38: 10.1.0.0/24 is a part of the host's network 10.0.0.0/8 on eth0: the host does not reach what is there any more`}},
		"route of the other network": {&lint.Linter{Applets: applets.All(), Routes: []lint.HostRoute{{Dst: netip.MustParsePrefix("10.1.0.0/16"), Link: "br0", Connected: true}}},
			map[string]string{"a.conflist": network("a", "br0", "10.1.0.0/16"), "b.conflist": network("b", "br1", "10.1.2.0/24")},
			[]string{`b.conflist:3:38: addresses of 10.1.2.0/24 of network "b" are given out by network "a" as well, 10.1.0.0/16 in a.conflist`}},
		"route of the other network, which was changed": {&lint.Linter{Applets: applets.All(), Routes: []lint.HostRoute{{Dst: netip.MustParsePrefix("10.1.0.0/16"), Link: "br0", Connected: true}}},
			map[string]string{"a.conflist": network("a", "br0", "10.2.0.0/16"), "b.conflist": network("b", "br1", "10.1.2.0/24")},
			[]string{`b.conflist:3:38: 10.1.2.0/24 is a part of the host's network 10.1.0.0/16 on br0: the host does not reach what is there any more`}},
		"files of other names": {linter(), map[string]string{"a.conflist.bak": list(`{"type":"loopback"}`), "b.yaml": "{", "kubeconfig": "apiVersion: v1", "lock": "", ".a.conflist.swp": "{}", "d/e.txt": "{}"},
			[]string{`a.conflist.bak:1:1: nothing reads this file: the name of a list must end in .conflist, that of the configuration of one plugin in .conf or .json`,
				`b.yaml:1:1: nothing reads this file: the name of a list must end in .conflist, that of the configuration of one plugin in .conf or .json`}},
		"master": {&lint.Linter{Applets: applets.All(), HasLink: func(name string) bool { return name == "eth0" }},
			map[string]string{"a.conflist": pluginWith("macvlan", `"master":"eth0"`), "b.conflist": list(`{"type":"vlan","vlanId":5,` + "\n" + `"master":"eth1","ipam":{"type":"dhcp"}}`), "c.conflist": list(`{"type":"ipvlan","master":"eth1","linkInContainer":true,"ipam":{"type":"dhcp"}}`)},
			[]string{`b.conflist:1:30: network "net" is in a.conflist too, which is used instead`, `b.conflist:3:10: failed to … "eth1": the host does not have this link; "master" must be …`,
				`c.conflist:1:30: network "net" is in a.conflist too, which is used instead`}},
		"drop-in": {linter(), map[string]string{"a.conflist": network("a", "br0", "10.1.0.0/24"), "a/x.conf": "{\n\"type\":\"tuning\",\n\"mtuu\":1400}"},
			[]string{`a/x.conf:3:1: unknown key "mtuu": did you mean "mtu"?`}},
		"broken drop-in": {linter(), map[string]string{"a.conflist": network("a", "br0", "10.1.0.0/24"), "a/x.conf": "{\n\"type\":\"tuning\",}"},
			[]string{`a/x.conf:2:16: not JSON: a comma before …`}},
		"external plugin": {&lint.Linter{Applets: applets.All(), Path: []string{"/nonexistent"}}, map[string]string{"a.conflist": list(`{"type":"its-own","key":1}`)},
			[]string{`a.conflist:2:9: plugin "its-own" is neither built in nor in /nonexistent`}},
		"drop-in that has a key twice": {linter(), map[string]string{"a.conflist": network("a", "br0", "10.1.0.0/24"), "a/x.conf": "{\n\"type\":\"tuning\",\n\"mtu\":1400,\n\"mtu\":1500}"},
			[]string{`a/x.conf:4:1: "mtu" is here twice: the last one counts`}},
		"result": {linter(), map[string]string{"a.json": `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.5/24",` + "\n" + `"interface":3}],"interfaces":[]}`},
			[]string{`a.json:2:13: ips[0].interface: 3 is outside the list of 0 interfaces`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := runFiles(t, tt.linter, tt.files); !slices.EqualFunc(got, tt.want, matches) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

// A file that cannot be read is a finding, and the others are linted.
func TestUnreadableFile(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	wrong := list(`{"type":"loopback","mtuu":1}`)
	for _, file := range []string{filepath.Join(dir, "z.conflist"), filepath.Join(other, "z.conflist")} {
		if err := os.WriteFile(file, []byte(wrong), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "a.conf")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "b.conf"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A file that is given twice is read once, and two directories may have files of the same name.
	found, err := linter().Files(dir, dir+"/./z.conflist", other)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, f := range found {
		lines = append(lines, strings.NewReplacer(dir, "dir", other, "other").Replace(f.String()))
		if (f.Unread != nil) != (f.Line == 0) {
			t.Errorf("%s: Unread is %v", f, f.Unread)
		}
	}
	want := []string{"dir/a.conf: no such file or directory", "dir/b.conf: is not a regular file",
		`dir/z.conflist:2:20: unknown key "mtuu"`, `other/z.conflist:2:20: unknown key "mtuu"`}
	if !slices.Equal(lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}
