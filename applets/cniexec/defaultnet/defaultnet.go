// Package defaultnet is the network that exists where nothing is configured. Any configuration disables it.
package defaultnet

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/applets/subnet"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/netns"
)

// Name is the network's.
const Name = "cnibox"

// subnets are those of the network. They are stored in a file, since running containers
// keep their addresses when the host's routes change.
type subnets struct {
	IPv4 netip.Prefix `json:"ipv4"`
	IPv6 netip.Prefix `json:"ipv6"` // unique local; used if the host has IPv6
}

func file(cacheDir string) string { return filepath.Join(cacheDir, "cnibox", "default-network.json") }

// List returns the network, which depends on whether the host has IPv6, and its ranges as text. The
// first call for a directory of the cache chooses subnets that the host does not use.
func List(cacheDir string) (l *chain.List, ranges string, err error) {
	s, err := choose(cacheDir)
	v6 := hasIPv6()
	if err == nil {
		l, err = chain.Parse(s.conf(v6, cacheDir, sandbox.ResolvConf()))
	}
	if err != nil {
		return nil, "", fmt.Errorf("default network: %w", err)
	}
	ranges = s.IPv4.String()
	if v6 {
		ranges += " and " + s.IPv6.String()
	}
	return l, ranges, nil
}

// Conf returns the configuration of the network without DNS; nil: its subnets were not chosen yet.
func Conf(cacheDir string) []byte {
	s, err := read(file(cacheDir))
	if err != nil {
		return nil
	}
	return s.conf(hasIPv6(), cacheDir, "")
}

// conf returns the configuration list. Its leases are stored in the runtime's own
// cache, apart from those of other runtimes. Its capabilities are those that the
// flags and CAP_ARGS of cni-exec can use.
func (s subnets) conf(v6 bool, cacheDir, resolv string) []byte {
	type one struct {
		Subnet netip.Prefix `json:"subnet"`
	}
	ranges := [][]one{{{s.IPv4}}}
	if v6 {
		ranges = append(ranges, []one{{s.IPv6}})
	}
	ipam := map[string]any{"type": "host-local", "dataDir": filepath.Join(cacheDir, "networks"), "ranges": ranges}
	if resolv != "" {
		ipam["resolvConf"] = resolv
	}
	doc, _ := json.Marshal(map[string]any{ // strings, bools and prefixes cannot fail
		"cniVersion": "1.1.0", "name": Name, "loadOnlyInlinedPlugins": true,
		"plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": "cnibox0", "isGateway": true, "isDefaultGateway": true,
				"ipMasq": true, "hairpinMode": true, "promiscMode": false, "ipam": ipam,
				"capabilities": map[string]bool{"ips": true, "mac": true},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
			map[string]any{"type": "tuning"},
		},
	})
	return doc
}

// choose returns the stored subnets, or chooses and stores some. If two processes choose at the
// same time, both use the choice of the first.
func choose(cacheDir string) (s subnets, err error) {
	stored := file(cacheDir)
	if s, err = read(stored); !errors.Is(err, os.ErrNotExist) {
		return s, err
	}
	used, err := subnet.Used()
	if err != nil {
		return s, err
	}
	if s.IPv4, err = subnet.IPv4(used); err != nil {
		return s, err
	}
	s.IPv6 = subnet.IPv6(used)
	doc, err := json.Marshal(s)
	if err != nil {
		return s, err
	}
	// there is no lock, so each process has its own temporary file
	err = disk.Replace(stored, filepath.Join(filepath.Dir(stored), ".new-"+sandbox.RandomHex()), doc, disk.New|disk.Durable)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return s, err
	}
	return read(stored)
}

// read reads the file; an invalid file is an error, since its subnets may be in use. The
// error is os.ErrNotExist before any were chosen.
func read(file string) (s subnets, err error) {
	doc, err := disk.Read(file, unix.O_NOFOLLOW, record.MaxSize)
	if err != nil {
		return s, err
	}
	err = json.Unmarshal(doc, &s)
	if err == nil && (!s.IPv4.IsValid() || !s.IPv4.Addr().Is4() || !s.IPv6.IsValid() || !s.IPv6.Addr().Is6()) {
		err = errors.New("a subnet is missing or of the wrong family")
	}
	if err != nil {
		return s, fmt.Errorf("%s: %w (delete it to choose anew)", file, err)
	}
	return s, nil
}

// hasIPv6 reports whether the kernel has IPv6 and new links may use it. A new link gets the
// setting of "default".
func hasIPv6() bool {
	ns, err := netns.Current()
	if err != nil {
		return false
	}
	defer ns.Close()
	for _, key := range []string{"net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/default/disable_ipv6"} {
		if v, err := ns.Sysctl(key); err != nil || strings.TrimSpace(v) != "0" {
			return false
		}
	}
	return true
}
