package bandwidth

import (
	"math"
	"testing"

	"github.com/cnibox/cnibox/applets/frame"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/spec/spectest"
)

func TestBandwidthPlan(t *testing.T) {
	tests := map[string]struct {
		conf            string
		ingress, egress limit
		err             string
	}{
		"nothing":    {conf: `{}`},
		"all zero":   {conf: `{"ingressRate":0,"ingressBurst":0,"egressRate":0,"egressBurst":0}`},
		"null":       {conf: `{"ingressRate":null,"runtimeConfig":{"bandwidth":null}}`},
		"plain keys": {conf: `{"ingressRate":8000000,"ingressBurst":80000}`, ingress: limit{1e6, 10000, 25}},
		"letters":    {conf: `{"IngressRate":8000000,"INGRESSBURST":80000}`, ingress: limit{1e6, 10000, 25}},
		"latency":    {conf: `{"egressRate":8000000,"egressBurst":80000,"latency":400}`, egress: limit{1e6, 10000, 400}},
		"capability": {
			conf:    `{"runtimeConfig":{"bandwidth":{"ingressRate":8000,"ingressBurst":16000,"egressRate":24000,"egressBurst":32000}}}`,
			ingress: limit{1000, 2000, 25}, egress: limit{3000, 4000, 25},
		},
		// An annotation of a pod cannot raise the administrator's limit.
		"configuration before capability": {
			conf:    `{"ingressRate":8000,"ingressBurst":16000,"runtimeConfig":{"bandwidth":{"ingressRate":800000000,"ingressBurst":80000000}}}`,
			ingress: limit{1000, 2000, 25},
		},
		"capability for the other direction": {
			conf:    `{"ingressRate":8000,"ingressBurst":16000,"runtimeConfig":{"bandwidth":{"egressRate":24000,"egressBurst":32000}}}`,
			ingress: limit{1000, 2000, 25}, egress: limit{3000, 4000, 25},
		},
		"burst of the capability ignored": {
			conf:    `{"ingressRate":8000000,"runtimeConfig":{"bandwidth":{"ingressBurst":800000000}}}`,
			ingress: limit{1e6, 65536, 25},
		},
		// The reference disables the capability if a plain key is 0.
		"plain 0 is ignored": {
			conf:    `{"ingressRate":0,"runtimeConfig":{"bandwidth":{"ingressRate":8000,"ingressBurst":16000}}}`,
			ingress: limit{1000, 2000, 25},
		},
		"capability 0 ignored":         {conf: `{"ingressRate":8000,"ingressBurst":8,"runtimeConfig":{"bandwidth":{"ingressRate":0}}}`, ingress: limit{1000, 1, 25}},
		"no burst, slow":               {conf: `{"ingressRate":8000000}`, ingress: limit{1e6, 65536, 25}},
		"no burst, fast":               {conf: `{"egressRate":8000000000}`, egress: limit{1e9, 1e7, 25}},
		"no burst, 64 bits":            {conf: `{"egressRate":18446744073709551615}`, egress: limit{math.MaxUint64 / 8, math.MaxUint32 - 1, 25}},
		"default burst of kubelet":     {conf: `{"runtimeConfig":{"bandwidth":{"ingressRate":8000000,"ingressBurst":2147483647}}}`, ingress: limit{1e6, 65536, 25}},
		"default burst of containerd":  {conf: `{"runtimeConfig":{"bandwidth":{"egressRate":8000000,"egressBurst":4294967295}}}`, egress: limit{1e6, 65536, 25}},
		"default burst of CRI-O":       {conf: `{"runtimeConfig":{"bandwidth":{"egressRate":8000000,"egressBurst":34359738359}}}`, egress: limit{1e6, 65536, 25}},
		"default burst without a rate": {conf: `{"runtimeConfig":{"bandwidth":{"ingressRate":0,"ingressBurst":4294967295}}}`},
		"default burst as a plain key": {conf: `{"ingressRate":8,"ingressBurst":2147483647}`, ingress: limit{1, 268435455, 25}},
		"the longest burst":            {conf: `{"ingressRate":8,"ingressBurst":34359738352}`, ingress: limit{1, math.MaxUint32 - 1, 25}},

		"burst alone":      {conf: `{"ingressBurst":80000}`, err: "rate must"},
		"egress alone":     {conf: `{"runtimeConfig":{"bandwidth":{"egressBurst":8}}}`, err: "egressRate is missing"},
		"too long a burst": {conf: `{"ingressRate":8,"ingressBurst":34359738360}`, err: "burst cannot be more than 4GB"},
		"too slow":         {conf: `{"egressRate":7}`, err: "less than 8 bits"},
		"negative":         {conf: `{"egressRate":-1}`, err: "egressRate"},
		"a text":           {conf: `{"runtimeConfig":{"bandwidth":{"egressRate":"1M"}}}`, err: "egressRate"},
		"long latency":     {conf: `{"latency":10001}`, err: "latency"},
		"negative latency": {conf: `{"latency":-1}`, err: "latency"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := &conf{}
			err := frame.Read(spectest.Request(t, spec.Add, tt.conf, ""), p)
			spectest.WantError(t, err, tt.err, spec.CodeConfig)
			if err == nil && (p.ingress != tt.ingress || p.egress != tt.egress) {
				t.Errorf("got %+v and %+v, want %+v and %+v", p.ingress, p.egress, tt.ingress, tt.egress)
			}
		})
	}
}

// As in the reference, the queue has room for 25 ms at the rate and for the burst.
func TestBandwidthTokenBucket(t *testing.T) {
	for name, tt := range map[string]struct {
		l    limit
		mtu  int
		want rtnl.TBF
	}{
		"plain":                         {limit{1e6, 10000, 25}, 1500, rtnl.TBF{Rate: 1e6, Burst: 10000, Limit: 35000}},
		"less than a packet":            {limit{1000, 1, 100}, 1500, rtnl.TBF{Rate: 1000, Burst: 1518, Limit: 1618}},
		"more than 32 bits":             {limit{math.MaxUint64 / 8, 1 << 31, 10000}, 1500, rtnl.TBF{Rate: math.MaxUint64 / 8, Burst: 1 << 31, Limit: math.MaxUint32}},
		"slow, and a short queue at it": {limit{1, 2000, 1}, 1500, rtnl.TBF{Rate: 1, Burst: 2000, Limit: 2000}},
	} {
		if got := tt.l.tbf(tt.mtu); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
}

// The reference gives the IFBs for two interfaces of a container the same name.
func TestBandwidthNames(t *testing.T) {
	a := ifbNames(spec.Attachment{Network: "net1", ContainerID: "b1", IfName: "eth0"})
	b := ifbNames(spec.Attachment{Network: "net1", ContainerID: "b1", IfName: "eth1"})
	if a[0] != "bwp3ede3e80c20c" || b[0] != a[0] {
		t.Errorf("the reference's name: got %s and %s", a[0], b[0])
	}
	if a[1] == b[1] || !isIFBName(a[0]) || !isIFBName(a[1]) {
		t.Errorf("got %s and %s", a[1], b[1])
	}
	for _, name := range []string{"bwp", "bwp0123456789a", "bwp0123456789aBC", "ifb3ede3e80c20c", "bwp3ede3e80c20c0"} {
		if isIFBName(name) {
			t.Errorf("%s is taken for an IFB of ours", name)
		}
	}
}
