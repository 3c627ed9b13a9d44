package spec

import (
	"encoding/json"
	"fmt"
	"net"
)

// Decode reads the plugin's own keys into conf, a pointer to a struct; errors have code 7 and name
// the key as it is written.
//
// As in encoding/json, keys match in any letter case and unknown keys are ignored; conf may have
// prevResult and other common keys.
func (r *Request) Decode(conf any) error {
	if err := json.Unmarshal(r.conf, conf); err != nil {
		return Errorf(CodeConfig, "invalid network config: %w", Explain(r.conf, conf, err))
	}
	return nil
}

// MAC returns the requested address from runtimeConfig.mac, args.cni.mac, CNI_ARGS MAC or the key
// mac, the first that is present; nil: none. Errors have code 7 (4 for CNI_ARGS).
//
// The order is the same for all plugins.
func (r *Request) MAC() (net.HardwareAddr, error) {
	var conf struct {
		RuntimeConfig struct {
			MAC string `json:"mac"`
		}
		Args struct {
			CNI struct {
				MAC string `json:"mac"`
			} `json:"cni"`
		}
		MAC string
	}
	for _, err := range []error{
		optional("runtimeConfig", r.top.RuntimeConfig, &conf.RuntimeConfig),
		optional("args", r.top.Args, &conf.Args),
		optional("mac", r.top.MAC, &conf.MAC),
	} {
		if err != nil {
			return nil, Errorf(CodeConfig, "invalid network config: %w", err)
		}
	}
	// An empty string is not an address: some runtimes always send the key.
	for _, from := range []struct {
		what, mac string
		code      int
	}{
		{"runtimeConfig.mac", conf.RuntimeConfig.MAC, CodeConfig},
		{"args.cni.mac", conf.Args.CNI.MAC, CodeConfig},
		{"CNI_ARGS: MAC", r.args["MAC"], CodeEnv},
		{"mac", conf.MAC, CodeConfig},
	} {
		if from.mac == "" {
			continue
		}
		mac, err := ParseMAC(from.mac)
		if err != nil {
			return nil, Errorf(from.code, "%s: %w", from.what, err).AtKey(from.what)
		}
		return mac, nil
	}
	return nil, nil
}

// HardwareAddr is [net.ParseMAC] for 6 octets (Ethernet) and 20 (IP over InfiniBand). An EUI-64 is
// invalid: plugins make no interface that has one.
func HardwareAddr(s string) (net.HardwareAddr, error) {
	addr, err := net.ParseMAC(s)
	if err == nil && len(addr) == 8 {
		err = &net.AddrError{Err: "invalid MAC address", Addr: s}
	}
	if err != nil {
		return nil, err
	}
	return addr, nil
}

// ParseMAC parses a link layer address that an interface can have: 6 octets, unicast, or the 20 of
// InfiniBand, and not all zero. The kernel rejects multicast and all-zero addresses
// (is_valid_ether_addr), but only after the link exists.
func ParseMAC(s string) (net.HardwareAddr, error) {
	addr, err := HardwareAddr(s)
	if err != nil {
		return nil, fmt.Errorf("%q is not a MAC address of 6 octets, as 02:00:00:00:00:05", s)
	}
	if len(addr) == 6 && addr[0]&1 != 0 {
		return nil, fmt.Errorf("%q is a multicast MAC address", s)
	}
	for _, octet := range addr {
		if octet != 0 {
			return addr, nil
		}
	}
	return nil, fmt.Errorf("%q is not a MAC address of an interface", s)
}

// Wire returns the stdin of an exec'd plugin: the configuration with prevResult in r.Net.Version,
// and the valid set of GC under both its keys. Unknown members and large numbers are kept. The
// error has code 7 if the version cannot express prevResult.
func (r *Request) Wire() ([]byte, error) {
	set := make(map[string]any)
	if r.Call.Verb == GC && r.Valid != nil {
		set = ValidMembers(r.Valid)
	}
	if r.Prev != nil {
		prev, err := r.Prev.wire(r.Net.Version, r.IfName)
		if err != nil {
			return nil, fmt.Errorf("prevResult: %w", err)
		}
		set["prevResult"] = prev
	}
	wire, err := Merge(r.conf, set, "prevResult")
	if err != nil {
		return nil, Errorf(CodeConfig, "network config: %w", err)
	}
	return wire, nil
}

// ValidMembers returns the valid set of GC as configuration members, under both keys: plugins of
// the 1.1.0 tag read only the second one. The empty set is [], never null, whether valid is nil or
// not.
func ValidMembers(valid []Attachment) map[string]any {
	type attachment struct {
		ContainerID string `json:"containerID"`
		IfName      string `json:"ifname"`
	}
	list := make([]attachment, len(valid))
	for i, a := range valid {
		list[i] = attachment{a.ContainerID, a.IfName}
	}
	return map[string]any{keyValid: list, keyAttached: list}
}
