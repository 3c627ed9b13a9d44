//go:build !no_bridge && !no_host_device && !no_bandwidth && !no_portmap && !no_firewall

package applets_test

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// The keys of these two networks have the same first 32 bits, by which links, rules and records are
// found. Search of such a pair takes a second.
const network, namesake = "net42889", "net14758"

// GC deletes no links, rules, devices or ports of a network with the same key.
func TestKernelGCOfNetworkWithSameKey(t *testing.T) {
	applettest.NeedShaping(t)
	if spec.NetworkKey(network) != spec.NetworkKey(namesake) {
		t.Fatal("the two names do not have the same key")
	}
	h := applettest.NewHost(t)
	h.NIC("nic0")
	one, two := h.Container("one"), h.Container("two")
	bridge := `{"cniVersion":"1.1.0","name":"` + network + `","type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,"macspoofchk":true,
		"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24"}}`
	device := strings.NewReplacer(`"demo"`, `"`+network+`"`, "10.1.0.", "10.2.0.").Replace(applettest.DeviceConf("nic0"))
	result := h.Must(spec.Add, "bridge", bridge, one)
	onDevice := h.Must(spec.Add, "host-device", device, two)
	chained := map[string]string{
		"bandwidth": applettest.BothLimits,
		"portmap":   `"dataDir":"$DIR/ports","capabilities":{"portMappings":true},"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`,
		"firewall":  `"ingressPolicy":"isolated"`,
	}
	for plugin, keys := range chained {
		chained[plugin] = `{"cniVersion":"1.1.0","name":"` + network + `","type":"` + plugin + `",` + keys + `}`
		h.Must(spec.Add, plugin, applettest.Prev(chained[plugin], result), one)
	}
	before, of2 := h.Snapshot(one), kerneltest.Snapshot(t, two.NS)
	collect := func(plugin, conf string) {
		t.Helper()
		conf = strings.Replace(conf, network, namesake, 1)
		h.Must(spec.GC, plugin, strings.Replace(conf, `"name":`, `"cni.dev/valid-attachments":[],"name":`, 1), applettest.Container{})
		if after := h.Snapshot(one); after != before {
			t.Errorf("GC of %s by %s:\n%s", namesake, plugin, kerneltest.Diff(before, after))
		}
	}
	collect("bridge", bridge)
	collect("host-device", device)
	if after := kerneltest.Snapshot(t, two.NS); after != of2 {
		t.Errorf("GC of %s by host-device:\n%s", namesake, kerneltest.Diff(of2, after))
	}
	for plugin, conf := range chained {
		collect(plugin, conf)
	}
	h.Must(spec.Check, "bridge", applettest.Prev(bridge, result), one)
	h.Must(spec.Check, "host-device", applettest.Prev(device, onDevice), two)
	for plugin, conf := range chained {
		h.Must(spec.Check, plugin, applettest.Prev(conf, result), one)
	}
}
