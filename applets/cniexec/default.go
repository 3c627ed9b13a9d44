package cniexec

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

// defaultNetwork is the network that exists when nothing is configured. Any configuration disables
// it.
const defaultNetwork = "cnibox"

// subnets are those of the default network. They are stored in a file, since running containers
// keep their addresses when the host's routes change.
type subnets struct {
	IPv4 netip.Prefix `json:"ipv4"`
	IPv6 netip.Prefix `json:"ipv6"` // unique local; used if the host has IPv6
}

// subnetsFile is the name of that file, in the cache's directory cnibox.
const subnetsFile = "default-network.json"

// embedded returns the default network, with a warning. It depends on whether the host has IPv6.
func (c *call) embedded() (*chain.List, error) {
	s, err := c.subnets()
	if err != nil {
		return nil, fmt.Errorf("default network: %w", err)
	}
	v6 := hostHasIPv6()
	l, err := chain.Parse(embeddedConf(s, v6, filepath.Join(c.runner.Cache.Dir, "networks"), sandbox.ResolvConf()))
	if err != nil {
		return nil, fmt.Errorf("default network: %w", err)
	}
	ranges := s.IPv4.String()
	if v6 {
		ranges += " and " + s.IPv6.String()
	}
	c.runner.Warn("no configuration in %s: using the embedded network %q (%s)", c.confDir, defaultNetwork, ranges)
	return l, nil
}

// embeddedConf returns the configuration list of the default network. Its leases are stored in the
// runtime's own cache, apart from those of other runtimes. Its capabilities are those that the
// flags and CAP_ARGS of cni-exec can use.
func embeddedConf(s subnets, v6 bool, dataDir, resolv string) []byte {
	type one struct {
		Subnet netip.Prefix `json:"subnet"`
	}
	ranges := [][]one{{{s.IPv4}}}
	if v6 {
		ranges = append(ranges, []one{{s.IPv6}})
	}
	ipam := map[string]any{"type": "host-local", "dataDir": dataDir, "ranges": ranges}
	if resolv != "" {
		ipam["resolvConf"] = resolv
	}
	doc, _ := json.Marshal(map[string]any{ // strings, bools and prefixes cannot fail
		"cniVersion": "1.1.0", "name": defaultNetwork, "loadOnlyInlinedPlugins": true,
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

// subnets returns the stored subnets, or chooses and stores some. If two processes choose at the
// same time, both use the choice of the first.
func (c *call) subnets() (s subnets, err error) {
	dir := filepath.Join(c.runner.Cache.Dir, "cnibox")
	file := filepath.Join(dir, subnetsFile)
	if s, err = readSubnets(file); !errors.Is(err, os.ErrNotExist) {
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
	err = disk.Replace(file, filepath.Join(dir, ".new-"+sandbox.RandomHex()), doc, disk.New|disk.Durable)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return s, err
	}
	return readSubnets(file)
}

// readSubnets reads the file; an invalid file is an error, since its subnets may be in use. The
// error is os.ErrNotExist before any were chosen.
func readSubnets(file string) (s subnets, err error) {
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

// hostHasIPv6 reports whether the kernel has IPv6 and new links may use it. A new link gets the
// setting of "default".
func hostHasIPv6() bool {
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
