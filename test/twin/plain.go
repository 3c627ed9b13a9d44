package twin

import (
	"strings"
	"sync"

	"github.com/cnibox/cnibox/internal/kerneltest"
)

// plainLinks has the members of a new link of each kind, by kind and master's kind. A member that
// has the same value in a link of a run tells nothing about plugins, but about the kernel and
// iproute2.
var plainLinks = sync.OnceValues(func() (map[string][]string, error) {
	ns, err := kerneltest.NewNS()
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	lines := []string{
		"link add v0 type veth peer name v1", "link add v2 type veth peer name v3",
		"link add b0 type bridge",
		"link set v0 master b0", "tuntap add t0 mode tap", "tuntap add t1 mode tap", "link set t1 master b0",
		"link add m0 link v3 type macvlan", "link add m1 type ifb", "link add m2 type dummy",
		"link add m3 link v1 type ipvlan", "link add m4 link v1 type vlan id 4000", "link add m5 type vrf table 4000", "link set v2 master m5",
	}
	for _, l := range []string{"v0", "v1", "v2", "v3", "b0", "t0", "t1", "m0", "m1", "m2", "m3", "m4", "m5"} {
		lines = append(lines, "link set "+l+" up") // for its qdisc
	}
	for _, l := range lines { // one by one, since a kernel may lack a kind
		_ = batch(ns, []string{l})
	}
	all, err := list(ns, "link show\n", "ip", "-j", "-d")
	if err != nil {
		return nil, err
	}
	plain := map[string][]string{}
	for _, o := range all[0] {
		var kept []string
		for _, kv := range members(o) {
			if name, _, _ := strings.Cut(kv, "="); name != "address" && name != "link" && name != "master" {
				kept = append(kept, kv)
			}
		}
		plain[kind(o)] = kept
	}
	return plain, nil
})

// kind returns the kind of a link and of its master, which determine what members it has.
func kind(o object) string {
	info, _ := o["linkinfo"].(map[string]any)
	return object(info).text("info_kind") + " " + object(info).text("info_slave_kind")
}
