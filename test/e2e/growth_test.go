package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// How many attachments are on the host, half of them of the same network; and how many more bytes of files a
// verb may read with many than with few, since numbers and addresses have more digits, and how many more answers,
// of how many bytes, since the kernel adds link-local addresses and their routes in its own time.
const (
	fewAttached  = 2
	manyAttached = 60
	moreBytes    = 64
	moreAnswers  = 8
	answerSize   = 150
)

// growthLists are lists of plugins. N stands for one of two networks, C for the container's number,
// from 1 on.
var growthLists = map[string][]chainStep{
	"bridge": {
		{"bridge", `"bridge":"br$N","isDefaultGateway":true,"ipMasq":true,"macspoofchk":true,"ipam":{"type":"host-local","dataDir":"$DIR/leases",
			"ranges":[[{"subnet":"10.$N.0.0/16"}],[{"subnet":"fd00:$N::/64"}]]}`},
		{"portmap", `"dataDir":"$DIR/ports","capabilities":{"portMappings":true},"runtimeConfig":{"portMappings":[
			{"hostPort":$N0$C,"containerPort":80},{"hostPort":$N1$C,"containerPort":53,"protocol":"udp"}]}`},
		{"firewall", `"dataDir":"$DIR/firewall","backend":"nftables","ingressPolicy":"same-bridge"`},
		{"tuning", `"dataDir":"$DIR/tuning","mtu":1400,"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}`},
		{"bandwidth", `"dataDir":"$DIR/bandwidth","ingressRate":80000000,"ingressBurst":80000,"egressRate":80000000,"egressBurst":80000`},
	},
	"firewall": {
		{"bridge", `"bridge":"br$N","isGateway":true,"ipam":{"type":"host-local","dataDir":"$DIR/leases",
			"ranges":[[{"subnet":"10.$N.0.0/16"}],[{"subnet":"fd00:$N::/64"}]]}`},
		{"firewall", `"dataDir":"$DIR/firewall","ingressPolicy":"same-bridge"`},
	},
	"ptp": {
		{"ptp", `"ipMasq":true,"ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.$N.0.0/16"}`},
		{"sbr", `"dataDir":"$DIR/sbr"`},
	},
	"macvlan": {{"macvlan", `"master":"m$N","ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.$N.0.0/16"}`}},
	"ipvlan":  {{"ipvlan", `"master":"m$N","ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.$N.0.0/16"}`}},
	"dummy":   {{"dummy", `"ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.$N.0.0/16"}`}},
	"tap":     {{"tap", `"ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.$N.0.0/16"}`}},
	"vlan":    {{"vlan", `"master":"m$N","vlanId":1$C,"ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.$N.0.0/16"}`}},
	"vrf": {
		{"ptp", `"ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.$N.0.0/16"}`},
		{"vrf", `"dataDir":"$DIR/vrf","vrfname":"blue"`},
	},
	"tc-redirect-tap": {
		{"bridge", `"bridge":"br$N","ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.$N.0.0/16"}`},
		{"tc-redirect-tap", `"dataDir":"$DIR/taps"`},
	},
	"host-device": {{"host-device", `"device":"card$C","dataDir":"$DIR/devices","ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.$N.0.0/16"}`}},
	"flannel":     {{"flannel", `"subnetFile":"$DIR/subnet$N.env","dataDir":"$DIR/subnets","delegate":{"bridge":"br$N"},"ipam":{"dataDir":"$DIR/leases"}`}},
	"dhcp":        {{"bridge", `"bridge":"br0","ipam":{"type":"dhcp","daemonSocketPath":"$DIR/dhcp.sock"}`}},
}

// growthHost makes what a list needs on the host.
func (w *world) growthHost(list string) {
	w.Helper()
	for i, m := range []string{"m1", "m2"} {
		w.write(fmt.Sprintf("subnet%d.env", i+1), fmt.Sprintf("FLANNEL_NETWORK=10.%d.0.0/16\nFLANNEL_SUBNET=10.%[1]d.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n", i+1))
		kerneltest.AddLink(w.T, w.NS, rtnl.LinkSpec{Name: m, Kind: rtnl.Bridge{}, Up: true})
	}
	if s := services[list]; s.start != nil {
		s.start(w)
	}
}

// growthContainer makes a container, and the device for host-device.
func (w *world) growthContainer(list string, n int) applettest.Container {
	w.Helper()
	if list == "host-device" {
		card := rtnl.LinkSpec{Name: fmt.Sprintf("card%02d", n), Peer: &rtnl.LinkSpec{Name: fmt.Sprint("wire", n)}}
		if err := kerneltest.Dial(w.T, w.NS).AddLink(card); err != nil {
			w.Fatal(err)
		}
	}
	return w.Container(fmt.Sprint("c", n))
}

