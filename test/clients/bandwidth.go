package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"
)

// Rates of the pod, as the kubelet writes them and in bits per second. containerd 1.6 adds bursts
// of 2 Gbit to them, and CRI-O of 32 Gbit, which must not disable the limits.
const (
	ingressWords, ingressRate = "8M", 8_000_000
	egressWords, egressRate   = "4M", 4_000_000
)

// bandwidth checks that the annotations of a pod reach the plugin as its capability, and the kernel
// as a token bucket in each direction.
func (h *host) bandwidth() error {
	return step("a pod with bandwidth annotations: a bucket each way, both go with it", func() error {
		p := &pod{name: "slow", annotations: map[string]string{
			"kubernetes.io/ingress-bandwidth": ingressWords, "kubernetes.io/egress-bandwidth": egressWords,
		}}
		if err := h.run(p); err != nil {
			return err
		}
		adds, err := callsOf("bandwidth", "ADD", p.id)
		if err != nil {
			return err
		}
		if len(adds) != 1 {
			return fmt.Errorf("ADDs of bandwidth: %+v", adds)
		}
		conf := strings.ToLower(string(adds[0].Conf.RuntimeConfig)) // containerd's keys begin with a capital
		if !strings.Contains(conf, fmt.Sprintf(`"ingressrate":%d`, ingressRate)) || !strings.Contains(conf, fmt.Sprintf(`"egressrate":%d`, egressRate)) {
			return fmt.Errorf("bandwidth got %s", conf)
		}
		if err := h.buckets(); err != nil {
			return err
		}
		ip, err := h.addr(p)
		if err != nil {
			return err
		}
		at := netip.AddrPortFrom(ip, 80)
		err = fetch(nil, at)
		return errors.Join(err, slow(at), h.stopPod(p), h.remove(p), eventually(h.empty))
	})
}

// buckets finds the only port of the bridge and the only ifb, and compares their rates in bytes per
// second, the kernel's unit.
func (h *host) buckets() error {
	links, err := h.links.Links()
	if err != nil {
		return err
	}
	var found []string
	for _, l := range links {
		if l.Master == 0 && l.Kind != "ifb" {
			continue
		}
		root, _, err := h.links.Qdiscs(l.Index)
		if err != nil {
			return err
		}
		if root == nil || root.Kind != "tbf" {
			return fmt.Errorf("no bucket on %s: %+v", l.Name, root)
		}
		found = append(found, fmt.Sprint(l.Kind, " ", root.TBF.Rate))
	}
	for _, want := range []string{fmt.Sprint("veth ", ingressRate/8), fmt.Sprint("ifb ", egressRate/8)} {
		if !strings.Contains(strings.Join(found, ", "), want) {
			return fmt.Errorf("buckets: %q, want %s", found, want)
		}
	}
	return nil
}

// slow reads a big file, and fails if it arrives faster than the pod may send. The burst is much
// less than half of it.
func slow(at netip.AddrPort) error {
	c, err := dial(nil, "tcp", at)
	if err != nil {
		return err
	}
	defer c.Close()
	begin := time.Now()
	c.SetDeadline(begin.Add(timeLimit))
	if _, err := io.WriteString(c, "GET /big HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, c)
	took, least := time.Since(begin), time.Second*bigFile*8/egressRate/2
	if err == nil && (n < bigFile || took < least) {
		err = fmt.Errorf("%d bytes in %s: want %d, in %s or more", n, took, bigFile, least)
	}
	return err
}
