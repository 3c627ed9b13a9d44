// Package bandwidth is the CNI plugin bandwidth: limits the rate of a veth pair in both directions.
package bandwidth

import (
	"errors"
	"fmt"
	"math"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "bandwidth",
	Conf:    conf{},
	Summary: "limits the rate of a veth pair in both directions",
	Help: `
key           type    default   meaning
ingressRate   int     no limit  bits per second to the container; at least 8
ingressBurst  int     10 ms     bits above the rate that pass at once; the default is what
                                ingressRate carries in 10 ms, at least 524288 (64 KiB, the largest
                                packet of TCP segmentation offload)
egressRate    int     no limit  bits per second from the container
egressBurst   int     10 ms     the same for egressRate
latency       int     25        milliseconds that a packet may wait, 1 to 10000
dataDir       string  (below)   stores the owner of the interface until DEL; the default is
                                /run/cnibox/bandwidth

runtimeConfig.bandwidth (capability bandwidth) has the first four keys as well. It counts for a
direction that the configuration does not limit: a pod cannot lift an administrator's limit. A rate
of 0 means no limit. A burst there of 2147483647, 4294967295 or 34359738359 is what runtimes send
when no burst was chosen: it means the default.

Bursts are less than 4 GB, and at least one packet. Where the kernel has fq_codel, each flow has
its own queue. What the container sends is queued on an IFB named bwp and 12 hex digits.`,
	Plugin: func() spec.Plugin { return flow.Spec() },
}

var flow = chained.Plugin{
	Facts: spec.Facts{Since: spec.Version{Minor: 3}}, DataDir: dataDir, Restores: true, Restored: "limits set",
	New: func() chained.Driver { return new(conf) },
}

const (
	dataDir = "/run/cnibox/bandwidth"

	defaultLatency = 25       // ms, the reference's
	longestLatency = 10_000   // ms
	burstTime      = 10       // ms at the rate
	leastBurst     = 64 << 10 // bytes; with less, the kernel undoes TCP segmentation offload before the queue
)

