package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// unreadable is input that no ADD accepts. DEL ignores each, with a warning that has the text in
// it.
var unreadable = map[string]struct {
	member string // of the configuration; empty: none
	env    string
	warns  string
}{
	"CNI_ARGS no pairs":        {env: "CNI_ARGS=none", warns: "none"},
	"IgnoreUnknown no bool":    {env: "CNI_ARGS=IgnoreUnknown=yes", warns: "IgnoreUnknown"},
	"prevResult a string":      {member: `"prevResult":"x"`, warns: "prevResult"},
	"prevResult with a null":   {member: `"prevResult":{"ips":[null]}`, warns: "prevResult"},
	"prevResult of 9.9.9":      {member: `"prevResult":{"cniVersion":"9.9.9"}`, warns: "prevResult"},
	"prevResult without a MAC": {member: `"prevResult":{"interfaces":[{"name":"eth0","mac":"x"}]}`, warns: "prevResult"},
	"dns of names":             {member: `"dns":{"nameservers":["x"]}`, warns: "dns"},
	"dns a number":             {member: `"dns":5`, warns: "dns"},
	"runtimeConfig.dns a list": {member: `"runtimeConfig":{"dns":[]}`, warns: "dns"},
	"args a list":              {member: `"args":[]`},
	"type a path":              {member: `"type":"../x"`, warns: "type"},
	"version of 9.9.9":         {member: `"cniVersion":"9.9.9"`, warns: "9.9.9"},
	"version a number":         {member: `"cniVersion":5`, warns: "cniVersion"},
	"index that leads nowhere": {member: `"prevResult":{"interfaces":[],"ips":[{"address":"10.1.0.2/24","interface":7}]}`},
}

// DEL of each plugin succeeds with unreadable input and leaves nothing; another attachment does not
// change.
func TestKernelDelUnreadable(t *testing.T) {
	kerneltest.OneKernel(t)
	t.Parallel()
	eachPlugin(t, func(t *testing.T, plugin string, f fixture) {
		f.NeedChain(t)
		for name, u := range unreadable {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w, other := f.host(t, plugin, false)
				m := w.endable("ctr")
				f.enter(w, m.Container)
				before := w.Snapshot(m.Container)
				a := w.attach(plugin, m.Container, w.inProcess)
				for i := a.last(); i >= 0; i-- {
					conf := a.conf(i)
					if u.member != "" {
						conf = withMember(conf, u.member)
					}
					var env []string
					if u.env != "" {
						env = []string{u.env}
					}
					got := w.inProcess(spec.Del, a.steps[i].plugin, conf, a.c, env...)
					if out := w.must("DEL "+a.steps[i].plugin, got); out != "" {
						t.Errorf("DEL %s says %q on stdout", a.steps[i].plugin, out)
					}
					if !strings.Contains(got.stderr, u.warns) || u.warns != "" && got.stderr == "" {
						t.Errorf("DEL %s warns %q, want %q", a.steps[i].plugin, got.stderr, u.warns)
					}
				}
				w.Same("DEL", before, w.Snapshot(m.Container))
				other.must(spec.Check, other.last())
			})
		}
	})
}

// DEL needs the network, the container ID and the interface name.
func TestKernelDelNeedsNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.Container("ctr")
	kerneltest.LoUp(w, c.NS)
	before := w.Snapshot(c)
	for _, plugin := range goodPlugins() {
		for _, name := range []string{`null`, `5`, `"../x"`, `"-x"`, quoted(strings.Repeat("n", 300))} {
			a := w.inProcess(spec.Del, plugin, withMember(goodConf(plugin), `"name":`+name), c)
			if a.code(t) != spec.CodeConfig || !strings.Contains(a.stdout, "network name") {
				t.Errorf("DEL %s of %.20s: %+v", plugin, name, a)
			}
		}
		for _, missing := range []string{"CNI_CONTAINERID", "CNI_IFNAME"} {
			a := w.inProcess(spec.Del, plugin, goodConf(plugin), c, missing+"=")
			if a.code(t) != spec.CodeEnv || !strings.Contains(a.stdout, missing) {
				t.Errorf("DEL %s without %s: %+v", plugin, missing, a)
			}
		}
	}
	w.Same("DEL", before, w.Snapshot(c))
}

// Plugins that read CNI_ARGS refuse malformed ones; all others warn.
func TestKernelMalformedArgs(t *testing.T) {
	w := newWorld(t)
	c := w.Container("ctr")
	for _, plugin := range goodPlugins() {
		reads := readsArgs(plugin)
		for _, args := range []string{"none", "IgnoreUnknown=yes"} {
			for _, verb := range []spec.Verb{spec.Add, spec.Check} {
				conf := strings.ReplaceAll(goodConf(plugin), "$NETNS", c.Path)
				a := w.inProcess(verb, plugin, conf, c, "CNI_ARGS="+args)
				switch code := a.code(t); {
				case reads && (code != spec.CodeEnv || !strings.Contains(a.stdout, "CNI_ARGS")):
					t.Errorf("%s %s with %s: %s, want code 4", verb, plugin, args, a.stdout)
				case !reads && (code == spec.CodeEnv || !strings.Contains(a.stderr, "CNI_ARGS")):
					t.Errorf("%s %s with %s: %s%s, want a warning, or Args in the descriptor of %[2]s", verb, plugin, args, a.stdout, a.stderr)
				}
			}
		}
	}
}

// An address of prevResult with an invalid interface index is an error only of ADD and CHECK, and
// only of plugins that need to know its interface.
func TestKernelInvalidInterfaceIndex(t *testing.T) {
	t.Parallel()
	const prev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"lo","sandbox":"$NETNS"}],"ips":[{"address":"10.1.0.2/24","interface":1}]}`
	needs := []string{"portmap", "sbr"}
	w := newWorld(t)
	c := w.Container("ctr")
	for _, plugin := range goodPlugins() {
		conf := withMember(goodConf(plugin), strings.ReplaceAll(prev, "$NETNS", c.Path))
		for _, verb := range allVerbs {
			a := w.inProcess(verb, plugin, conf, c, "CNI_IFNAME=lo")
			refused := a.code(t) == spec.CodeConfig && strings.Contains(a.stdout, "outside the list")
			maker := applettest.Makes(plugin) && plugin != "flannel"
			want := verb == spec.Check && (maker || plugin == "vrf") ||
				(verb == spec.Add || verb == spec.Check) && slices.Contains(needs, plugin)
			if refused != want {
				t.Errorf("%s %s: refused %t, want %t: %s", verb, plugin, refused, want, a.stdout)
			}
		}
	}
}
