package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/test/debian"
	"github.com/cnibox/cnibox/test/sandbox"
)

// barMacvlan is how many times as long as netavark's setup an ADD of macvlan may take.
const barMacvlan = 1.3

// netavarkDir, below the tools, has netavark of Debian trixie, and the C library that it is linked with: that of
// this machine may be older.
const netavarkDir = "netavark"

// fetchNetavark puts netavark below dir. Its error says what this machine lacks.
func fetchNetavark(dir string) error {
	cache, err := debian.Cache()
	if err != nil {
		return err
	}
	if missing := debian.Missing(); missing != "" {
		return errors.New(missing)
	}
	dir = filepath.Join(dir, netavarkDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return debian.Podman5.Unpack(cache, dir, "--strip-components=4", "--wildcards", "./usr/lib/*/netavark",
		"./usr/lib/*-linux-gnu*/ld-linux*.so.*", "./usr/lib/*-linux-gnu*/libc.so.6", "./usr/lib/*-linux-gnu*/libm.so.6", "./usr/lib/*-linux-gnu*/libgcc_s.so.1")
}

// netavark measures setup and teardown by netavark, as podman 5 calls it, against cni-exec: a bridge with a published
// port, which netavark's driver opens in its forward chain as the plugin firewall does, and macvlan. Podman allocates
// the addresses for netavark; for cni-exec host-local does, so its times have that as well. The driver is ours, called
// by netavark.
func netavark(l *lab) []line {
	program, err := l.netavark()
	if err != nil {
		return []line{{What: "netavark", Unit: "ms", Note: err.Error()}}
	}
	plugins := filepath.Join(l.dir, "drivers")
	err = os.MkdirAll(plugins, 0o755)
	if err == nil {
		err = os.Symlink(l.bin, filepath.Join(plugins, "cnibox"))
	}
	if err != nil {
		return []line{{What: "netavark", Unit: "ms", Error: err.Error()}}
	}
	chain := commonChain()
	bridge := []map[string]any{chain[0], chain[1], {"type": "firewall"}}
	macvlan := []map[string]any{{"type": "macvlan", "master": master, "ipam": addresses("10.240.0.0/16")}}
	var subjects []subject
	for _, s := range []struct {
		name, driver string
		list         []map[string]any
	}{{"bridge", "", bridge}, {"bridge netavark", "bridge", nil}, {"bridge driver", "cnibox", nil}, {"macvlan", "", macvlan}, {"macvlan netavark", "macvlan", nil}} {
		host, err := l.networkOf(strings.ReplaceAll(s.name, " ", "-"), l.ours, s.list)
		if err == nil {
			err = addMaster(host.host.NS)
		}
		if err != nil {
			return []line{{What: "netavark", Unit: "ms", Error: err.Error()}}
		}
		a, err := newAttachment(host.name, 19999)
		if err != nil {
			return []line{{What: "netavark", Unit: "ms", Error: err.Error()}}
		}
		var r caller = &byCniExec{network: host}
		if s.driver != "" {
			r = &byNetavark{program: append(program, "--config", filepath.Join(l.dir, "netavark", host.name), "--plugin-directory", plugins), driver: s.driver}
		}
		subjects = append(subjects, host.life(s.name, r, a))
	}
	r := l.interleave(l.rounds(30), subjects...)
	var lines []line
	for _, verb := range []string{"ADD", "DEL"} {
		lines = append(lines,
			better(verb+" of a bridge with a port, cni-exec, to netavark", r.of(verb, "bridge"), r.of(verb, "bridge netavark"), 0),
			better(verb+" of that by netavark, driver cnibox, to its own", r.of(verb, "bridge driver"), r.of(verb, "bridge netavark"), 0))
	}
	bar := map[string]float64{"ADD": barMacvlan}
	for _, verb := range []string{"ADD", "DEL"} {
		lines = append(lines, within(verb+" of macvlan, cni-exec, to netavark", r.of(verb, "macvlan"), r.of(verb, "macvlan netavark").milliseconds(), bar[verb]))
	}
	return lines
}

// netavark returns the command line of netavark, by the dynamic loader that was fetched with it.
func (l *lab) netavark() ([]string, error) {
	dir := filepath.Join(l.tools, netavarkDir)
	loaders, err := filepath.Glob(filepath.Join(dir, "ld-linux*"))
	if err == nil && len(loaders) == 0 {
		err = fmt.Errorf("netavark of Debian trixie could not be had here (%w in %s)", fs.ErrNotExist, dir)
	}
	if err != nil {
		return nil, err
	}
	return []string{loaders[0], "--library-path", dir, filepath.Join(dir, "netavark")}, nil
}

// byNetavark is podman 5, which starts netavark at the start and the end of a container.
type byNetavark struct {
	program []string
	driver  string
}

// call is setup for ADD and teardown for DEL. CHECK is unknown to netavark.
func (r *byNetavark) call(verb string, a attachment) error {
	words := map[string]string{"ADD": "setup", "DEL": "teardown"}
	if words[verb] == "" {
		return nil
	}
	stdin, err := json.Marshal(r.options(a))
	if err != nil {
		return err
	}
	_, _, err = sandbox.Call{Argv: append(slices.Clip(r.program), words[verb], a.netns.Path), Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Stdin: stdin}.Run()
	return err
}

// options is what podman hands over.
func (r *byNetavark) options(a attachment) map[string]any {
	subnet := netip.MustParsePrefix("10.240.0.0/16")
	network := map[string]any{
		"name": "bench", "id": strings.Repeat("b", 64), "driver": r.driver, "network_interface": "bench0", "created": "2026-01-01T00:00:00Z",
		"subnets": []map[string]any{{"subnet": subnet, "gateway": subnet.Addr().Next()}}, "ipv6_enabled": false, "internal": false,
		"dns_enabled": false, "ipam_options": map[string]string{"driver": "host-local"}, "options": map[string]string{},
	}
	ports := []map[string]any{{"container_port": 80, "host_ip": "", "host_port": a.port, "protocol": "tcp", "range": 1}}
	if r.driver == "macvlan" {
		network["network_interface"], ports = master, nil
	}
	return map[string]any{
		"container_id": strings.Repeat("c", 64), "container_name": a.id,
		"port_mappings": ports,
		"networks":      map[string]any{"bench": map[string]any{"static_ips": []string{"10.240.0.5"}, "interface_name": "eth0"}},
		"network_info":  map[string]any{"bench": network},
	}
}