// limits are the keys of the configuration and of runtimeConfig.bandwidth. Rates are in bits per
// second, bursts in bits; 0: absent. Ingress is towards the container.
type limits struct {
	IngressRate  uint64 `json:"ingressRate"`
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

type conf struct {
	chained.Defaults
	chained.Stored
	limits
	Latency       int `json:"latency"` // ms; 0: 25
	RuntimeConfig struct {
		Bandwidth limits `json:"bandwidth"`
	} `json:"runtimeConfig"`

	ingress, egress limit // set by Validate
}

// A limit is the limit of one direction. A rate of 0 means no limit.
type limit struct {
	rate    uint64 // bytes per second
	burst   uint64 // bytes, less than 4 GB
	latency uint64 // ms
}

// empty reports whether nothing is limited, as for most containers of a network with the plugin in
// its list.
func (c *conf) empty() bool { return c.ingress.rate == 0 && c.egress.rate == 0 }

// Needs requires nothing if nothing is limited.
func (c *conf) Needs() chained.Need {
	if c.empty() {
		return chained.NeedPresent
	}
	return chained.NeedLink
}

// Validate uses, for each direction, the configuration's limit, or else that of the capability: an
// annotation of a pod must not raise the administrator's limit.
func (c *conf) Validate(*spec.Request) error {
	if c.Latency < 0 || c.Latency > longestLatency {
		return spec.KeyErrorf("latency", `"latency" %d is not within 1 to %d milliseconds`, c.Latency, longestLatency)
	}
	latency := uint64(c.Latency)
	if latency == 0 {
		latency = defaultLatency
	}
	configured, asked := c.limits, c.RuntimeConfig.Bandwidth
	if configured.IngressRate|configured.IngressBurst == 0 {
		configured.IngressRate, configured.IngressBurst = asked.IngressRate, usableBurst(asked.IngressBurst)
	}
	if configured.EgressRate|configured.EgressBurst == 0 {
		configured.EgressRate, configured.EgressBurst = asked.EgressRate, usableBurst(asked.EgressBurst)
	}
	var err error
	if c.ingress, err = newLimit("ingress", configured.IngressRate, configured.IngressBurst, latency); err != nil {
		return err
	}
	c.egress, err = newLimit("egress", configured.EgressRate, configured.EgressBurst, latency)
	return err
}

// usableBurst returns the burst of a capability, or 0 for the values that kubelet, containerd and
// CRI-O send because the reference requires one. With these the first 256 MB or more would not be
// limited.
func usableBurst(burst uint64) uint64 {
	switch burst {
	case math.MaxInt32, math.MaxUint32, math.MaxUint32*8 - 1:
		return 0
	}
	return burst
}

// newLimit checks a rate and a burst in bits. The errors are the reference's phrases.
func newLimit(dir string, rate, burst, latency uint64) (limit, error) {
	l := limit{rate / 8, burst / 8, latency}
	switch {
	case rate == 0 && burst == 0:
		return limit{}, nil
	case rate == 0:
		return limit{}, spec.Errorf(spec.CodeConfig, "if burst is set, rate must also be set").
			WithDetails("%sBurst is %d, %sRate is missing", dir, burst, dir).AtKey(dir + "Burst")
	case l.rate == 0:
		return limit{}, spec.KeyErrorf(dir+"Rate", "%sRate %d is less than 8 bits per second", dir, rate)
	// In bits: Go 1.26 for s390x treats any x/8 as less than 1<<32-1.
	case burst >= 8*math.MaxUint32:
		return limit{}, spec.Errorf(spec.CodeConfig, "burst cannot be more than 4GB").WithDetails("%sBurst is %d bits", dir, burst).AtKey(dir + "Burst")
	case l.burst == 0:
		l.burst = min(max(l.rate/1000*burstTime, leastBurst), math.MaxUint32-1)
	}
	return l, nil
}

// tbf returns the token bucket for a link of that MTU. The burst is at least one packet: with less,
// a full packet would never pass.
func (l limit) tbf(mtu int) rtnl.TBF {
	const header = 18 // bytes: Ethernet with a VLAN tag
	burst := max(l.burst, uint64(mtu)+header)
	// 2^45 bytes per second fill the longest queue
	queue := min(l.rate, 1<<45)*l.latency/1000 + burst
	return rtnl.TBF{Rate: l.rate, Burst: uint32(burst), Limit: uint32(min(queue, math.MaxUint32))}
}

// Apply limits what the container receives on the host-side veth, and what it sends on an IFB to
// which the veth redirects. Like that of the reference, the result is prevResult with the IFB.
func (c *conf) Apply(op *chained.Op) error {
	if c.empty() {
		err := c.Release(op) // removes the limits of an earlier ADD
		if errors.Is(err, errors.ErrUnsupported) {
			return nil // on a kernel without support for limits
		}
		if err == nil {
			err = op.Dir.Remove(record.Name(op.Attachment))
		}
		return err
	}
	s, err := openShaper(op, spec.CodeConfig)
	if err != nil {
		return err
	}
	return s.apply(c)
}

// Probe tries what ADD needs from the kernel.
func (c *conf) Probe(op *chained.Op) error {
	if err := op.Dir.CheckWritable(); err != nil {
		return err
	}
	if err := probeShaping(); err != nil {
		return spec.Errorf(spec.CodeNotReady, "bandwidth: this kernel cannot shape traffic: %w", err)
	}
	return nil
}

// Holds returns the limits.
func (c *conf) Holds(*chained.Op) (all []spec.Holding) {
	add := func(what string, l limit) {
		if l.rate != 0 {
			all = append(all, spec.Holding{
				Kind: "limit", Text: fmt.Sprintf("%s limited to %d bit/s, burst %d bits", what, 8*l.rate, 8*l.burst),
				Data: map[string]any{"direction": what, "rate": 8 * l.rate, "burst": 8 * l.burst},
			})
		}
	}
	add("ingress", c.ingress)
	add("egress", c.egress)
	return all
}
