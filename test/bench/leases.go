package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/cnibox/cnibox/test/sandbox"
)

// barLeases limits the time on the biggest store divided by that on the smallest.
const barLeases = 1.5

// leaseCounts are how many addresses are leased before host-local is called.
var leaseCounts = []int{10, 1_000, 10_000, 60_000}

var leaseNet = netip.MustParsePrefix("10.242.0.0/16")

// A store is a directory of leases and the plugin that uses it.
type store struct {
	plugin string   // path
	wrap   []string // prefix of the command line; see peaks
	stdin  []byte
}

// newStore writes leases as the reference plugin does. Their owners differ from the measured one.
func (l *lab) newStore(who, plugins string, count int) (*store, error) {
	dataDir := filepath.Join(l.dir, "leases", fmt.Sprint(who, count))
	dir := filepath.Join(dataDir, "leases")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	ip := leaseNet.Addr().Next() // the gateway
	for i := range count {
		ip = ip.Next()
		lease := fmt.Appendf(nil, "container-%d\r\neth0", i)
		if err := os.WriteFile(filepath.Join(dir, ip.String()), lease, 0o600); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "last_reserved_ip.0"), []byte(ip.String()), 0o600); err != nil {
		return nil, err
	}
	stdin, err := json.Marshal(map[string]any{
		"cniVersion": version, "name": "leases", "type": "bridge",
		"ipam": map[string]any{
			"type": "host-local", "dataDir": dataDir,
			"ranges": [][]map[string]string{{{"subnet": leaseNet.String()}}},
		},
	})
	return &store{plugin: filepath.Join(plugins, "host-local"), stdin: stdin}, err
}

// subject gets an address and releases it, so the directory is the same after each round.
func (s *store) subject(name, netns string) subject {
	verbs := []string{"ADD", "DEL"}
	return subject{name: name, steps: verbs, round: func() (all []cost, err error) {
		for _, verb := range verbs {
			w := begin()
			_, _, err := sandbox.Call{
				Argv: append(slices.Clone(s.wrap), s.plugin), Stdin: s.stdin,
				Env: sandbox.Plugin(verb, "measured", netns, "eth0", filepath.Dir(s.plugin)),
			}.Run()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", verb, err)
			}
			all = append(all, w.took())
		}
		return all, nil
	}}
}

// leases measures all sizes in the same rounds. The files are in tmpfs, about 5 KB for each lease
// and store.
func leases(l *lab) []line {
	ns, err := sandbox.NewNetNS("leases")
	if err != nil {
		return []line{{What: "leases", Unit: "ms", Error: err.Error()}}
	}
	var subjects []subject
	biggest := map[string]*store{}
	for _, count := range leaseCounts {
		for _, who := range []string{"ours", "reference"} {
			plugins := map[string]string{"ours": l.ours, "reference": l.reference}[who]
			if plugins == "" {
				continue
			}
			s, err := l.newStore(who, plugins, count)
			if err != nil {
				return []line{{What: "leases", Unit: "ms", Error: err.Error()}}
			}
			biggest[who] = s
			subjects = append(subjects, s.subject(fmt.Sprint(who, count), ns.Path))
		}
	}
	r := l.interleave(l.rounds(10), subjects...)
	lines := append(leaseLines(r), l.leaseMemory(biggest["ours"], biggest["reference"], ns.Path))
	os.RemoveAll(filepath.Join(l.dir, "leases"))
	return lines
}

// leaseMemory is the peak memory of host-local on the biggest store.
func (l *lab) leaseMemory(ours, reference *store, netns string) line {
	m := line{What: "memory, of the limit", Unit: "MiB", Other: figure{Median: mostKiB / 1024}, Bar: 1, Most: true}
	mib := func(s *store) float64 {
		p := &peaks{lab: l, kib: map[string]float64{}}
		s.wrap = p.wrap("host-local")
		_, err := s.subject("", netns).round()
		if s == ours {
			m.fail(err)
		}
		p.addLast()
		return p.kib["host-local"] / 1024
	}
	m.Ours.Median = mib(ours)
	m.Ratio = ratio(m.Ours.Median, m.Other.Median)
	if reference != nil {
		m.Note = fmt.Sprintf("reference: %s MiB", short(mib(reference)))
	}
	return m
}

// leaseLines compares each size with the reference, and our time on the biggest store with that on
// the smallest.
func leaseLines(r results) (lines []line) {
	least, most := leaseCounts[0], leaseCounts[len(leaseCounts)-1]
	for _, verb := range []string{"ADD", "DEL"} {
		for _, count := range leaseCounts {
			lines = append(lines, better(fmt.Sprintf("%s at %d", verb, count),
				r.of(verb, fmt.Sprint("ours", count)), r.of(verb, fmt.Sprint("reference", count)), 0))
		}
		lines = append(lines, within(fmt.Sprintf("%s, %d to %d", verb, most, least),
			r.of(verb, fmt.Sprint("ours", most)), r.of(verb, fmt.Sprint("ours", least)).milliseconds(), barLeases))
	}
	return lines
}
