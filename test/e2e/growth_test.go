package e2e

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cnibox/applets/applettest"
	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

// How many more calls and bytes a verb may have with many attachments than with few: the kernel and
// Go vary a little.
const (
	fewAttached  = 2
	manyAttached = 60
	moreCalls    = 8
	moreBytes    = 512
)

// growthLists are lists of plugins. N stands for one of two networks, C for the container's number,
// from 1 on.
var growthLists = map[string][]chainStep{
	"bridge": {
		{"bridge", `"bridge":"br$N","isDefaultGateway":true,"ipMasq":true,"macspoofchk":true,"ipam":{"type":"host-local","dataDir":"$DIR/leases",
			"ranges":[[{"subnet":"10.$N.0.0/16"}],[{"subnet":"fd00:$N::/64"}]]}`},
		{"portmap", `"dataDir":"$DIR/ports","capabilities":{"portMappings":true},"runtimeConfig":{"portMappings":[
			{"hostPort":$N0$C,"containerPort":80},{"hostPort":$N1$C,"containerPort":53,"protocol":"udp"}]}`},
		{"firewall", `"backend":"nftables","ingressPolicy":"same-bridge"`},
		{"tuning", `"dataDir":"$DIR/tuning","mtu":1400,"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}`},
		{"bandwidth", `"dataDir":"$DIR/bandwidth","ingressRate":80000000,"ingressBurst":80000,"egressRate":80000000,"egressBurst":80000`},
	},
	"firewall": {
		{"bridge", `"bridge":"br$N","isGateway":true,"ipam":{"type":"host-local","dataDir":"$DIR/leases",
			"ranges":[[{"subnet":"10.$N.0.0/16"}],[{"subnet":"fd00:$N::/64"}]]}`},
		{"firewall", `"ingressPolicy":"same-bridge"`},
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
// them of the same network: the system calls on files and sockets, and the bytes read, of cni-exec
// with a list, and of each of its plugins alone.
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
	w.strace() // skips without strace
	w.tracer = nil
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
	grown := func(verb string) bool {
		return many[verb].count() > few[verb].count()+moreCalls || many[verb].bytes > few[verb].bytes+moreBytes
	}
	// A busy machine repeats some calls, such as a dump that another change interrupted. So the
	// least of three counts.
	for n := 94; n <= 96 && slices.ContainsFunc(slices.Collect(maps.Keys(few)), grown); n += 2 {
		for verb, again := range w.costs(list, n) {
			if grown(verb) {
				many[verb] = again
			}
		}
	}
	for _, verb := range slices.Sorted(maps.Keys(few)) {
		f, m := few[verb], many[verb]
		t.Logf("%s: %d calls and %d bytes with %d attachments, %d and %d with %d", verb, f.count(), f.bytes, fewAttached, m.count(), m.bytes, manyAttached)
		if grown(verb) {
			t.Errorf("%s grows: %v and %d bytes with %d attachments, %v and %d with %d", verb, f.calls, f.bytes, fewAttached, m.calls, m.bytes, manyAttached)
		}
	}
}

// A cost counts the work of a process.
type cost struct {
	calls map[string]int
	bytes int // read from files and sockets
}

func (c cost) count() (n int) {
	for _, calls := range c.calls {
		n += calls
	}
	return n
}

// costs returns those of each verb for a container: of each plugin, then of cni-exec.
func (w *world) costs(list string, container int) map[string]cost {
	w.Helper()
	all := map[string]cost{}
	a := &attached{w: w, c: w.growthContainer(list, container), call: w.plugin}
	network, steps := growthSteps(list, container)
	a.steps = steps
	traced := func(what string, fn func()) {
		w.Helper()
		w.strace("-o", w.Path("trace"), "-y", "-e", "trace=%file,%network,getdents64,read,write", "-e", "signal=none")
		fn()
		w.tracer = nil
		all[what] = w.readTrace()
	}
	for _, verb := range []spec.Verb{spec.Add, spec.Check} {
		for i := range steps {
			traced(fmt.Sprint(steps[i].plugin, " ", verb), func() { a.must(verb, i) })
		}
	}
	for i := a.last(); i >= 0; i-- {
		traced(fmt.Sprint(steps[i].plugin, " ", spec.Del), func() { a.must(spec.Del, i) })
	}
	var confs []string
	for _, s := range steps {
		confs = append(confs, s.conf)
	}
	w.write("net.d/"+network+".conflist", fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"plugins":[%s]}`, network, strings.Join(confs, ",")))
	env := []string{"NETCONFPATH=" + w.Path("net.d"), "CNI_IFNAME=eth0"}
	for _, verb := range []string{"add", "check", "del"} {
		traced("cni-exec "+verb, func() {
			w.must("cni-exec "+verb, w.run("", env, w.Path("bin/cni-exec"), verb, network, a.c.Path, "--container-id", a.c.ID, "--cache-dir", w.Path("cache")))
		})
	}
	return all
}

// tracedCall matches a line of strace with the end of a system call.
var tracedCall = regexp.MustCompile(`(?m)^\d+ +(?:<\.\.\. )?(\w+)[( ].* = (-?\d+)`)

// readTrace parses the output of strace.
func (w *world) readTrace() cost {
	w.Helper()
	text, err := os.ReadFile(w.Path("trace"))
	if err != nil {
		w.Fatal(err)
	}
	c := cost{calls: map[string]int{}}
	for _, m := range tracedCall.FindAllStringSubmatch(string(text), -1) {
		if strings.Contains(m[0], "<anon_inode:") || strings.Contains(m[0], "/mountinfo>") { // Go's threads; mounts of other tests
			continue
		}
		c.calls[m[1]]++
		if n, _ := strconv.Atoi(m[2]); n > 0 && (m[1] == "read" || strings.HasPrefix(m[1], "recv")) {
			c.bytes += n
		}
	}
	if c.bytes == 0 && !kerneltest.Emulated() {
		w.Fatalf("no call in the trace:\n%.1000s", text)
	}
	return c
}
