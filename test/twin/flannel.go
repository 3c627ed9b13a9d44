package twin

import (
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// A flannelConf is a configuration of flannel.
type flannelConf struct {
	CNIVersion, Name    string
	SubnetFile, DataDir string
	Delegate, IPAM      map[string]json.RawMessage
	RuntimeConfig       json.RawMessage
}

// flannel does what the reference's flannel plugin does, which no package has: its delegate gets
// the node's subnets, and on DEL the same configuration from a file named after the container. The
// delegate, from the directory, does everything else. See flannel.go and flannel_linux.go of
// flannel-io/cni-plugin.
func (w *world) flannel(path, verb string, c *container, stdin []byte) (stdout []byte, code int, err error) {
	var conf flannelConf
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return nil, 0, err
	}
	file := filepath.Join(conf.DataDir, c.id)
	var kind string
	switch verb {
	case "ADD":
		if stdin, err = conf.delegate(); err == nil {
			err = errors.Join(os.MkdirAll(conf.DataDir, 0o700), os.WriteFile(file, stdin, 0o600))
		}
	case "DEL":
		if stdin, err = os.ReadFile(file); errors.Is(err, os.ErrNotExist) {
			return nil, 0, nil
		}
		err = errors.Join(err, os.Remove(file))
	default:
		return nil, 0, nil
	}
	var saved struct{ Type *string }
	saved.Type = &kind
	if err = errors.Join(err, json.Unmarshal(stdin, &saved)); err != nil {
		return nil, 0, err
	}
	return w.start(path, kind, verb, c, stdin)
}

// delegate returns the delegate's configuration.
func (conf *flannelConf) delegate() ([]byte, error) {
	b, err := os.ReadFile(conf.SubnetFile)
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for l := range strings.SplitSeq(string(b), "\n") {
		key, value, _ := strings.Cut(l, "=")
		env["FLANNEL_"+strings.TrimPrefix(key, "FLANNEL_")] = value
	}
	d, ipam := map[string]any{}, map[string]any{"type": "host-local"}
	defaults := map[string]any{"type": "bridge", "ipMasq": env["FLANNEL_IPMASQ"] != "true", "mtu": json.Number(env["FLANNEL_MTU"])}
	if kind := conf.Delegate["type"]; kind == nil || string(kind) == `"bridge"` {
		defaults["isGateway"] = true
	}
	maps.Copy(d, defaults)
	for key, value := range conf.Delegate {
		d[key] = value
	}
	var routes []any
	for key, value := range conf.IPAM {
		ipam[key] = value
	}
	err = json.Unmarshal(conf.IPAM["routes"], &routes)
	if conf.IPAM["routes"] == nil {
		err = nil
	}
	var ranges []any
	for _, family := range []string{"", "IPV6_"} {
		if subnet := env["FLANNEL_"+family+"SUBNET"]; subnet != "" {
			p, invalid := netip.ParsePrefix(subnet)
			err = errors.Join(err, invalid)
			ranges = append(ranges, []any{map[string]string{"subnet": p.Masked().String()}})
		}
	}
	for _, family := range []string{"", "IPV6_"} {
		if network := env["FLANNEL_"+family+"NETWORK"]; network != "" {
			routes = append(routes, map[string]string{"dst": network})
		}
	}
	ipam["ranges"], ipam["routes"] = ranges, routes
	d["name"], d["cniVersion"], d["ipam"] = conf.Name, conf.CNIVersion, ipam
	if conf.RuntimeConfig != nil {
		d["runtimeConfig"] = conf.RuntimeConfig
	}
	b, marshal := json.Marshal(d)
	return b, errors.Join(err, marshal)
}
