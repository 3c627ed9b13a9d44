package doctor

import (
	"context"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/spec"
)

// checkIsolated looks for isolated ports of bridges whose attachment did not ask for that: no frames pass between two of them.
// What an external plugin of the list asks for is not known.
func (d *Doctor) checkIsolated(context.Context) {
	for _, a := range d.live() {
		l := d.inv.Link(a)
		if l == nil || !l.Isolated || a.Conf.Isolated || slices.ContainsFunc(a.Conf.Types(), func(plugin string) bool { return !d.builtIn(plugin) }) {
			continue
		}
		d.add(Finding{Check: "port isolation", Where: d.title(a), Repair: fmt.Sprintf("ip link set %s type bridge_slave isolated off", l.Name), Code: spec.CodeCheck,
			Message: fmt.Sprintf("its port %s is isolated, which the configuration of network %s does not ask for: no frames pass to and from other isolated ports", l.Name, a.NetworkName)}, a)
	}
}
