package netavark

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/cnibox/cnibox/applets/subnet"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/spec"
)

// create completes a network of podman: it chooses what the user has not given, and refuses what
// cannot work. Members that it does not know stay.
func (d *driver) create(doc []byte) (any, error) {
	var whole map[string]json.RawMessage
	var n network
	if err := spec.Unmarshal("create", doc, &whole); err != nil {
		return nil, spec.Errorf(spec.CodeDecode, "%w", err)
	}
	if err := spec.Unmarshal("create", doc, &n); err != nil {
		return nil, spec.Errorf(spec.CodeDecode, "%w", err)
	}
	if err := spec.CheckNetworkName(n.Name); err != nil {
		return nil, err
	}
	_, err := n.readOptions()
	if err != nil {
		return nil, err
	}
	if name := n.Options["network"]; name != "" {
		if _, err := chain.NewDir(d.confDir()).Load(name); err != nil {
			return nil, fmt.Errorf("option network=%s: %w", name, err)
		}
	} else if err := d.complete(&n); err != nil {
		return nil, err
	}
	for key, value := range map[string]any{"subnets": n.Subnets, "network_interface": n.Interface, "dns_enabled": false} {
		if text, ok := value.(string); ok && text == "" {
			continue
		}
		if list, ok := value.([]subnetOf); ok && len(list) == 0 {
			continue
		}
		if whole[key], err = json.Marshal(value); err != nil {
			return nil, err
		}
	}
	return whole, nil
}

// complete chooses the bridge, subnets and gateways.
func (d *driver) complete(n *network) error {
	if l, _ := chain.NewDir(d.confDir()).Load(n.Name); l != nil {
		return spec.Errorf(spec.CodeConfig, "%s has a network %s: name another one, or attach to that by -o network=%[2]s", l.File, n.Name)
	}
	others := d.podmanNetworks()
	if n.Interface == "" {
		if n.unmanaged() {
			return spec.Errorf(spec.CodeConfig, "option mode=unmanaged: name the bridge by --interface-name")
		}
		const digits = 8
		if len(n.ID) < digits {
			return spec.Errorf(spec.CodeConfig, `"id": %q is too short`, n.ID)
		}
		n.Interface = "cb" + n.ID[:digits]
	}
	if err := spec.CheckIfName(n.Interface); err != nil {
		return err
	}
	for _, other := range others {
		if other.Interface == n.Interface && other.Name != n.Name && !n.unmanaged() {
			return spec.Errorf(spec.CodeBusy, "bridge %s is that of network %s", n.Interface, other.Name)
		}
	}
	if driver := n.IPAMOptions["driver"]; driver == "none" || driver == "dhcp" {
		return nil
	}
	used, err := d.used(others)
	if err != nil {
		return err
	}
	if err := n.checkSubnets(used); err != nil {
		return err
	}
	return n.chooseSubnets(used)
}

// checkSubnets refuses subnets that overlap others. An unmanaged bridge has an address in them.
func (n *network) checkSubnets(used []netip.Prefix) error {
	for i, s := range n.Subnets {
		key := fmt.Sprintf("subnet %s", s.Subnet)
		if !s.Subnet.IsValid() || s.Subnet != s.Subnet.Masked() {
			return spec.Errorf(spec.CodeConfig, "%s: it must be the first address of the subnet with the prefix length, as %s", key, s.Subnet.Masked())
		}
		if s.Gateway != nil && !s.Subnet.Contains(*s.Gateway) {
			return spec.Errorf(spec.CodeConfig, "%s: gateway %s is not in it", key, s.Gateway)
		}
		against := used
		if n.unmanaged() {
			against = nil
		}
		for _, other := range n.Subnets[:i] {
			against = append(slices.Clip(against), other.Subnet)
		}
		if other, overlaps := subnet.Overlap(s.Subnet, against); overlaps {
			return spec.Errorf(spec.CodeBusy, "%s overlaps %s, which this host or another network uses", key, other)
		}
	}
	return nil
}

// chooseSubnets adds a subnet of each family that is asked for, and the gateways.
func (n *network) chooseSubnets(used []netip.Prefix) (err error) {
	has := func(six bool) bool {
		return slices.ContainsFunc(n.Subnets, func(s subnetOf) bool { return s.Subnet.Addr().Is6() == six })
	}
	if len(n.Subnets) == 0 {
		s := subnetOf{}
		if s.Subnet, err = subnet.IPv4(used); err != nil {
			return err
		}
		n.Subnets = append(n.Subnets, s)
	}
	if n.IPv6 && !has(true) {
		n.Subnets = append(n.Subnets, subnetOf{Subnet: subnet.IPv6(used)})
	}
	for i := range n.Subnets {
		if s := &n.Subnets[i]; s.Gateway == nil && !n.Internal {
			first := s.Subnet.Addr().Next()
			if !s.Subnet.Contains(first) {
				return spec.Errorf(spec.CodeConfig, "subnet %s has no address for a gateway", s.Subnet)
			}
			s.Gateway = &first
		}
	}
	return nil
}

// used returns what the host uses, and the subnets of podman's networks: a network without a
// container has no bridge.
func (d *driver) used(others []network) ([]netip.Prefix, error) {
	used, err := subnet.Used()
	for _, n := range others {
		for _, s := range n.Subnets {
			used = append(used, s.Subnet)
		}
	}
	return used, err
}

// podmanNetworks reads podman's networks in its default directories. podman does not say where it
// has them. What cannot be read has no networks.
func (d *driver) podmanNetworks() (list []network) {
	dirs := []string{"/etc/containers/networks"}
	if home := d.Getenv("HOME"); home != "" {
		dirs = append(dirs, filepath.Join(home, ".local/share/containers/storage/networks"))
	}
	if data := d.Getenv("XDG_DATA_HOME"); data != "" {
		dirs = append(dirs, filepath.Join(data, "containers/storage/networks"))
	}
	for _, dir := range dirs {
		files, _ := filepath.Glob(filepath.Join(dir, "*.json"))
		for _, file := range files {
			var n network
			if doc, err := disk.Read(file, 0, spec.MaxConf); err == nil && json.Unmarshal(doc, &n) == nil {
				list = append(list, n)
			}
		}
	}
	return list
}
