package messages

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
)

// list returns a configuration list. Each plugin has a line; the first is line 5.
func list(plugins string) string {
	return "{\n  \"cniVersion\": \"1.1.0\",\n  \"name\": \"demo\",\n  \"plugins\": [\n    " + plugins + "\n  ]\n}\n"
}

// bridge returns a list of one bridge with host-local, to which members of ipam are added. Values
// without a fixed length come last, since messages have columns.
func bridge(ipam string) string {
	return list(`{"type": "bridge", "bridge": "br0", "ipam": {"type": "host-local", ` + ipam + `, "dataDir": "$DIR/leases"}}`)
}

// pluginConf returns the configuration of one plugin.
func pluginConf(members string) string { return `{"cniVersion":"1.1.0","name":"demo",` + members + `}` }

// state returns a state file for up, with these namespaces.
func state(namespaces string) map[string]string {
	return map[string]string{"file": "{\"namespaces\": {\n  " + namespaces + "\n}}\n"}
}

// Parts of valid configurations, and a command line.
const (
	subnet   = `"subnet": "10.1.0.0/24"`
	ipam     = `"ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.1.0.0/24"}`
	portmap  = `{"type": "portmap", "capabilities": {"portMappings": true}}`
	prev     = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"$NETNS"}],"ips":[{"address":"10.1.0.2/24","interface":0}]}`
	add      = "cni-exec add demo $NETNS"
	listFile = "$DIR/net.d/demo.conflist"
)

var published = list(`{"type": "bridge", "bridge": "br0", "ipam": {"type": "host-local", "dataDir": "$DIR/leases", "subnet": "10.1.0.0/24"}},` + portmap)

var messages = []message{
	// the command line of cni-exec
	{name: "unknown verb", argv: "cni-exec attach demo $NETNS", key: `"attach"`, advice: "cni-exec help"},
	{name: "no namespace", argv: "cni-exec add demo", key: "NETNS", advice: "/run/netns/NAME"},
	{name: "one operand too many", argv: "cni-exec add demo $NETNS eth1", key: `"eth1"`, advice: "cni-exec help"},
	{name: "unknown flag", argv: "cni-exec add demo $NETNS --interface net1", key: "--interface", advice: "cni-exec help"},
	{name: "flag of another verb", argv: "cni-exec add demo $NETNS --all", key: "--all", advice: "gc"},
	{name: "timeout without a unit", argv: "cni-exec add demo $NETNS --timeout 5", key: "--timeout", advice: "90s"},
	{name: "retries that are not a number", argv: "cni-exec add demo $NETNS --retries many", key: "--retries", advice: "number"},
	{name: "bad port to publish", argv: "cni-exec run -p 8080 -- true", key: "--publish", advice: "HOST:CONTAINER"},
	{name: "verb of another tool", argv: "cni-exec ps", key: "ps", advice: "cni-exec ls"},
	{name: "misspelled verb", argv: "cni-exec stauts", key: "stauts", advice: "status"},
	{name: "misspelled flag", argv: "cni-exec add demo $NETNS --publsh 80:80", key: "--publsh", advice: "--publish"},
	{name: "flag given twice", argv: "cni-exec add demo $NETNS -i eth0 -i eth1", key: "--ifname"},
	{name: "container of several attachments", argv: "cni-exec get c1", conf: bridge(subnet), before: []string{add + " --container-id c1", add + " --container-id c1 -i eth1"}, key: "c1", advice: "-i"},
	{name: "network in place of a container", argv: "cni-exec del demo", conf: bridge(subnet), key: "demo", advice: "NETNS"},
	{name: "port without a protocol", argv: "cni-exec show 8080", conf: bridge(subnet), key: "8080", advice: "cni-exec show tcp/8080"},
	{name: "run without a command", argv: "cni-exec run --net demo", advice: "cni-exec run -- COMMAND"},
	{name: "hook without a state", argv: "cni-exec hook demo", conf: bridge(subnet), key: "stdin", advice: "OCI runtime"},
	{name: "hook with a bad --forbid", argv: "cni-exec hook --forbid port", key: "--forbid", advice: "ports"},
	{name: "bad interface name", argv: add + " -i a/b", conf: bridge(subnet), key: "a/b", advice: "contains /"},
	{name: "bad container ID", argv: add + " --container-id a/b", conf: bridge(subnet), key: "a/b", advice: "invalid characters"},
	{name: "bad CNI_ARGS", argv: "CNI_ARGS=IP " + add, conf: bridge(subnet), key: "CNI_ARGS", advice: "KEY=VALUE"},
	{name: "bad CAP_ARGS", argv: "CAP_ARGS={mac " + add, conf: bridge(subnet), key: "CAP_ARGS", where: "line 1, column 2"},
	{name: "CAP_ARGS of the wrong type", argv: `CAP_ARGS={"portMappings":80} ` + add + " -p 80:80", conf: published, key: "CAP_ARGS.portMappings", advice: "array"},
	{name: "nothing to publish with", argv: add + " -p 80:80", conf: bridge(subnet), key: "--publish", advice: "portmap"},

	// configurations that cni-exec finds or does not find
	{name: "unknown network", argv: "cni-exec add dmeo $NETNS", conf: bridge(subnet), key: "dmeo", advice: "demo"},
	{name: "no configuration", argv: add + " --conf-dir $DIR/empty", files: map[string]string{"empty/README": ""}, where: "$DIR/empty", advice: "--conf-dir"},
	{name: "directory missing", argv: add + " --conf-dir $DIR/nowhere", where: "$DIR/nowhere", advice: "--conf-dir"},
	{name: "syntax error", argv: add, conf: "{\n  \"cniVersion\": \"1.1.0\",\n  \"name\": \"demo\",\n  \"plugins\": [\n    {\"type\": \"bridge\",}\n  ]\n}\n", where: listFile + `:5:22: not JSON: a comma before "}": remove it`},
	{name: "syntax error before the name", argv: add, conf: "{\n  'cniVersion': \"1.1.0\",\n  \"name\": \"demo\"\n}\n", where: listFile + ":2:3: not JSON: strings are in double quotes"},
	{name: "syntax error in another network", argv: add, conf: "{\"name\": \"other\",}", where: listFile + ":1:17: not JSON: a comma", key: "demo", advice: "--conf-dir"},
	{name: "end missing", argv: add, conf: "{\n  \"name\": \"demo\",\n  \"plugins\": [\n", where: listFile + ":4:1"},
	{name: "empty file", argv: add, conf: "", where: listFile + ":1:1"},
	{name: "text behind the list", argv: add, conf: list(`{"type": "bridge"}`) + "}\n", where: listFile + ":8:1"},
	{name: "plugins is not a list", argv: add, conf: "{\n  \"name\": \"demo\",\n  \"plugins\": {}\n}\n", where: listFile + ":3:14", key: "plugins", advice: "array"},
	{name: "plugin without type", argv: add, conf: list(`{"bridge": "br0"}`), where: listFile + ":5:5", key: "plugins[0]: missing 'type'"},
	{name: "no plugins", argv: add, conf: list(""), where: listFile + ":4:14", key: "plugins"},
	{name: "no name", argv: add, conf: "{\n  \"cniVersion\": \"1.1.0\",\n  \"plugins\": [{\"type\": \"bridge\"}]\n}\n", where: listFile + ":1:1", key: "name"},
	{name: "list in a file for one plugin", argv: add, files: map[string]string{"net.d/demo.conf": list(`{"type": "bridge"}`), "net.d/demo.conflist": `{"name":"other","plugins":[{"type":"bridge"}]}`}, where: "$DIR/net.d/demo.conf:", advice: ".conflist"},
	{name: "capability that is not a bool", argv: add, conf: list(`{"type": "portmap", "capabilities": {"portMappings": "yes"}}`), where: listFile + ":5:58", key: "plugins[0].capabilities.portMappings", advice: "bool"},
	{name: "unsupported version", argv: add, conf: "{\n  \"cniVersion\": \"1.2.0\",\n  \"name\": \"demo\",\n  \"plugins\": [{\"type\": \"bridge\"}]\n}\n", where: listFile + ":2:17", key: "1.2.0", advice: "1.1.0"},
	{name: "unknown plugin", argv: add, conf: list(`{"type": "brigde"}`), where: listFile + ":5:14", key: "brigde", advice: `did you mean "bridge"?`},
	{name: "unknown plugin without a path", argv: "CNI_PATH= " + add, conf: list(`{"type": "brdige"}`), where: listFile + ":5:14: unknown plugin", key: "brdige", advice: `did you mean "bridge"?`},
	{name: "unknown external plugin without a path", argv: "CNI_PATH= " + add, conf: list(`{"type": "theirs"}`), where: listFile + ":5:14", key: "theirs", advice: "set CNI_PATH"},
	{name: "unknown plugin at status", argv: "cni-exec status demo", conf: list(`{"type": "brigde"}`), where: listFile + ":5:14", key: "brigde", advice: `did you mean "bridge"?`},
	{name: "unknown plugin at status without a path", argv: "CNI_PATH= cni-exec status demo", conf: list(`{"type": "brdige"}`), where: listFile + ":5:14: unknown plugin", key: "brdige", advice: `did you mean "bridge"?`},
	{name: "unknown plugin at del", argv: "cni-exec del demo $NETNS", conf: list(`{"type": "brigde"}`), where: listFile + ":5:14", key: "brigde", advice: `did you mean "bridge"?`},
	{name: "unknown plugin at del without a path", argv: "CNI_PATH= cni-exec del demo $NETNS", conf: list(`{"type": "brdige"}`), where: listFile + ":5:14: unknown plugin", key: "brdige", advice: `did you mean "bridge"?`},
	{name: "unknown ipam plugin at status", argv: "cni-exec status demo", conf: list(`{"type": "bridge", "ipam": {"type": "hostlocal"}}`), where: listFile + ":5:41", key: "hostlocal", advice: `did you mean "host-local"?`},
	{name: "plugin that cannot be started", argv: add, conf: list(`{"type": "theirs"}`), setup: func(h *host) { h.write("plugins/theirs", "#!/nowhere\n", 0o755) }, key: "$DIR/plugins/theirs", advice: "interpreter"},
	{name: "plugin that prints no JSON", argv: add, conf: list(`{"type": "theirs"}`), files: map[string]string{"plugins/theirs": "#!/bin/sh\necho Segmentation fault\nexit 1\n"}, key: "theirs", advice: "run DEL again"},
	{name: "plugin that does not end", argv: add + " --timeout 100ms", conf: list(`{"type": "theirs"}`), files: map[string]string{"plugins/theirs": "#!/bin/sh\nexec sleep 60\n"}, key: "$DIR/plugins/theirs", advice: "--timeout"},

	// the state file of up and down
	{name: "file missing", argv: "cni-exec up $DIR/file", key: "$DIR/file"},
	{name: "up with a syntax error", argv: "cni-exec up $DIR/file", files: state(`"web": [{"network": "demo",}]`), where: "$DIR/file:2:29: not JSON: a comma before", advice: "remove it"},
	{name: "up with a list", argv: "cni-exec down $DIR/file", files: map[string]string{"file": "[]"}, where: "$DIR/file:1:1", advice: "object"},
	{name: "up without namespaces", argv: "cni-exec up $DIR/file", files: map[string]string{"file": "{}"}, where: "$DIR/file:1:1", key: "namespaces", advice: `{"network": NAME}`},
	{name: "up with an unknown key", argv: "cni-exec up $DIR/file", files: state(`"web": [{"net": "demo"}]`), where: "$DIR/file:2:19", key: `"net"`},
	{name: "up with a text for a list", argv: "cni-exec up $DIR/file", files: state(`"web": [{"network": "demo", "ips": "10.1.0.5"}]`), where: "$DIR/file:2:38", key: "namespaces.web[0]: \"ips\"", advice: "array"},
	{name: "up with a bad address", argv: "cni-exec up $DIR/file", files: state(`"web": [{"network": "demo", "ips": ["10.1.0"]}]`), where: "$DIR/file:2:11", key: "ips", advice: "10.1.0.5"},
	{name: "up with a bad name", argv: "cni-exec up $DIR/file", files: state(`"a/b": []`), where: "$DIR/file:1:16", key: `"a/b"`, advice: "name of a network namespace"},
	{name: "up with one address for two", argv: "cni-exec up $DIR/file", conf: published, files: state(`"db": [{"network": "demo", "ports": ["80:80"]}], "web": [{"network": "demo", "ports": ["80:80"]}]`), where: "$DIR/file:2:60", key: "namespaces.web[0]", advice: "namespaces.db[0]"},
	{name: "up of a wrong network", argv: "cni-exec up $DIR/file", files: map[string]string{"file": `{"networks": [{"cniVersion": "1.1.0", "name": "own", "plugins": []}],
"namespaces": {}}`}, where: "$DIR/file:1:65", key: "networks[0]", advice: "plugins"},

	// the network namespace
	{name: "missing namespace", argv: "cni-exec add demo /run/netns/blue", conf: bridge(subnet), key: "/run/netns/blue", advice: "cni-exec run"},
	{name: "namespace that is none", argv: "cni-exec add demo $DIR/net.d/demo.conflist", conf: bridge(subnet), key: "$DIR/net.d/demo.conflist", advice: "cni-exec run"},
	{name: "the namespace of the host", argv: "cni-exec add demo /proc/self/ns/net", conf: bridge(subnet), key: "/proc/self/ns/net", advice: "cni-exec run"},
	{name: "added twice", argv: add, conf: bridge(subnet), before: []string{add}, key: "eth0", advice: "cni-exec del demo $NETNS"},
	{name: "interface deleted", argv: "cni-exec check demo $NETNS", conf: bridge(subnet), before: []string{add}, spoil: deleteEth0, key: "eth0", advice: "cni-exec add demo $NETNS"},
	{name: "never added", argv: "cni-exec check demo $NETNS", conf: bridge(subnet), key: "demo"},

	// addresses
	{name: "bad CIDR", argv: add, conf: bridge(`"ranges": [[{"subnet": "10.1.0.0/33"}]]`), where: listFile + ":5:", key: "ipam.ranges[0][0].subnet", advice: "10.1.0.0/24"},
	{name: "host bits set", argv: add, conf: bridge(`"ranges": [[{"subnet": "10.1.0.7/24"}]]`), where: listFile + ":5:", key: "ipam.ranges[0][0].subnet", advice: "write 10.1.0.0/24"},
	{name: "gateway of another family", argv: add, conf: bridge(`"ranges": [[{"subnet": "10.1.0.0/24", "gateway": "fd00::1"}]]`), where: listFile + ":5:", key: "ipam.ranges[0][0].gateway", advice: "10.1.0.1"},
	{name: "gateway outside", argv: add, conf: bridge(`"ranges": [[{"subnet": "10.1.0.0/24", "gateway": "10.2.0.1"}]], "routes": [{"dst": "0.0.0.0/0"}]`), where: listFile + ":5:", key: "ipam.ranges[0][0].gateway", advice: "10.1.0.0/24"},
	{name: "gateway of a route outside", argv: add, conf: bridge(subnet + `, "routes": [{"dst": "10.9.0.0/16", "gw": "10.2.0.1"}]`), where: listFile + ":5:", key: "ipam.routes[0].gw", advice: "10.1.0.0/24"},
	{name: "gateway outside, of a plugin", argv: "macvlan ADD", conf: pluginConf(`"type":"macvlan","master":"up0","ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.1.0.0/24","gateway":"10.2.0.1","routes":[{"dst":"0.0.0.0/0"}]}`), key: "ipam.gateway", advice: "10.1.0.0/24"},
	{name: "range outside", argv: add, conf: bridge(`"ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.2.0.1"}]]`), where: listFile + ":5:", key: "ipam.ranges[0][0].rangeStart", advice: "10.1.0.1 to 10.1.0.254"},
	{name: "no range", argv: add, conf: bridge(`"ranges": []`), where: listFile + ":5:", key: "ipam.ranges"},
	{name: "subnet too small", argv: add, conf: bridge(`"subnet": "10.1.0.0/31"`), where: listFile + ":5:", key: "ipam.subnet", advice: "/30"},
	{name: "bad route", argv: add, conf: bridge(subnet + `, "routes": [{"dst": "default"}]`), where: listFile + ":5:", key: "ipam.routes[0].dst", advice: "as 10.1.0.0/24"},
	{name: "full pool", argv: "cni-exec add demo $SECOND", conf: bridge(`"subnet": "10.1.0.0/30"`), before: []string{add}, key: "10.1.0.2", advice: "cni-exec gc"},
	{name: "address taken", argv: "CNI_ARGS=IP=10.1.0.2 cni-exec add demo $SECOND", conf: bridge(subnet), before: []string{add}, key: "10.1.0.2", advice: "another"},
	{name: "address outside", argv: "CNI_ARGS=IP=10.9.0.2 " + add, conf: bridge(subnet), key: "10.9.0.2"},
	{name: "unknown ipam plugin", argv: add, conf: list(`{"type": "bridge", "ipam": {"type": "hostlocal"}}`), where: listFile + ":5:41", key: "hostlocal", advice: `did you mean "host-local"?`},
	{name: "static address without prefix length", argv: add, conf: list(`{"type": "bridge", "ipam": {"type": "static", "addresses": [{"address": "10.1.0.2"}]}}`), where: listFile + ":5:", key: "ipam.addresses[0].address", advice: "/"},
	{name: "dhcp without its daemon", argv: add, conf: list(`{"type": "bridge", "ipam": {"type": "dhcp"}}`), key: "/run/cni/dhcp.sock", advice: "dhcp daemon"},

	// the host
	{name: "port of another container", argv: "cni-exec add demo $SECOND -p 8080:80", conf: published, before: []string{add + " -p 8080:80"}, key: "8080", advice: "another host port"},
	{name: "port of a process", argv: add + " -p 8080:80", conf: published, setup: listen, key: "8080", advice: "--force"},
	{name: "missing master", argv: add, conf: list(`{"type": "macvlan", "master": "eth7"}`), where: listFile + ":5:35", key: `"master"`, advice: "eth7"},
	{name: "bridge is another link", argv: add, conf: list(`{"type": "bridge", "bridge": "up0"}`), where: listFile + ":5:34", key: `"bridge"`, advice: "up0"},
	{name: "no privilege", argv: add, conf: bridge(subnet), unprivileged: true, advice: "root"},
	{name: "no privilege for a plugin", argv: "bridge ADD", conf: pluginConf(`"type":"bridge",` + ipam), unprivileged: true, advice: "root"},
	{name: "read-only leases", argv: add, conf: bridge(subnet), setup: readOnly("leases"), key: "ipam.dataDir", advice: "$DIR/leases"},
	{name: "read-only cache", argv: add, conf: bridge(subnet), setup: readOnly("cache"), key: "$DIR/cache", advice: "--cache-dir"},

	// plugins, as a runtime calls them
	{name: "no verb", argv: "CNI_COMMAND=NOPE bridge NOPE", conf: pluginConf(`"type":"bridge"`), key: "CNI_COMMAND", advice: "ADD"},
	{name: "variables missing", argv: "CNI_CONTAINERID= CNI_NETNS= bridge ADD", conf: pluginConf(`"type":"bridge"`), key: "CNI_CONTAINERID"},
	{name: "no configuration on stdin", argv: "bridge ADD", conf: "", key: "standard input"},
	{name: "configuration that is not JSON", argv: "bridge ADD", conf: "{\"name\":\"demo\",\n 'type'}", where: "line 2, column 2", advice: "double quotes"},
	{name: "key of the wrong type", argv: "bridge ADD", conf: pluginConf(`"type":"bridge","mtu":"1500"`), key: `"mtu"`, advice: "integer"},
	{name: "network name missing", argv: "bridge ADD", conf: `{"cniVersion":"1.1.0","type":"bridge"}`, key: "name"},
	{name: "version of the future", argv: "bridge ADD", conf: `{"cniVersion":"7.0.0","name":"demo","type":"bridge"}`, key: "7.0.0", advice: "1.1.0"},
	{name: "mtu too large", argv: "macvlan ADD", conf: pluginConf(`"type":"macvlan","master":"up0","mtu":9000,` + ipam), key: `"mtu"`, advice: "1500"},
	{name: "mode unknown", argv: "macvlan ADD", conf: pluginConf(`"type":"macvlan","master":"up0","mode":"fast"`), key: `"mode"`, advice: "bridge"},
	{name: "vlan without master", argv: "vlan ADD", conf: pluginConf(`"type":"vlan","vlanId":5,` + ipam), key: `"master"`},
	{name: "vlanId too large", argv: "vlan ADD", conf: pluginConf(`"type":"vlan","master":"up0","vlanId":5000,` + ipam), key: `"vlanId"`, advice: "4094"},
	{name: "bad MAC address", argv: "bridge ADD", conf: pluginConf(`"type":"bridge","runtimeConfig":{"mac":"00:11:22"}`), key: "runtimeConfig.mac"},
	{name: "host device without selector", argv: "host-device ADD", conf: pluginConf(`"type":"host-device"`), key: `"device"`},
	{name: "host device missing", argv: "host-device ADD", conf: pluginConf(`"type":"host-device","device":"eth7"`), key: `"device"`, advice: "eth7"},
	{name: "dummy without ipam", argv: "dummy ADD", conf: pluginConf(`"type":"dummy"`), key: `"ipam.type"`},
	{name: "unknown ipam plugin, of a plugin", argv: "bridge ADD", conf: pluginConf(`"type":"bridge","ipam":{"type":"hostlocal"}`), key: `"ipam.type"`, advice: `did you mean "host-local"?`},
	{name: "unknown ipam plugin without a path, of a plugin", argv: "CNI_PATH= bridge ADD", conf: pluginConf(`"type":"bridge","ipam":{"type":"hostlocal"}`), key: `"ipam.type"`, advice: `did you mean "host-local"?`},
	{name: "unknown ipam plugin at STATUS of a plugin", argv: "CNI_PATH= bridge STATUS", conf: pluginConf(`"type":"bridge","ipam":{"type":"theirs"}`), key: `"ipam.type"`, advice: "set CNI_PATH"},
	{name: "not chained", argv: "tuning CHECK", conf: pluginConf(`"type":"tuning"`), key: "prevResult"},
	{name: "port mapping of an unknown protocol", argv: "portmap ADD", conf: pluginConf(`"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"protocol":"icmp"}]},` + prev), key: "portMappings[0].protocol", advice: "tcp"},
	{name: "container port missing", argv: "portmap ADD", conf: pluginConf(`"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":80}]},` + prev), key: "portMappings[0].containerPort", advice: "65535"},
	{name: "burst without rate", argv: "bandwidth ADD", conf: pluginConf(`"type":"bandwidth","ingressBurst":8000,` + prev), key: "ingressRate"},
	{name: "sysctl of the host", argv: "tuning ADD", conf: pluginConf(`"type":"tuning","sysctl":{"kernel.hostname":"x"},` + prev), key: "kernel.hostname", advice: "net."},
	{name: "firewall backend unknown", argv: "firewall ADD", conf: pluginConf(`"type":"firewall","backend":"ipfw",` + prev), key: `"backend"`, advice: "nftables"},
	{name: "vrf without name", argv: "vrf ADD", conf: pluginConf(`"type":"vrf",` + prev), key: `set "vrfname"`},
	{name: "name of a tap with a slash", argv: "tc-redirect-tap ADD", conf: pluginConf(`"type":"tc-redirect-tap","tap_name":"vm/tap",` + prev), key: `"tap_name"`},
	{name: "owner of a tap in CNI_ARGS", argv: "CNI_ARGS=TC_REDIRECT_TAP_UID=root tc-redirect-tap ADD", conf: pluginConf(`"type":"tc-redirect-tap",` + prev), key: "TC_REDIRECT_TAP_UID"},
	{name: "flannel has not started", argv: "flannel ADD", conf: pluginConf(`"type":"flannel","subnetFile":"$DIR/subnet.env","dataDir":"$DIR/flannel"`), key: "$DIR/subnet.env"},
	{name: "prevResult that is none", argv: "portmap ADD", conf: pluginConf(`"type":"portmap","prevResult":{"ips":[{"address":"10.1.0.2"}]}`), key: "prevResult", advice: "prefix length"},
	{name: "GC without what is valid", argv: "bridge GC", conf: pluginConf(`"type":"bridge",` + ipam), key: "cni.dev/valid-attachments"},

	// cnibox
	{name: "cnibox: unknown applet", argv: "cnibox brigde", key: "brigde", advice: `"bridge"?`},
	{name: "cnibox: directory to install into missing", argv: "cnibox install $DIR/opt/cni/bin", key: "$DIR/opt/cni/bin", advice: "--create"},
}

// listen makes this process listen on port 8080 of the host.
func listen(h *host) {
	h.Occupy(h.NS, "tcp4", "0.0.0.0:8080")
}

// readOnly mounts a directory read-only.
func readOnly(name string) func(*host) {
	return func(h *host) {
		dir := h.Path(name)
		err := os.Mkdir(dir, 0o755)
		if err == nil {
			err = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, "")
		}
		if err != nil {
			h.Fatal(err)
		}
		h.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	}
}

// deleteEth0 deletes the container's interface without cni-exec.
func deleteEth0(h *host) {
	if err := kerneltest.Dial(h.T, h.first.NS).DelLink("eth0"); err != nil {
		h.Fatal(err)
	}
}
