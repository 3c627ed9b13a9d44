package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

const megabyte = 1 << 20

// The size of hostile input, and limits for one verb: of all memory that it allocates, which grows with the
// square of the input if its time does so, and of the most at once, in KiB. The product promises 64 MiB for a
// megabyte; the limit differs since the test binary is larger.
var hostileSize, mostMemory = megabyte / 16, 26 << 10

// mostAllocated is the limit of allocated bytes for each byte of input. Most verbs need 40 to 160, and doctor,
// which reads a file several times, 500.
const mostAllocated = 1000

func init() {
	if kerneltest.Full() { // make test FULL=1
		hostileSize, mostMemory = megabyte, 76<<10
	}
}

// fill joins elements with commas up to hostileSize; %d in element is its number.
func fill(element string) string { return fillTo(hostileSize, element) }

func fillTo(size int, element string) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		if strings.Contains(element, "%d") {
			b.WriteString(strings.ReplaceAll(element, "%d", strconv.Itoa(i)))
		} else if strings.Contains(element, "%") {
			b.WriteString(strings.NewReplacer("%x", strconv.FormatInt(int64(i), 16), "%o", fmt.Sprintf("%d.%d", i>>8, i&255), "%p", strconv.Itoa(1+i%65535)).Replace(element))
		} else {
			b.WriteString(element)
		}
	}
	return b.String()
}

// long repeats a text up to hostileSize.
func long(s string) string { return strings.Repeat(s, hostileSize/len(s)) }