// growthSteps returns the steps of one container; containers alternate between the networks.
func growthSteps(list string, container int) (network string, steps []chainStep) {
	number := 1 + container%2
	network = fmt.Sprintf("net%d", number)
	for _, s := range growthLists[list] {
		conf := strings.NewReplacer("$N", strconv.Itoa(number), "$C", fmt.Sprintf("%02d", container)).Replace(s.conf)
		steps = append(steps, chainStep{s.plugin, fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"type":%q,%s}`, network, s.plugin, conf)})
	}
	return network, steps
}

// TestKernelCostsDoNotGrow compares each verb with few and with many attachments on the host, half of
// them of the same network: what cni-exec does with a list, and each of its plugins alone.
func TestKernelCostsDoNotGrow(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	for list, steps := range growthLists {
		if !slices.ContainsFunc(steps, func(s chainStep) bool { return !built(s.plugin) }) && (list != "dhcp" || built("dhcp")) {
			t.Run(list, func(t *testing.T) {
				t.Parallel()
				checkGrowth(t, list)
			})
		}
	}
}

func checkGrowth(t *testing.T, list string) {
	for _, s := range growthLists[list] {
		fixtureOf(s.plugin).NeedChain(t)
	}
	w := newWorld(t)
	w.growthHost(list)
	attach := func(n int) {
		a := &attached{w: w, c: w.growthContainer(list, n), call: w.inProcess}
		_, a.steps = growthSteps(list, n)
		for i := range a.steps {
			a.must(spec.Add, i)
		}
	}
	n := 1
	for ; n <= fewAttached; n++ {
		attach(n)
	}
	w.costs(list, 86) // creates what the host keeps
	few := w.costs(list, 90)
	for ; n <= manyAttached; n++ {
		attach(n)
	}
	many := w.costs(list, 92) // of the same network
	for _, verb := range slices.Sorted(maps.Keys(few)) {
		t.Logf("%s: %v with %d attachments, %v with %d", verb, few[verb], fewAttached, many[verb], manyAttached)
		if len(few[verb]) == 0 {
			t.Errorf("%s does nothing that is counted", verb)
		}
		for work, n := range many[verb] {
			due, waits := few[verb][work], many[verb][fault.Waits] // for the kernel, which are each a request
			switch work {
			case fault.Waits:
				continue
			case fault.Requests, fault.Threads, fault.Sockets:
				due += waits
			case fault.Answers:
				due += (1 + waits) * moreAnswers
			case fault.Received:
				due += (1 + waits) * moreAnswers * answerSize
			case fault.Bytes:
				due += moreBytes
			}
			if n > due {
				t.Errorf("%s: %d %s with %d attachments, %d with %d", verb, few[verb][work], work, fewAttached, n, manyAttached)
			}
		}
	}
}

// costs returns what each verb does for a container: each plugin, then cni-exec.
func (w *world) costs(list string, container int) map[string]map[fault.Work]int {
	w.Helper()
	all := map[string]map[fault.Work]int{}
	a := &attached{w: w, c: w.growthContainer(list, container), call: w.plugin}
	network, steps := growthSteps(list, container)
	a.steps = steps
	counted := func(what string, fn func()) {
		w.Helper()
		all[what] = w.measured(fn).Work
	}
	for _, verb := range []spec.Verb{spec.Add, spec.Check} {
		for i := range steps {
			counted(fmt.Sprint(steps[i].plugin, " ", verb), func() { a.must(verb, i) })
		}
	}
	for i := a.last(); i >= 0; i-- {
		counted(fmt.Sprint(steps[i].plugin, " ", spec.Del), func() { a.must(spec.Del, i) })
	}
	var confs []string
	for _, s := range steps {
		confs = append(confs, s.conf)
	}
	w.write("net.d/"+network+".conflist", fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"plugins":[%s]}`, network, strings.Join(confs, ",")))
	env := []string{"NETCONFPATH=" + w.Path("net.d"), "CNI_IFNAME=eth0"}
	for _, verb := range []string{"add", "check", "del"} {
		counted("cni-exec "+verb, func() {
			w.must("cni-exec "+verb, w.run("", env, w.Path("bin/cni-exec"), verb, network, a.c.Path, "--container-id", a.c.ID, "--cache-dir", w.Path("cache")))
		})
	}
	return all
}
