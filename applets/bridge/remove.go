package bridge

import (
	"errors"
	"os"

	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// RemoveNetwork deletes the bridge, and with it the interfaces of its VLANs, unless it has a port,
// whoever owns that.
func (p *plugin) RemoveNetwork(op *attach.Op) error {
	links, err := op.Host.Links()
	if err != nil {
		return err
	}
	var br *rtnl.Link
	for i := range links {
		if links[i].Name == p.Bridge {
			br = &links[i]
		}
	}
	switch {
	case br == nil:
		return nil
	case br.Kind != "bridge":
		op.Warn("%s is of kind %q, not a bridge: it stays", br.Name, br.Kind)
		return nil
	}
	for _, l := range links {
		if l.Master == br.Index {
			return spec.Errorf(spec.CodeBusy, "bridge %s is in use: %s is a port of it", br.Name, l.Name)
		}
	}
	if err := op.Host.Do(rtnl.DropLink(br.Index)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
