package flannel

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/ipam"
)

// maxSubnetEnv is how many bytes of subnet.env are read at most; flanneld writes some 200.
const maxSubnetEnv = 64 << 10

// A subnetEnv has the values of subnet.env.
type subnetEnv struct {
	networks4, networks6 []netip.Prefix // of the whole cluster
	subnet4, subnet6     netip.Prefix   // the node's; zero: none
	mtu                  uint32         // bytes
	ipMasq               bool           // flanneld masquerades itself
}

// readSubnetEnv reads the file at path, which may be a link; a pipe is an error and does not block.
// The error is os.ErrNotExist before flanneld has written the file.
func readSubnetEnv(path string) (*subnetEnv, error) {
	text, err := disk.Read(path, 0, maxSubnetEnv)
	if err != nil {
		return nil, err
	}
	env, err := parseSubnetEnv(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s %w", path, err)
	}
	return env, nil
}

// parseSubnetEnv reads lines of KEY=VALUE like a shell: it removes quotes, skips comments and the
// word export, and ignores blanks around key and value. It also ignores unknown keys and lines
// without "=". The error does not name the file.
func parseSubnetEnv(text string) (*subnetEnv, error) {
	e := &subnetEnv{}
	seen := map[string]bool{}
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimPrefix(strings.TrimSpace(line), "export ")
		key, value, ok := strings.Cut(line, "=")
		key = strings.TrimSpace(key)
		if !ok || !strings.HasPrefix(key, "FLANNEL_") {
			continue
		}
		if err := e.set(key, unquoted(value)); err != nil {
			return nil, fmt.Errorf("has a bad %s: %w", key, err)
		}
		seen[key] = true
	}
	var missing []string
	for _, want := range []struct {
		key   string
		there bool
	}{
		{"FLANNEL_NETWORK or FLANNEL_IPV6_NETWORK", len(e.networks4)+len(e.networks6) > 0},
		{"FLANNEL_SUBNET or FLANNEL_IPV6_SUBNET", e.subnet4.IsValid() || e.subnet6.IsValid()},
		{"FLANNEL_MTU", seen["FLANNEL_MTU"]},
		{"FLANNEL_IPMASQ", seen["FLANNEL_IPMASQ"]},
	} {
		if !want.there {
			missing = append(missing, want.key)
		}
	}
	if missing != nil {
		return nil, fmt.Errorf("is missing %s", strings.Join(missing, ", "))
	}
	return e, nil
}

// set reads the value of a key; the last value of a repeated key counts.
func (e *subnetEnv) set(key, value string) (err error) {
	switch key {
	case "FLANNEL_NETWORK":
		e.networks4, err = parseNetworks(value)
	case "FLANNEL_IPV6_NETWORK":
		e.networks6, err = parseNetworks(value)
	case "FLANNEL_SUBNET":
		e.subnet4, err = parseNetwork(value)
	case "FLANNEL_IPV6_SUBNET":
		e.subnet6, err = parseNetwork(value)
	case "FLANNEL_MTU":
		n, perr := strconv.ParseUint(value, 10, 32)
		if perr != nil {
			return fmt.Errorf("%q is not a number of bytes", value)
		}
		e.mtu = uint32(n)
	case "FLANNEL_IPMASQ":
		e.ipMasq = value == "true"
	}
	return err
}

// unquoted removes the quotes around a value, or a comment after it, which begins with " #".
func unquoted(value string) string {
	value = strings.TrimSpace(value)
	if value != "" && (value[0] == '"' || value[0] == '\'') {
		if end := strings.IndexByte(value[1:], value[0]); end >= 0 {
			return strings.TrimSpace(value[1 : 1+end])
		}
	}
	if i := strings.Index(value, " #"); i >= 0 {
		value = value[:i]
	}
	return strings.TrimSpace(value)
}

// parseNetworks reads comma-separated networks without duplicates; it skips empty parts.
func parseNetworks(list string) (ps []netip.Prefix, err error) {
	for _, text := range ipam.SplitWords(list) {
		p, err := parseNetwork(text)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(ps, p) {
			ps = append(ps, p)
		}
	}
	return ps, nil
}

// parseNetwork reads a network, and clears host bits: flanneld writes its own address in the
// subnet. For a family that it does not serve it writes an empty value.
func parseNetwork(text string) (netip.Prefix, error) {
	if text == "" {
		return netip.Prefix{}, nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("%q is not a network such as 10.244.0.0/16", text)
	}
	return p.Masked(), nil
}
