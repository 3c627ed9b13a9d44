package twin

import (
	"errors"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
)

// A feature of the kernel: its option, and a command of ip(8) that uses it on a link named v0 or,
// for a qdisc, of tc(8). show must then be in the description of the link, or of the qdiscs.
type feature struct{ option, try, show string }

var features = map[string]feature{
	"vlan":           {"CONFIG_VLAN_8021Q", "link add link v0 name tried type vlan id 5", "vlan"},
	"ipvlan":         {"CONFIG_IPVLAN", "link add link v0 name tried type ipvlan", "ipvlan"},
	"macvlan":        {"CONFIG_MACVLAN", "link add link v0 name tried type macvlan", "macvlan"},
	"vrf":            {"CONFIG_NET_VRF", "link add tried type vrf table 10", "vrf"},
	"dummy":          {"CONFIG_DUMMY", "link add tried type dummy", "dummy"},
	"tap":            {"CONFIG_TUN", "tuntap add dev tried mode tap", "tap"},
	"tap-owner":      {"CONFIG_TUN for other users", "tuntap add dev tried mode tap user 61234", "tap"},
	"fq_codel":       {"CONFIG_NET_SCH_FQ_CODEL", "qdisc replace dev v0 root fq_codel", "fq_codel"},
	"ifb":            {"CONFIG_IFB", "link add tried type ifb", "ifb"},
	"vlan-filtering": {"CONFIG_BRIDGE_VLAN_FILTERING", "link add tried type bridge vlan_filtering 1", "vlan_filtering 1"},
}

// tried has the errors of features that were tested before, by name.
var tried sync.Map

// Probe returns the option of a feature, and a function for kerneltest.Need that tests it once per
// process.
func Probe(name string) (option string, try func() error) {
	return features[name].option, func() error {
		if err, ok := tried.Load(name); ok {
			return *err.(*error)
		}
		err := features[name].probe()
		tried.Store(name, &err)
		return err
	}
}

// probe runs the command, and returns EOPNOTSUPP if the kernel lacks the feature, and EACCES if this
// user may not use it: root of a namespace with one user knows no other.
func (f feature) probe() error {
	if f.try == "" {
		return errors.New("no such feature")
	}
	ns, err := kerneltest.NewNS()
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := batch(ns, []string{"link add v0 type veth peer name v1"}); err != nil {
		return err
	}
	program := []string{"ip", "-d", "-batch", "-"}
	ask := "link show tried"
	if strings.HasPrefix(f.try, "qdisc ") {
		program[0], ask = "tc", "qdisc show dev v0"
	}
	out, err := tool(ns, f.try+"\n"+ask+"\n", program...)
	if err == nil && strings.Contains(string(out), f.show) {
		return nil
	}
	if err == nil || strings.Contains(err.Error(), "not supported") || strings.Contains(err.Error(), "Unknown device type") || strings.Contains(err.Error(), "kind is unknown") {
		return unix.EOPNOTSUPP
	}
	if strings.Contains(err.Error(), "Permission denied") || kerneltest.OneUser() && strings.Contains(err.Error(), "Invalid argument") {
		return unix.EACCES
	}
	return err
}
