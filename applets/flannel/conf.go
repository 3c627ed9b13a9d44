package flannel

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/state"
	"github.com/cnibox/cnibox/spec"
)

// defaultSubnetFile is the reference's default.
const defaultSubnetFile = "/run/flannel/subnet.env"

// conf is the configuration. The objects stay JSON, so that the delegate also gets keys that
// flannel does not know.
type conf struct {
	SubnetFile    string          `json:"subnetFile"`
	DataDir       string          `json:"dataDir"`
	Delegate      json.RawMessage `json:"delegate" plugin:"bridge"` // lint uses the tag: see applet.Applet
	IPAM          json.RawMessage `json:"ipam" plugin:"host-local"`
	RuntimeConfig json.RawMessage `json:"runtimeConfig"`
}

// A plan is a checked configuration.
type plan struct {
	conf
	dir    records
	notice string                     // what ADD reports before it creates the directory; empty: none
	base   map[string]json.RawMessage // the delegate's members
	kind   string                     // the delegate's type
}

// readPlan reads and checks the configuration; errors have code 7. The directory is valid even with
// an error, for DEL and GC.
func readPlan(r *spec.Request) (*plan, error) {
	f := &plan{kind: "bridge"}
	derr := r.Decode(&f.conf)
	dir, err := record.ResolveDir(r.Call, f.DataDir, state.Flannel)
	if f.DataDir == "" || err != nil {
		var usual string
		usual, f.notice = state.FlannelDir(r.Call.StateDir)
		dir = record.Dir(usual)
	}
	f.dir = records{dir}
	if err = cmp.Or(derr, err); err != nil {
		return f, err
	}
	if f.SubnetFile == "" {
		f.SubnetFile = defaultSubnetFile
	}
	if !filepath.IsAbs(f.SubnetFile) || strings.Contains(f.SubnetFile, "\x00") {
		return f, spec.Errorf(spec.CodeConfig, `"subnetFile" %q is not an absolute path`, f.SubnetFile).AtKey("subnetFile")
	}
	for _, o := range []*json.RawMessage{&f.Delegate, &f.IPAM} {
		if len(*o) == 0 || string(*o) == "null" {
			*o = json.RawMessage("{}")
		}
	}
	if f.base, err = spec.Members(f.Delegate); err == nil {
		err = f.checkDelegate()
	}
	if err != nil {
		return f, spec.Invalid(fmt.Errorf("'delegate' dictionary: %w", err), "delegate")
	}
	return f, nil
}

// checkDelegate reads the type. It refuses flannel as its own delegate, and keys that flannel sets.
func (f *plan) checkDelegate() error {
	var given struct{ Type *string }
	err := json.Unmarshal(f.Delegate, &given)
	switch {
	case f.hasKey("name"):
		return spec.KeyErrorf("delegate.name", "it must not have a 'name' field: the name is the network's")
	case f.hasKey("ipam"):
		return spec.KeyErrorf("delegate.ipam", "it must not have an 'ipam' field: flannel makes it of its own \"ipam\"")
	case err != nil, f.hasKey("type") && given.Type == nil:
		return spec.KeyErrorf("delegate.type", "its 'type' field must be a string")
	case given.Type != nil:
		f.kind = *given.Type
	}
	if f.kind == "flannel" || strings.HasSuffix(f.kind, "-flannel") {
		return spec.KeyErrorf("delegate.type", "its 'type' field is flannel itself")
	}
	if err := spec.CheckType(f.kind); err != nil {
		return spec.AtKey("delegate.type", err)
	}
	return nil
}

// hasKey reports whether the delegate's object has a key, in any case of letters, even with the
// value null.
func (f *plan) hasKey(key string) bool {
	for name := range f.base {
		if strings.EqualFold(name, key) {
			return true
		}
	}
	return false
}

// delegateConf returns the delegate's configuration. env is nil for DEL and GC. Like the reference
// it does not pass on dns, args and capabilities.
func (f *plan) delegateConf(r *spec.Request, env *subnetEnv) ([]byte, error) {
	ipam, err := f.ipam(env)
	if err != nil {
		return nil, spec.Invalid(fmt.Errorf("ipam: %w", err), "ipam")
	}
	set := map[string]any{"name": r.Net.Name, "ipam": json.RawMessage(ipam)}
	absent := func(key string, value any) {
		if !f.hasKey(key) {
			set[key] = value
		}
	}
	absent("type", "bridge")
	if env != nil {
		absent("ipMasq", !env.ipMasq)
		absent("mtu", env.mtu)
	}
	if f.kind == "bridge" {
		absent("isGateway", true)
	}
	if r.Net.CNIVersion != "" {
		set["cniVersion"] = r.Net.CNIVersion
	}
	if len(f.RuntimeConfig) > 0 && string(f.RuntimeConfig) != "null" {
		set["runtimeConfig"] = f.RuntimeConfig
	}
	conf, err := spec.Merge(f.Delegate, set)
	if err != nil {
		return nil, spec.Invalid(fmt.Errorf("'delegate' dictionary: %w", err), "delegate")
	}
	return conf, nil
}

// ipam returns the delegate's "ipam": the node's subnets replace its ranges, and routes to the
// cluster follow its routes.
func (f *plan) ipam(env *subnetEnv) ([]byte, error) {
	var given struct {
		Type   *string           `json:"type"`
		Routes []json.RawMessage `json:"routes"`
	}
	if err := json.Unmarshal(f.IPAM, &given); err != nil {
		return nil, err
	}
	set := make(map[string]any)
	if given.Type == nil {
		set["type"] = "host-local"
	}
	if env != nil {
		var ranges, routes []string
		if env.subnet4.IsValid() {
			ranges = append(ranges, `[{"subnet":"`+env.subnet4.String()+`"}]`)
		}
		if env.subnet6.IsValid() {
			ranges = append(ranges, `[{"subnet":"`+env.subnet6.String()+`"}]`)
		}
		for _, route := range given.Routes {
			routes = append(routes, string(route))
		}
		for _, dst := range append(env.networks4, env.networks6...) {
			routes = append(routes, `{"dst":"`+dst.String()+`"}`)
		}
		list := json.RawMessage("[" + strings.Join(routes, ",") + "]")
		if _, err := spec.ParseIPAM(list, nil); err != nil {
			return nil, err
		}
		set["ranges"] = json.RawMessage("[" + strings.Join(ranges, ",") + "]")
		set["routes"] = list
	}
	return spec.Merge(f.IPAM, set)
}
