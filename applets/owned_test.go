package applets_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/spec"
)

// manyMappings are more ports than a record of portmap names.
func manyMappings(from int) string {
	var all []string
	for p := from; p < from+40; p++ {
		all = append(all, fmt.Sprintf(`{"hostPort":%d,"containerPort":%d,"protocol":"udp"}`, p, p))
	}
	return strings.Join(all, ",")
}

// ownedLists are lists whose plugins own elements of the rule set, by what they make. The port mappings of the first
// container follow; those of the other one have other host ports.
var ownedLists = map[string]struct {
	plugins       []string
	ports, others string
}{
	"bridge":               {[]string{`"type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,` + applettest.Ranges + `}`}, "", ""},
	"bridge without rules": {[]string{`"type":"bridge","bridge":"br0","ipam":{}`}, "", ""},
	"bridge guarded": {[]string{`"type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,"macspoofchk":true,"portIsolation":true,` + applettest.Ranges + `}`},
		"", ""},
	"bridge guarded, and tuning": {[]string{
		`"type":"bridge","bridge":"br0","macspoofchk":true,` + applettest.Ranges + `}`,
		`"type":"tuning","dataDir":"$DIR/tuning","mac":"02:00:00:00:00:77"`}, "", ""},
	"ptp": {[]string{`"type":"ptp","ipMasq":true,` + applettest.Ranges + `}`}, "", ""},
	"portmap": {[]string{`"type":"ptp",` + applettest.Ranges + `}`, `"type":"portmap","dataDir":"$DIR/ports","capabilities":{"portMappings":true}`},
		`{"hostPort":8080,"containerPort":80},{"hostPort":8080,"containerPort":80,"protocol":"udp"},{"hostPort":8081,"containerPort":80,"hostIP":"127.0.0.1"},` +
			`{"hostPort":8082,"containerPort":81,"hostIP":"fd00:9::1","protocol":"sctp"}`,
		`{"hostPort":9080,"containerPort":80},{"hostPort":9082,"containerPort":81,"hostIP":"fd00:9::1","protocol":"sctp"}`},
	"portmap with conditions": {[]string{`"type":"ptp",` + applettest.Ranges + `}`,
		`"type":"portmap","dataDir":"$DIR/ports","capabilities":{"portMappings":true},"conditionsV4":["-s","192.0.2.2"],"masqAll":true`},
		`{"hostPort":8080,"containerPort":80}`, `{"hostPort":9080,"containerPort":80}`},
	"portmap without snat, many": {[]string{`"type":"ptp",` + applettest.Ranges + `}`,
		`"type":"portmap","dataDir":"$DIR/ports","capabilities":{"portMappings":true},"snat":false`}, manyMappings(8000), manyMappings(9000)},
	"firewall": {[]string{`"type":"ptp",` + applettest.Ranges + `}`, `"type":"firewall","dataDir":"$DIR/firewall"`}, "", ""},
	"firewall in its own table, isolated": {[]string{`"type":"bridge","bridge":"br0","isGateway":true,` + applettest.Ranges + `}`,
		`"type":"firewall","dataDir":"$DIR/firewall","backend":"nftables","ingressPolicy":"isolated"`}, "", ""},
	"list": {[]string{`"type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,"macspoofchk":true,` + applettest.Ranges + `}`,
		`"type":"portmap","dataDir":"$DIR/ports","capabilities":{"portMappings":true}`,
		`"type":"firewall","dataDir":"$DIR/firewall","ingressPolicy":"same-bridge"`},
		`{"hostPort":8080,"containerPort":80}`, `{"hostPort":9080,"containerPort":80}`},
}

// TestKernelDelLeavesNoElement: whatever DEL is told of an attachment, prevResult or none, and with or without the
// plugins' records, it deletes what the attachment owns in the rule set, and nothing of another one; each plugin in a
// process of its own, and all in one.
func TestKernelDelLeavesNoElement(t *testing.T) {
	applettest.NeedBridge(t)
	for name, list := range ownedLists {
		for _, folded := range []bool{false, true} {
			for _, known := range []string{"prevResult and records", "prevResult", "prevResult without addresses", "records", "nothing"} {
				t.Run(fmt.Sprintf("%s/folded=%t/%s", name, folded, known), func(t *testing.T) {
					t.Parallel()
					h := applettest.NewHost(t)
					runtime := func(ports string) string { return `,"runtimeConfig":{"portMappings":[` + ports + `]}` }
					ctr, other := h.Container("ctr"), h.Container("other")
					chain := newOwnedChain(h, list.plugins, folded)
					chain.add(other, runtime(list.others))
					before := nfttest.Ruleset(t, h.NS)
					last := chain.add(ctr, runtime(list.ports))
					if got := nfttest.Ruleset(t, h.NS); (got == before) != (name == "bridge without rules") {
						t.Fatalf("ADD made\n%s", kerneltest.Diff(before, got))
					}
					if known == "prevResult without addresses" {
						var result map[string]any
						h.NoError(json.Unmarshal([]byte(last), &result))
						delete(result, "ips")
						text, err := json.Marshal(result)
						h.NoError(err)
						last = string(text)
					}
					if strings.HasPrefix(known, "prevResult") && known != "prevResult and records" || known == "nothing" {
						for _, dir := range []string{"ports", "firewall"} {
							path := filepath.Join(h.Dir, dir, record.Name(spec.Attachment{Network: "demo", ContainerID: "ctr", IfName: "eth0"}))
							if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
								t.Fatal(err)
							}
						}
					}
					if known == "records" || known == "nothing" {
						last = ""
					}
					for range 2 {
						chain.del(ctr, last)
						if got := nfttest.Ruleset(t, h.NS); got != before {
							t.Fatalf("DEL left\n%s", kerneltest.Diff(before, got))
						}
					}
				})
			}
		}
	}
}

// An ownedChain calls the plugins of a list.
type ownedChain struct {
	h     *applettest.Host
	types []string
	confs []string // without the last brace
}

func newOwnedChain(h *applettest.Host, plugins []string, folded bool) *ownedChain {
	c := &ownedChain{h: h}
	if folded {
		plugins = []string{`"type":"cnibox","plugins":[{` + strings.Join(plugins, "},{") + `}]`}
	}
	for _, p := range plugins {
		plugin, _, _ := strings.Cut(strings.TrimPrefix(p, `"type":"`), `"`)
		c.types = append(c.types, plugin)
		c.confs = append(c.confs, `{"cniVersion":"1.1.0","name":"demo",`+p)
	}
	return c
}

func (c *ownedChain) conf(i int, runtime, prev string) string {
	conf := c.confs[i] + runtime
	if prev != "" {
		conf += `,"prevResult":` + prev
	}
	return conf + "}"
}

// add returns the result of the last plugin.
func (c *ownedChain) add(p applettest.Container, runtime string) (prev string) {
	c.h.Helper()
	for i, plugin := range c.types {
		prev = c.h.Must(spec.Add, plugin, c.conf(i, runtime, prev), p)
	}
	return prev
}

// del deletes without runtimeConfig, which runtimes omit.
func (c *ownedChain) del(p applettest.Container, prev string) {
	c.h.Helper()
	for i, plugin := range slices.Backward(c.types) {
		c.h.Must(spec.Del, plugin, c.conf(i, "", prev), p)
	}
}