// hostileDocuments are not configurations.
func hostileDocuments() map[string]string {
	return map[string]string{
		"brackets":         long("["),
		"braces":           long(`{"a":`),
		"braces in plugin": `{"cniVersion":"1.1.0","name":"demo","type":"bridge","x":` + long(`{"a":`),
		"quotes":           long(`"`),
		"newlines":         long("\n"),
		"commas":           `{"a":1` + long(","),
		"backslashes":      `{"name":"` + long(`\`),
		"zeros":            long("\x00"),
		"ones":             long("\xff"),
		"digits":           long("9"),
		"array of objects": "[" + fill(`{"a":%d}`) + "]",
		"garbled end":      `{"cniVersion":"1.1.0","name":"demo","x":"` + long("x") + `"]`,
	}
}

// hostileMembers are members for any plugin's configuration.
func hostileMembers() map[string]string {
	deep := func(levels int, open, close, inner string) string {
		return strings.Repeat(open, levels) + inner + strings.Repeat(close, levels)
	}
	return map[string]string{
		"deep arrays":       `"x":` + deep(9000, "[", "]", ""),
		"deep objects":      `"x":` + deep(9000, `{"plugins":`, "}", "1"),
		"99 levels":         `"x":` + deep(96, `{"a":`, "}", "["+fill("1")+"]"),
		"many 90 levels":    `"x":[` + fill(deep(90, "[", "]", "")) + "]",
		"long string":       `"x":"` + long("x") + `"`,
		"long bridge":       `"bridge":"` + long("x") + `"`,
		"escapes":           `"x":"` + long(`\u0041`) + `"`,
		"surrogates":        `"dns":{"domain":"` + long(`\ud800`) + `"}`,
		"long key":          `"` + long("k") + `":1`,
		"long key, many":    `"` + strings.Repeat("k", hostileSize/2) + `":{` + fillTo(hostileSize/2, `"k%d":%d`) + "}",
		"long key, twice":   `"` + strings.Repeat("k", hostileSize/2) + `":{` + fillTo(hostileSize/2, `"k":%d`) + "}",
		"many keys":         fill(`"k%d":%d`),
		"many short keys":   fill(`"%d":0`),
		"misspelled keys":   fill(`"brigde%d":""`),
		"known key, folded": fill(`"mTu":1500,"MtU":1400`),
		"duplicates":        fill(`"x":%d`),
		"duplicate name":    fill(`"name":"n%d"`),
		"duplicate type":    fill(`"type":"t%d"`),
		"duplicate plugins": fill(`"plugins":[]`),
		"duplicate ipam":    fill(`"ipam":{"type":"host-local"}`),
		"numbers":           `"x":[` + fill("%d") + "]",
		"huge number":       `"mtu":` + long("1"),
		"huge exponent":     `"mtu":1e` + long("9"),
		"nulls":             `"x":[` + fill("null") + "]",
		"empty objects":     `"x":[` + fill("{}") + "]",
		"capabilities":      `"capabilities":{` + fill(`"c%d":true`) + "}",
		"runtimeConfig":     `"runtimeConfig":{` + fill(`"c%d":true`) + "}",
		"args":              `"args":{"cni":{` + fill(`"c%d":[]`) + "}}",
		"ips":               `"args":{"cni":{"ips":[` + fill(`"10.%o.1"`) + "]}}",
		"nameservers":       `"dns":{"nameservers":[` + fill(`"10.1.0.1"`) + "]}",
		"search":            `"dns":{"search":[` + fill(`"a"`) + "]}",
		"bad nameservers":   `"dns":{"nameservers":[` + fill(`"x"`) + "]}",
		"prevResult":        `"prevResult":{"cniVersion":"1.1.0","interfaces":[` + fill(`{"name":"e%d"}`) + "]}",
		"prevResult keys":   `"prevResult":{"cniVersion":"1.1.0",` + fill(`"k%d":1`) + "}",
		"prevResult dup":    `"prevResult":{` + fill(`"ips":[]`) + "}",
		"prevResult ips":    `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[` + fill(`{"interface":0,"address":"fd00::%x/64"}`) + "]}",
		"prevResult routes": `"prevResult":{"cniVersion":"1.1.0","routes":[` + fill(`{"dst":"fd00::%x/128"}`) + "]}",
		"valid attachments": `"cni.dev/valid-attachments":[` + fill(`{"containerID":"c%d","ifname":"eth0"}`) + "]",
		"wrong types":       `"cni.dev/valid-attachments":[` + fill(`{"containerID":%d}`) + "]",
	}
}

// hostileKeys are members for one plugin's configuration.
func hostileKeys() map[string]map[string]string {
	ipam := func(keys string) string { return `"ipam":{"type":"host-local","dataDir":"$DIR",` + keys + "}" }
	hostLocal := map[string]string{
		"ranges":        ipam(`"ranges":[` + fill(`[{"subnet":"fd00:%x::/64"}]`) + "]"),
		"one set":       ipam(`"ranges":[[` + fill(`{"subnet":"fd00:%x::/64"}`) + "]]"),
		"overlapping":   ipam(`"ranges":[` + fill(`[{"subnet":"10.1.0.0/24"}]`) + "]"),
		"empty ranges":  ipam(`"ranges":[` + fill(`[]`) + "]"),
		"routes":        ipam(`"subnet":"10.1.0.0/24","routes":[` + fill(`{"dst":"fd00:%x::/64"}`) + "]"),
		"bad routes":    ipam(`"subnet":"10.1.0.0/24","routes":[` + fill(`{"dst":1}`) + "]"),
		"ipRanges":      ipam(`"subnet":"10.1.0.0/24"`) + `,"runtimeConfig":{"ipRanges":[` + fill(`[{"subnet":"fd00:%x::/64"}]`) + "]}",
		"wanted":        ipam(`"subnet":"10.1.0.0/8"`) + `,"runtimeConfig":{"ips":[` + fill(`"10.%o.1"`) + "]}",
		"wanted twice":  ipam(`"subnet":"10.1.0.0/8"`) + `,"runtimeConfig":{"ips":[` + fill(`"10.1.1.1"`) + "]}",
		"unknown keys":  ipam(`"subnet":"10.1.0.0/24",` + fill(`"k%d":1`)),
		"gateways":      ipam(`"ranges":[[` + fill(`{"subnet":"10.1.0.0/24","gateway":"10.2.0.1"}`) + "]]"),
		"duplicate key": ipam(fill(`"subnet":"10.1.0.0/24"`)),
	}
	return map[string]map[string]string{
		"bridge": {
			"vlanTrunk": `"bridge":"br0","vlanTrunk":[` + fill(`{"id":%d}`) + "]",
			"trunks":    `"bridge":"br0","vlanTrunk":[` + fill(`{"minID":1,"maxID":4094}`) + "]",
		},
		"host-local": hostLocal,
		"static": {
			"addresses": `"ipam":{"type":"static","addresses":[` + fill(`{"address":"fd00::%x/64"}`) + "]}",
			"routes":    `"ipam":{"type":"static","addresses":[{"address":"10.1.0.2/24"}],"routes":[` + fill(`{"dst":"fd00:%x::/64","gw":"fd00::1"}`) + "]}",
			"ips":       `"ipam":{"type":"static"},"runtimeConfig":{"ips":[` + fill(`"fd00::%x/64"`) + "]}",
			"same":      `"ipam":{"type":"static","addresses":[` + fill(`{"address":"10.1.0.2/24"}`) + "]}",
		},
		"dhcp": {
			"request": `"ipam":{"type":"dhcp","daemonSocketPath":"$DIR/d","request":[` + fill(`{"option":"%d"}`) + "]}",
			"provide": `"ipam":{"type":"dhcp","daemonSocketPath":"$DIR/d","provide":[` + fill(`{"option":"12","value":"%d"}`) + "]}",
		},
		"portmap": {
			"conditionsV4": `"conditionsV4":[` + fill(`"-s","10.%o.0/24"`) + "]",
			"conditions":   `"conditionsV4":[` + fill(`"!","-d","10.0.0.1"`) + "]",
			"conditionsV6": `"conditionsV6":[` + fill(`"-i","eth%d"`) + "]",
			"nft":          `"conditionsV4":[` + fill(`"ip","saddr","10.0.0.1"`) + "]",
			"ports":        `"runtimeConfig":{"portMappings":[` + fill(`{"hostPort":%p,"containerPort":1}`) + "]}",
			"same port":    `"runtimeConfig":{"portMappings":[` + fill(`{"hostPort":1,"containerPort":1,"hostIP":"10.0.0.1"}`) + "]}",
		},
		"firewall": {
			"addresses": `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"$NETNS"}],"ips":[` + fill(`{"interface":1,"address":"fd00::%x/64"}`) + "]}",
		},
		"tuning": {
			"sysctl":      `"dataDir":"$DIR/t","sysctl":{` + fill(`"net.ipv4.x%d":"1"`) + "}",
			"twice":       `"dataDir":"$DIR/t","sysctl":{` + fill(`"net.ipv4.x":"%d"`) + "}",
			"descending":  `"dataDir":"$DIR/t","sysctl":{` + fill(`"net.ipv4.%dx":"1","net.core.%dx":"2"`) + "}",
			"from args":   `"dataDir":"$DIR/t","args":{"cni":{"sysctl":{` + fill(`"net.ipv4.x%d":"1"`) + "}}}",
			"long name":   `"sysctl":{"net.` + long("a.") + `":"1"}`,
			"other place": `"sysctl":{` + fill(`"kernel.x%d":"1"`) + "}",
		},
		"sbr": {
			"gateways":  `"dataDir":"$DIR/s","gateways":[` + fill(`"10.%o.1"`) + "]",
			"addresses": `"dataDir":"$DIR/s","prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"$NETNS"}],"ips":[` + fill(`{"interface":1,"address":"fd00::%x/64"}`) + "]}",
			"routes":    `"dataDir":"$DIR/s","prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"$NETNS"}],"ips":[{"interface":0,"address":"10.1.0.2/24"}],"routes":[` + fill(`{"dst":"fd00::%x/128"}`) + "]}",
		},
		"flannel": {
			"delegate": `"subnetFile":"$DIR/subnet.env","dataDir":"$DIR/f","delegate":{` + fill(`"k%d":1`) + "}",
			"routes":   `"subnetFile":"$DIR/subnet.env","dataDir":"$DIR/f","ipam":{"routes":[` + fill(`{"dst":"fd00:%x::/64"}`) + "]}",
		},
	}
}

// checkUsage fails the test if a process exceeds the limits.
func (w *world) checkUsage(what string, stdin string, env []string, argv ...string) {
	w.Helper()
	var a answer
	u := w.measured(func() { a = w.run(stdin, env, argv...) })
	if u.Allocated > mostAllocated*hostileSize || u.Peak > mostMemory {
		w.Errorf("%s: %d MiB are allocated, %d MiB at most at once", what, u.Allocated>>20, u.Peak>>10)
	}
	if strings.Contains(a.stderr, "goroutine ") {
		w.Errorf("%s: %.2000s", what, a.stderr)
	}
}

func TestKernelHostilePlugins(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	call := func(w *world, c applettest.Container, what, plugin, conf string, verbs ...spec.Verb) {
		conf = strings.ReplaceAll(conf, "$NETNS", c.Path)
		for _, verb := range verbs {
			w.checkUsage(fmt.Sprintf("%s %s %s", what, plugin, verb), w.Expand(conf), c.Env(verb), w.Path("bin/"+plugin))
		}
	}
	start := func(t *testing.T) (*world, applettest.Container) {
		t.Parallel()
		w := newWorld(t)
		return w, w.Container("ctr")
	}
	t.Run("documents", func(t *testing.T) {
		w, c := start(t)
		for what, doc := range hostileDocuments() {
			call(w, c, what, "bridge", doc, spec.Add, spec.Del, spec.GetVersion) // the other verbs decode it as ADD does
		}
	})
	t.Run("members", func(t *testing.T) {
		w, c := start(t)
		for what, member := range hostileMembers() {
			for plugin := range hostilePlugins {
				call(w, c, what, plugin, withMember(applettest.Plain(plugin, "demo"), member), hostilePlugins[plugin]...)
			}
		}
	})
	for plugin, all := range hostileKeys() {
		t.Run(plugin, func(t *testing.T) {
			w, c := start(t)
			w.must("an interface", w.plugin(spec.Add, "bridge", applettest.Conf("bridge", `"bridge":"br0"`), c))
			for what, member := range all {
				// GET and STATUS decode the same as ADD and CHECK
				call(w, c, what, plugin, withMember(goodConf(plugin), member), spec.Add, spec.Check, spec.Del, spec.GC)
			}
		})
	}
}

// hostilePlugins get input that has nothing to do with them: an interface plugin with its IPAM
// plugin, by all verbs, and a chained one.
var hostilePlugins = map[string][]spec.Verb{"bridge": allVerbs, "portmap": {spec.Add}}

// slowest are the keys and members that lint needs longest for; doctor does more with them.
var slowest = []string{"host-local: empty ranges", "member: many short keys", "tuning: descending"}

func TestKernelHostileFiles(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	w := newWorld(t)
	c := w.Container("ctr")
	all := hostileDocuments()
	for what, member := range hostileMembers() {
		all["member: "+what] = `{"cniVersion":"1.1.0","name":"demo","plugins":[` + withMember(applettest.Plain("bridge", "demo"), member) + `]}`
	}
	keys := hostileKeys()
	for plugin, of := range keys {
		for what, member := range of {
			conf := withMember(goodConf(plugin), member)
			conf = strings.ReplaceAll(conf, "$NETNS", c.Path)
			all[plugin+": "+what] = `{"cniVersion":"1.1.0","name":"demo","plugins":[` + conf + `]}`
		}
	}
	nested := strings.Repeat(`{"type":"bridge","plugins":[`, 9000) + strings.Repeat("]}", 9000)
	all["nested plugins"] = `{"cniVersion":"1.1.0","name":"demo","plugins":[` + nested + `,` + nested + `]}`
	all["many plugins"] = `{"cniVersion":"1.1.0","name":"demo","plugins":[` + fill(`{"type":"tuning"}`) + `]}`
	all["many wrong plugins"] = `{"cniVersion":"1.1.0","name":"demo","plugins":[` + fill(`{"typ":"tuning"}`) + `]}`
	all["many external plugins"] = `{"cniVersion":"1.1.0","name":"demo","plugins":[` + fill(`{"type":"x"}`) + `]}`
	all["many bridges"] = `{"cniVersion":"1.1.0","name":"demo","plugins":[` + fill(`{"type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}`) + `]}`
	plain := `{"networks":[{"cniVersion":"1.1.0","name":"demo","plugins":[` + applettest.Plain("bridge", "demo") + `]}],`
	all["networks"] = `{"networks":[` + fillTo(megabyte, `{"cniVersion":"1.1.0","name":"n%d","plugins":[{"type":"bridge"}]}`) + `],"namespaces":{}}`
	all["namespaces"] = `{"namespaces":{` + fill(`"n%d":[{"network":"demo"}]`) + `}}`
	all["links"] = `{"namespaces":{"n":[` + fill(`{"network":"demo"}`) + `]}}`
	all["ips of a link"] = plain + `"namespaces":{"n":[{"network":"demo","ips":[` + fill(`"10.%o.1"`) + `]}]}}`
	all["ports of a link"] = plain + `"namespaces":{"n":[{"network":"demo","ports":[` + fill(`"%p:80"`) + `]}]}}`
	for _, what := range slices.Sorted(maps.Keys(all)) {
		doc := w.Expand(all[what])
		dir := w.Path("net.d")
		os.RemoveAll(dir)
		w.write("net.d/a.conflist", doc)
		w.write("state.json", doc)
		env := []string{"NETCONFPATH=" + dir, spec.StateEnv + "=" + w.Path("state")}
		exec := func(args ...string) {
			w.checkUsage(what+": "+strings.ReplaceAll(strings.Join(args, " "), c.Path, "NETNS"), "", env, append([]string{w.Path("bin/cni-exec")}, args...)...)
		}
		exec("lint", filepath.Join(dir, "a.conflist"))
		exec("add", "demo", c.Path)
		if kind, _, _ := strings.Cut(what, ": "); kind == "member" || keys[kind] != nil {
			if slices.Contains(slowest, what) {
				exec("doctor")
			}
			exec("del", "demo", c.Path) // or the next doctor reads the cache entry of this input as well
			continue                    // the other verbs decode the same
		}
		exec("del", "demo", c.Path)
		exec("up", w.Path("state.json"))
		exec("down", w.Path("state.json"))
		exec("status", "demo")
		exec("doctor")
		if !kerneltest.Full() {
			continue // the other verbs read these files by the same decoder
		}
		exec("check", "demo", c.Path)
		exec("get", "demo", c.Path)
		exec("add", "--dry-run", "demo", c.Path)
		exec("gc", "demo")
		exec("rm", "demo")
		exec("version", "demo")
		exec("ls", "--networks")
		exec("show", "demo")
		exec("reload")
	}
}

// largest is close to the kernel's limit for one variable, 128 KiB.
const largest = 120 << 10

func TestKernelHostileEnvironment(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	w := newWorld(t)
	c := w.Container("ctr")
	list := func(element string) string { return strings.ReplaceAll(fillTo(largest, element), ",", ";") }
	for what, args := range map[string]string{
		"keys":       list("K%d=v"),
		"equal keys": list("K=v"),
		"addresses":  list("IP=10.1.0.2"),
		"ports":      list("K8S_POD_NAME=x"),
		"no value":   strings.Repeat("K;", largest/2),
		"semicolons": strings.Repeat(";", largest),
		"equals":     strings.Repeat("=", largest),
		"one":        "K=" + strings.Repeat("v", largest),
		"a list":     "IP=" + fillTo(largest, "10.%o.1"),
	} {
		for _, verb := range allVerbs {
			w.checkUsage(what+" in CNI_ARGS: "+string(verb), w.Expand(applettest.Plain("bridge", "demo")), c.Env(verb, "CNI_ARGS="+args), w.Path("bin/bridge"))
		}
	}
	w.write("net.d/a.conflist", `{"cniVersion":"1.1.0","name":"demo","plugins":[`+
		`{"type":"bridge","capabilities":{"ips":true,"ipRanges":true},"ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.0.0.0/8"}},`+
		`{"type":"portmap","dataDir":"$DIR/ports","capabilities":{"portMappings":true}}]}`)
	for what, capabilities := range map[string]string{
		"ports":     `{"portMappings":[` + fillTo(largest, `{"hostPort":%p,"containerPort":1}`) + "]}",
		"addresses": `{"ips":[` + fillTo(largest, `"10.%o.1"`) + "]}",
		"ranges":    `{"ipRanges":[` + fillTo(largest, `[{"subnet":"fd00:%x::/64"}]`) + "]}",
		"others":    "{" + fillTo(largest, `"c%d":1`) + "}",
		"equal":     "{" + fillTo(largest, `"ips":[]`) + "}",
		"brackets":  strings.Repeat("[", largest),
		"braces":    strings.Repeat(`{"a":`, largest/5),
		"no JSON":   strings.Repeat("x", largest),
	} {
		env := []string{"NETCONFPATH=" + w.Path("net.d"), spec.StateEnv + "=" + w.Path("state"), "CAP_ARGS=" + capabilities}
		for _, verb := range []string{"add", "check", "del"} {
			w.checkUsage(what+" in CAP_ARGS: "+verb, "", env, w.Path("bin/cni-exec"), verb, "demo", c.Path)
		}
	}
}

// Entries of libcni's cache, of live attachments, with large values in each member.
func TestKernelHostileCache(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	w := newWorld(t)
	c := w.Container("ctr")
	w.write("net.d/a.conflist", `{"cniVersion":"1.1.0","name":"demo","plugins":[`+applettest.Plain("bridge", "demo")+`]}`)
	env := []string{"NETCONFPATH=" + w.Path("net.d")}
	exec := func(verb ...string) []string {
		return append([]string{w.Path("bin/cni-exec"), verb[0], "--cache-dir", w.Path("cni")}, verb[1:]...)
	}
	w.must("add", w.run("", env, exec("add", "demo", c.Path)...))
	entries, err := filepath.Glob(w.Path("cni/results/*"))
	if err != nil || len(entries) != 1 {
		t.Fatalf("entries are %q: %v", entries, err)
	}
	good, err := os.ReadFile(entries[0])
	if err != nil {
		t.Fatal(err)
	}
	conf := func(plugins string) any {
		return []byte(`{"cniVersion":"1.1.0","name":"demo","plugins":[` + w.Expand(plugins) + `]}`)
	}
	result := func(members string) any { return json.RawMessage(`{"cniVersion":"1.1.0",` + members + "}") }
	ranges := `{"type":"bridge","ipam":{"type":"host-local","dataDir":"$DIR/l","ranges":[` + fill(`[{"subnet":"fd00:%x::/64"}]`) + `]}}`
	for what, change := range map[string]map[string]any{
		"ranges":       {"config": conf(ranges)},
		"plugins":      {"config": conf(fill(`{"type":"tuning"}`))},
		"keys":         {"config": conf(`{"type":"bridge",` + fill(`"k%d":1`) + "}")},
		"brackets":     {"config": []byte(long("["))},
		"interfaces":   {"result": result(`"interfaces":[` + fill(`{"name":"e%d"}`) + "]")},
		"addresses":    {"result": result(`"interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[` + fill(`{"interface":0,"address":"fd00::%x/64"}`) + "]")},
		"routes":       {"result": result(`"routes":[` + fill(`{"dst":"fd00::%x/128"}`) + "]")},
		"nameservers":  {"result": result(`"dns":{"nameservers":[` + fill(`"10.1.0.1"`) + "]}")},
		"capabilities": {"capabilityArgs": json.RawMessage("{" + fill(`"c%d":1`) + "}")},
		"arguments":    {"cniArgs": json.RawMessage("[" + fill(`["k%d","v"]`) + "]")},
		"a network":    {"networkName": long("n")},
		"a namespace":  {"netns": long("/n")},
	} {
		entry := map[string]any{}
		if err := json.Unmarshal(good, &entry); err != nil {
			t.Fatal(err)
		}
		maps.Copy(entry, change)
		text, err := json.Marshal(entry)
		if err == nil {
			err = os.WriteFile(entries[0], text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{
			{"check"}, {"check", "demo", c.Path}, {"get", "demo", c.Path}, {"reload"}, {"ls"}, {"doctor"}, {"gc", "demo"}, {"del", "demo", c.Path},
		} {
			w.checkUsage("entry with "+what+": "+args[0], "", env, exec(args...)...)
		}
	}
}
