package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/applets"
	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/schematest"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/test/product"
)

// inProcess calls a plugin in this process, so the environment may contain what execve(2) does not
// take.
func (w *world) inProcess(verb spec.Verb, plugin, conf string, c applettest.Container, env ...string) answer {
	w.Helper()
	done := make(chan answer, 1)
	go func() {
		exit, out, diag, err := w.Serve(w.Context(), verb, plugin, conf, c, env...)
		if err != nil {
			w.Error(err)
		}
		done <- answer{exit: exit, stdout: out, stderr: diag}
	}()
	select {
	case a := <-done:
		return a
	case <-time.After(processTime):
		w.Fatalf("%s %s does not end", verb, plugin)
		return answer{}
	}
}

// Members of valid configurations.
const (
	goodPrev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"$NETNS"}],
		"ips":[{"address":"10.1.0.2/24","interface":1}]}`
	goodValid = `"cni.dev/valid-attachments":[{"containerID":"other","ifname":"eth0"}]`
	goodHead  = `{"cniVersion":"1.1.0","name":"demo",` + goodValid + `,`
)

// goodPlugins are the plugins of this build, without those that [applettest.Elsewhere] names.
func goodPlugins() []string { return slices.DeleteFunc(product.Plugins(), applettest.Elsewhere) }

func TestGoodConfsHaveTheirType(t *testing.T) {
	for _, name := range product.Plugins() {
		var conf struct{ Type string }
		if err := json.Unmarshal([]byte(goodConf(name)), &conf); err != nil || conf.Type != name {
			t.Errorf("the configuration of %s is of type %q, %v: %s", name, conf.Type, err, goodConf(name))
		}
	}
}

// withMember appends a member to a configuration. encoding/json uses the last of two members with the
// same name.
func withMember(conf, member string) string {
	return strings.TrimSuffix(conf, "}") + "," + member + "}"
}

var allVerbs = []spec.Verb{spec.Add, spec.Check, spec.Del, spec.Get, spec.GC, spec.Status}

// attachedVerbs work on one attachment.
var attachedVerbs = allVerbs[:4]

// exceptDel are all but DEL, which ignores what it cannot read; attachedExceptDel are those of them
// that work on one attachment.
var (
	exceptDel         = []spec.Verb{spec.Add, spec.Check, spec.Get, spec.GC, spec.Status}
	attachedExceptDel = exceptDel[:3]
)

// readsArgs reports whether a plugin, its IPAM plugin or its delegate reads CNI_ARGS.
func readsArgs(plugin string) bool {
	return applettest.Plugins[plugin].Args || strings.Contains(goodConf(plugin), `"ipam":{`)
}

// pluginsWithArgs are the good plugins that read CNI_ARGS.
func pluginsWithArgs() []string {
	return slices.DeleteFunc(goodPlugins(), func(name string) bool { return !readsArgs(name) })
}

// hostileNames are names that must never become part of a path or a command.
var hostileNames = []string{"../x", "..", ".", "/", "/etc/passwd", "a/b", "a\x00b", "-x", "a b", "$(reboot)", "ä", "\xff", "a\nb",
	strings.Repeat("a", 300)}

// A badInput is one that the verbs refuse with a code, whatever the plugin is.
type badInput struct {
	member string      // added to the configuration
	stdin  *string     // instead of a configuration
	env    []string    // variables, as K=V
	verbs  []spec.Verb // nil: all
	only   []string    // plugins; nil: all
	code   int
}

// refuse passes an input to its plugins and verbs. No call may change anything.
func (b badInput) refuse(w *world, c applettest.Container, before string) {
	w.Helper()
	verbs, plugins := b.verbs, b.only
	if verbs == nil {
		verbs = allVerbs
	}
	if plugins == nil {
		plugins = goodPlugins()
	}
	for _, plugin := range plugins {
		conf := strings.ReplaceAll(goodConf(plugin), "$NETNS", c.Path)
		if b.member != "" {
			conf = withMember(conf, b.member)
		}
		if b.stdin != nil {
			conf = *b.stdin
		}
		for _, verb := range verbs {
			a := w.inProcess(verb, plugin, conf, c, b.env...)
			if code := a.code(w.T); code != b.code || code == 0 && !emptyOrResult(a) {
				w.Errorf("%s %s: code %d, want %d: %.400q", verb, plugin, code, b.code, a.stdout)
			}
		}
	}
	if after := w.Snapshot(c); after != before {
		w.Errorf("it changed something:\n%s", kerneltest.Diff(before, after))
	}
}

// emptyOrResult reports whether a success printed nothing or a valid result.
func emptyOrResult(a answer) bool {
	return a.stdout == "" || len(schematest.CheckResult([]byte(a.stdout))) == 0
}

// refuseAll runs a table on one host with another attachment, which must not change.
func refuseAll(t *testing.T, table map[string]badInput) {
	w := newWorld(t)
	c, other := w.Container("ctr"), w.Container("other")
	w.must("other ADD", w.plugin(spec.Add, "bridge", goodConf("bridge"), other))
	kerneltest.LoDown(w, c.NS) // as the DEL of loopback leaves it
	before := w.Snapshot(c)
	for name, b := range table {
		t.Run(name, func(t *testing.T) { b.refuse(w.on(t), c, before) })
	}
	w.must("other CHECK", w.plugin(spec.Check, "host-local", goodConf("host-local"), other))
	w.must("other DEL", w.plugin(spec.Del, "bridge", goodConf("bridge"), other))
}

func TestKernelBadNames(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	table := map[string]badInput{}
	for _, trick := range hostileNames {
		q := quoted(trick)
		plain := map[string]badInput{
			"CNI_CONTAINERID":    {env: []string{"CNI_CONTAINERID=" + trick}, verbs: attachedVerbs, code: spec.CodeEnv},
			"CNI_IFNAME":         {env: []string{"CNI_IFNAME=" + trick}, verbs: attachedVerbs, code: spec.CodeEnv},
			"unused names":       {env: []string{"CNI_CONTAINERID=" + trick, "CNI_IFNAME=" + trick}, verbs: []spec.Verb{spec.GC}},
			"name":               {member: `"name":` + q, verbs: allVerbs, code: spec.CodeConfig},
			"valid ID":           {member: `"cni.dev/valid-attachments":[{"containerID":` + q + `,"ifname":"eth0"}]`, verbs: []spec.Verb{spec.GC}, code: spec.CodeConfig},
			"valid interface":    {member: `"cni.dev/valid-attachments":[{"containerID":"a","ifname":` + q + `}]`, verbs: []spec.Verb{spec.GC}, code: spec.CodeConfig},
			"bridge":             {member: `"bridge":` + q, verbs: []spec.Verb{spec.Add, spec.Check}, only: []string{"bridge"}, code: spec.CodeConfig},
			"CNI_ARGS":           {env: []string{"CNI_ARGS=" + trick}, verbs: attachedExceptDel, only: pluginsWithArgs(), code: spec.CodeEnv},
			"CNI_ARGS of DEL":    {env: []string{"CNI_ARGS=" + trick}, verbs: []spec.Verb{spec.Del}},
			"CNI_ARGS MAC":       {env: []string{"CNI_ARGS=MAC=" + trick}, verbs: []spec.Verb{spec.Add}, only: []string{"bridge", "tuning"}, code: spec.CodeEnv},
			"CNI_ARGS IP":        {env: []string{"CNI_ARGS=IP=" + trick}, verbs: []spec.Verb{spec.Add}, only: []string{"host-local", "bridge"}, code: spec.CodeEnv},
			"relative dataDir":   {member: `"ipam":{"type":"host-local","subnet":"10.1.0.0/24","dataDir":` + quoted("x"+trick) + `}`, verbs: []spec.Verb{spec.Add}, only: []string{"host-local", "bridge"}, code: spec.CodeConfig},
			"relative directory": {member: `"dataDir":` + quoted("x"+trick), verbs: []spec.Verb{spec.Add}, only: []string{"portmap", "tuning", "bandwidth", "sbr", "vrf", "tc-redirect-tap"}, code: spec.CodeConfig},
		}
		if strings.ContainsAny(trick, "/\x00\n") || trick == ".." || trick == "." || len(trick) > 255 { // any file name is a valid type
			plain["type"] = badInput{member: `"type":` + q, verbs: exceptDel, code: spec.CodeConfig}
			plain["ipam.type"] = badInput{member: `"ipam":{"type":` + q + `}`, verbs: exceptDel, code: spec.CodeConfig}
			plain["type of DEL"] = badInput{member: `"type":` + q, verbs: []spec.Verb{spec.Del}}
			plain["ipam.type of DEL"] = badInput{member: `"ipam":{"type":` + q + `}`, verbs: []spec.Verb{spec.Del}}
		}
		for what, b := range plain {
			table[fmt.Sprintf("%s=%.20q", what, trick)] = b
		}
	}
	for name := range table {
		if validName(name) {
			delete(table, name)
		}
	}
	refuseAll(t, table)
}

// quoted returns name as a JSON string. Invalid UTF-8 stays as it is.
func quoted(s string) string {
	if s == "\xff" {
		return "\"\xff\""
	}
	b, _ := json.Marshal(s)
	return string(b)
}

// validName reports whether the pair is valid: interfaces may have names that containers may not.
func validName(name string) bool {
	what, trick, _ := strings.Cut(name, "=")
	free := []string{`"-x"`, `"$(reboot)"`, `"ä"`}
	if what != "CNI_IFNAME" {
		free = append(free, `"\xff"`) // decoded as U+FFFD
	}
	return slices.Contains([]string{"CNI_IFNAME", "valid interface", "bridge"}, what) && slices.Contains(free, trick)
}

func TestKernelBadStdin(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	deep := strings.Repeat("[", 100_000)
	table := map[string]string{
		"empty": "", "blank": " \n", "list": "[]", "null": "null", "string": `"x"`, "number": "1", "true": "true",
		"BOM": "\xef\xbb\xbf" + `{"name":"demo"}`, "UTF-16": "{\x00}\x00", "NUL": "\x00", "NUL behind": `{"name":"demo"}` + "\x00",
		"bytes behind": `{"name":"demo"} x`, "two documents": `{"name":"demo"}{"name":"demo"}`, "cut": `{"name":"demo"`,
		"nested":        `{"name":"demo","x":` + deep + strings.Repeat("]", len(deep)) + "}",
		"nested, open":  deep,
		"nested objets": strings.Repeat(`{"a":`, 100_000),
		"huge":          `{"name":"demo","x":"` + strings.Repeat("x", spec.MaxConf) + `"}`,
		"huge blank":    `{"name":"demo"}` + strings.Repeat(" ", spec.MaxConf),
		"comment":       `{"name":"demo"} // no`, "single quotes": `{'name':'demo'}`, "raw control": "{\"name\":\"de\nmo\"}",
		"bad escape": `{"name":"\x41"}`,
	}
	cases := map[string]badInput{}
	for name, stdin := range table {
		cases[name] = badInput{stdin: &stdin, code: spec.CodeDecode}
	}
	refuseAll(t, cases)
}

func TestKernelBadMembers(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	adds := []spec.Verb{spec.Add}
	// dhcp and flannel read args, too, but fail before that without their daemon.
	argsReaders := slices.DeleteFunc(pluginsWithArgs(), func(name string) bool { return name == "dhcp" || name == "flannel" })
	table := map[string]badInput{
		"name a number":    {member: `"name":1`, code: spec.CodeConfig},
		"name null":        {member: `"name":null`, code: spec.CodeConfig},
		"name in capitals": {member: `"NAME":"../x"`, code: spec.CodeConfig},
		"name twice":       {member: `"name":"demo","name":"../x"`, code: spec.CodeConfig},
		"name not UTF-8":   {member: "\"name\":\"d\xffemo\"", code: spec.CodeConfig},
		"type a number":    {member: `"type":1`, code: spec.CodeConfig},
		"ipam a string":    {member: `"ipam":"host-local"`, code: spec.CodeConfig},
		"ipam a list":      {member: `"ipam":[]`, code: spec.CodeConfig},
		"dns a number":     {member: `"dns":5`, code: spec.CodeConfig},
		"dns capability":   {member: `"runtimeConfig":{"dns":{"servers":["ns.example"]}}`, code: spec.CodeConfig},
		// Only the plugins that read args refuse it; TestArgsOfOtherPlugins has the others.
		"args a list":       {member: `"args":[]`, verbs: adds, only: argsReaders, code: spec.CodeConfig},
		"args.cni a string": {member: `"args":{"cni":"x"}`, verbs: adds, only: argsReaders, code: spec.CodeConfig},
		"args.cni.ips":      {member: `"args":{"cni":{"ips":"10.1.0.2"}}`, verbs: adds, only: []string{"host-local", "static", "bridge"}, code: spec.CodeConfig},
		"args.cni.mac":      {member: `"args":{"cni":{"mac":5}}`, verbs: adds, only: []string{"bridge", "ptp", "tap", "tuning"}, code: spec.CodeConfig},
		"name of 201 bytes": {member: `"name":"` + strings.Repeat("n", 201) + `"`, verbs: []spec.Verb{spec.Add, spec.Check, spec.Get, spec.Status}, code: spec.CodeConfig},
		"dns of names":      {member: `"dns":{"nameservers":["ns.example"]}`, code: spec.CodeConfig},
		"dns of numbers":    {member: `"dns":{"nameservers":[1]}`, code: spec.CodeConfig},
		"version a number":  {member: `"cniVersion":1`, code: spec.CodeDecode},
		"unknown version":   {member: `"cniVersion":"9.9.9"`, code: spec.CodeVersion},
		"version with path": {member: `"cniVersion":"1.0"`, verbs: []spec.Verb{spec.Add}, code: spec.CodeVersion},
	}
	for name, b := range maps.Clone(table) {
		if b.verbs == nil {
			b.verbs = exceptDel
			table[name] = b
		}
		del := badInput{member: b.member, verbs: []spec.Verb{spec.Del}}
		if strings.HasPrefix(name, "name ") && name != "name of 201 bytes" { // DEL needs it
			del.code = b.code
		}
		table[name+" of DEL"] = del
	}
	table["valid a string"] = badInput{member: `"cni.dev/valid-attachments":"x"`, verbs: []spec.Verb{spec.GC}, code: spec.CodeConfig}
	table["valid of nulls"] = badInput{member: `"cni.dev/valid-attachments":[null]`, verbs: []spec.Verb{spec.GC}, code: spec.CodeConfig}
	for _, plugin := range goodPlugins() {
		for _, m := range applettest.Plugins[plugin].Invalid {
			conf := goodHead + m + "}"
			if plugin != "host-local" && plugin != "static" { // all their keys are below ipam
				conf = withMember(goodConf(plugin), m)
			}
			table[plugin+" "+m] = badInput{stdin: &conf, verbs: adds, only: []string{plugin}, code: spec.CodeConfig}
		}
	}
	refuseAll(t, table)
}

// An IPAM plugin must be one that gives addresses; an interface plugin there would delegate to
// itself. DEL has nothing to release by it and does everything else.
func TestKernelBadIPAMType(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	table := map[string]badInput{}
	for _, kind := range []string{"bridge", "tuning"} {
		member := `"ipam":{"type":"` + kind + `"}`
		for _, plugin := range []string{"bridge", "macvlan", "ptp"} {
			if built(plugin) {
				table[plugin+" "+kind] = badInput{member: member, verbs: []spec.Verb{spec.Add, spec.Check, spec.GC, spec.Status}, only: []string{plugin}, code: spec.CodeConfig}
				table[plugin+" "+kind+" DEL"] = badInput{member: member, verbs: []spec.Verb{spec.Del}, only: []string{plugin}}
			}
		}
	}
	refuseAll(t, table)
}

func TestKernelBadPrevResult(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	table := map[string]string{
		"string": `"x"`, "list": `[]`, "null interface": `{"interfaces":[null]}`, "null address": `{"ips":[null]}`, "null route": `{"routes":[null]}`,
		"no address": `{"ips":[{}]}`, "bad address": `{"ips":[{"address":"10.1.0.2"}]}`, "leading zeros": `{"ips":[{"address":"010.1.0.2/24"}]}`,
		"zone": `{"ips":[{"address":"fe80::1%eth0/64"}]}`, "too long a prefix": `{"ips":[{"address":"10.1.0.2/33"}]}`,
		"huge index":     `{"ips":[{"address":"10.1.0.2/24","interface":99999999999999999999}]}`,
		"negative index": `{"ips":[{"address":"10.1.0.2/24","interface":-2}]}`,
		"fraction":       `{"ips":[{"address":"10.1.0.2/24","interface":0.5}]}`,
		"no destination": `{"routes":[{"gw":"10.1.0.1"}]}`, "bad gateway": `{"ips":[{"address":"10.1.0.2/24","gateway":"x"}]}`,
		"MTU of a route below 68":    `{"routes":[{"dst":"10.3.0.0/24","mtu":67}]}`,
		"MTU of a route above 65535": `{"routes":[{"dst":"::/0","mtu":65536}]}`, "name server a name": `{"dns":{"nameservers":["ns.example"]}}`,
		"no MAC": `{"interfaces":[{"name":"eth0","mac":"02:00:00:00:00:0g"}]}`, "MAC too short": `{"interfaces":[{"name":"eth0","mac":"02:00:00:00:00"}]}`,
		"unknown version": `{"cniVersion":"9.9.9"}`, "interfaces an object": `{"interfaces":{}}`, "old address": `{"cniVersion":"0.2.0","ip4":{"ip":5}}`,
	}
	cases := map[string]badInput{}
	for name, prev := range table {
		cases[name] = badInput{member: `"prevResult":` + prev, verbs: exceptDel, code: spec.CodeConfig}
		cases[name+" of DEL"] = badInput{member: `"prevResult":` + prev, verbs: []spec.Verb{spec.Del}}
	}
	refuseAll(t, cases)
}

// Unusual but valid prevResults are passed on in the version of the configuration.
func TestKernelUnusualPrevResult(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	many := strings.TrimSuffix(strings.Repeat(`{"name":"a","sandbox":"/x"},`, 10_000), ",")
	table := map[string]string{
		"10,000 interfaces": `{"interfaces":[` + many + `],"ips":[{"address":"10.1.0.2/24","interface":9999}]}`,
		"another family":    `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24"}}`,
		"names with paths":  `{"interfaces":[{"name":"../../x","sandbox":"../../y"}],"ips":[{"address":"10.1.0.2/24","interface":0}]}`,
		"empty":             `{}`,
		"IPv6 alone":        `{"ips":[{"address":"fd00::2/64"}]}`,
		"foreign gateway":   `{"ips":[{"address":"10.1.0.2/24","gateway":"fd00::1"}],"routes":[{"dst":"10.3.0.0/24","gw":"fd00::1"}]}`,
	}
	w := newWorld(t)
	c := w.Container("ctr")
	before := w.Snapshot(c)
	for name, prev := range table {
		t.Run(name, func(t *testing.T) {
			w := w.on(t)
			for _, plugin := range goodPlugins() {
				conf := withMember(goodConf(plugin), `"prevResult":`+prev)
				for _, verb := range []spec.Verb{spec.Check, spec.Get, spec.Del} {
					if verb == spec.Del && plugin == "loopback" {
						continue // it sets lo down whatever prevResult says
					}
					a := w.inProcess(verb, plugin, conf, c)
					if code := a.code(t); code == spec.CodeInternal || code == 0 && !emptyOrResult(a) {
						t.Errorf("%s %s: %.400s", verb, plugin, a.stdout)
					}
				}
			}
			w.Same("CHECK, GET and DEL", before, w.Snapshot(c))
			for _, plugin := range []string{"loopback", "portmap", "tuning"} {
				conf := goodHead + `"type":"` + plugin + `","dataDir":"$DIR/records","prevResult":` + prev + "}"
				a := w.inProcess(spec.Add, plugin, conf, c, "CNI_IFNAME=lo")
				bare := strings.Join(strings.Fields(a.stdout), "")
				if a.code(t) != 0 || !strings.HasPrefix(bare, `{"cniVersion":"1.1.0"`) || !emptyOrResult(a) {
					t.Errorf("ADD %s: %.400s%.400s", plugin, a.stdout, a.stderr)
				}
			}
		})
	}
}

// makeOddFiles makes files that are not a network namespace.
func (w *world) makeOddFiles() {
	w.Helper()
	for name, mk := range oddFiles {
		if err := mk(w.Path("odd-" + name)); err != nil {
			w.Fatal(err)
		}
	}
}

// ADD, CHECK and GET refuse a CNI_NETNS that is not a network namespace, for which DEL succeeds.
// All refuse the host's own.
func TestKernelBadNetNS(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	w := newWorld(t)
	c := w.Container("ctr")
	w.makeOddFiles()
	before := w.Snapshot(c)
	paths := map[string]string{
		"mount namespace": "/proc/self/ns/mnt", "user namespace": "/proc/self/ns/user", "device": "/dev/null",
		"absent": w.Path("absent"), "below a file": "/dev/null/x", "long": "/" + strings.Repeat("a/", 3000), "long name": "/" + strings.Repeat("a", 300),
		"relative": "odd-regular", "own": "/proc/self/ns/net", "own thread": "/proc/thread-self/ns/net",
	}
	for name := range oddFiles {
		paths[name] = w.Path("odd-" + name)
	}
	for name, path := range paths {
		t.Run(name, func(t *testing.T) {
			w, own, call := w.on(t), strings.HasPrefix(name, "own"), w.inProcess
			if own || name == "relative" { // the path is relative to the process
				call = w.plugin
			}
			for _, plugin := range goodPlugins() {
				for _, verb := range attachedVerbs {
					want := spec.CodeNetNS
					applet, _ := applets.Lookup(plugin)
					facts := applet.Plugin().Facts
					switch {
					case verb == spec.Get && facts.AnyNetNS:
						continue // an address needs no namespace
					case verb == spec.Get && (name == "absent" || name == "symlink"):
						want = spec.CodeUnknown // a container that was deleted
					case own:
					case verb == spec.Del:
						want = 0
					case facts.AnyNetNS:
						continue // an address needs no namespace
					}
					a := call(verb, plugin, strings.ReplaceAll(goodConf(plugin), "$NETNS", path), c, "CNI_NETNS="+path)
					if code := a.code(t); code != want {
						t.Errorf("%s %s: code %d, want %d: %s%s", verb, plugin, code, want, a.stdout, a.stderr)
					}
				}
			}
			w.Same("odd namespace", before, w.Snapshot(c))
		})
	}
}

// CNI_NETNS_OVERRIDE allows the host's own namespace as CNI_NETNS.
func TestKernelNetNSOverride(t *testing.T) {
	kerneltest.Slow(t)
	w := newWorld(t)
	w.must("other ADD", w.plugin(spec.Add, "bridge", goodConf("bridge"), w.Container("other")))
	before := w.Snapshot()
	self := applettest.Container{ID: "ctr", Path: "/proc/self/ns/net"}
	for _, yes := range []string{"1", "true", "TRUE"} {
		w.must("ADD", w.plugin(spec.Add, "bridge", goodConf("bridge"), self, "CNI_NETNS_OVERRIDE="+yes))
		w.must("DEL", w.plugin(spec.Del, "bridge", goodConf("bridge"), self, "CNI_NETNS_OVERRIDE="+yes))
		w.Same("override", before, w.Snapshot())
	}
	for _, no := range []string{"", "0", "yes"} {
		if code := w.plugin(spec.Add, "bridge", goodConf("bridge"), self, "CNI_NETNS_OVERRIDE="+no).code(t); code != spec.CodeNetNS {
			t.Errorf("override %q: code %d", no, code)
		}
	}
}

// Missing variables are refused; this needs no privilege.
func TestBadEnvironment(t *testing.T) {
	for _, plugin := range goodPlugins() {
		a, _ := applets.Lookup(plugin)
		for _, verb := range attachedVerbs {
			for _, missing := range []string{"CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"} {
				if missing == "CNI_NETNS" && verb == spec.Del {
					continue
				}
				var out, diag bytes.Buffer
				exit := applet.Serve(t.Context(), a, applet.Process{
					Applets: applets.All(),
					Getenv: func(k string) string {
						return map[string]string{"CNI_COMMAND": string(verb), "CNI_CONTAINERID": "c", "CNI_IFNAME": "e", "CNI_NETNS": "/n", missing: ""}[k]
					},
					Stdin: strings.NewReader(`{"name":"demo"}`), Stdout: &out, Stderr: &diag,
				})
				got := answer{exit: exit, stdout: out.String(), stderr: diag.String()}
				if got.code(t) != spec.CodeEnv || !strings.Contains(got.stdout, missing) || got.stderr != "" {
					t.Errorf("%s %s without %s: %+v", verb, plugin, missing, got)
				}
			}
		}
	}
}

// CVE-2021-20206: a plugin's type cannot be a path, so it starts no other program of the host.
func TestKernelCVE2021_20206(t *testing.T) {
	kerneltest.Slow(t)
	w := newWorld(t)
	c := w.Container("ctr")
	evil := "#!/bin/sh\ntouch $DIR/started\necho {}\n"
	w.write("evil", evil)
	w.write("bin/sub/evil", evil)
	for _, file := range []string{"evil", "bin/sub/evil"} {
		if err := os.Chmod(w.Path(file), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	before := w.Snapshot(c)
	for _, plugin := range []string{"../evil", "sub/evil", "./sub/evil", w.Path("evil"), "bridge/../../evil", "..\\evil"} {
		q := quoted(plugin)
		w.write("net.d/demo.conflist", `{"cniVersion":"1.1.0","name":"demo","plugins":[{"type":`+q+`}]}`)
		for verb, do := range map[string]func(*world, applettest.Container, int, ...string) answer{"add": victims["cni-exec"].add, "del": victims["cni-exec"].del} {
			if a := do(w, c, 8080); a.code(t) != spec.CodeConfig {
				t.Errorf("cni-exec %s of type %s: %s", verb, plugin, a.stdout)
			}
		}
		conf := goodHead + `"type":"bridge","bridge":"br0","ipam":{"type":` + q + `}}`
		w.write("net.d/demo.conflist", `{"cniVersion":"1.1.0","name":"demo","plugins":[`+strings.Replace(killConf, "br0", "br7", 1)+`,`+conf+`]}`)
		if a := victims["cni-exec"].add(w, c, 8080); a.code(t) != spec.CodeConfig {
			t.Errorf("cni-exec add with ipam.type %s: %s", plugin, a.stdout)
		}
		for _, verb := range allVerbs {
			want := spec.CodeConfig
			if verb == spec.Del {
				want = 0 // nothing to release by it
			}
			if a := w.plugin(verb, "bridge", conf, c); a.code(t) != want {
				t.Errorf("%s with ipam.type %s: %s", verb, plugin, a.stdout)
			}
		}
	}
	if _, err := os.Lstat(w.Path("started")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the program was started: %v", err)
	}
	w.Same("types with paths", before, w.Snapshot(c))
}
