package bridge

import (
	"context"
	"errors"
	"os"

	"cnibox/internal/netns"
	"cnibox/rtnl"
	"cnibox/spec"
)

// removeBridge deletes the bridge, and with it the interfaces of its VLANs, unless it has a
// port of any owner.
func removeBridge(_ context.Context, r *spec.Request, c *port) error {
	host, err := rtnl.Dial(netns.Host())
	if err != nil {
		return err
	}
	defer host.Close()
	links, err := host.Links()
	if err != nil {
		return err
	}
	var br *rtnl.Link
	for i := range links {
		if links[i].Name == c.Bridge {
			br = &links[i]
		}
	}
	switch {
	case br == nil:
		return nil
	case br.Kind != "bridge":
		r.Warn("%s is of kind %q and no bridge: it stays", br.Name, br.Kind)
		return nil
	}
	for _, l := range links {
		if l.Master == br.Index {
			return spec.Errorf(spec.CodeBusy, "bridge %s is in use: %s is a port of it", br.Name, l.Name)
		}
	}
	if err := host.Do(rtnl.DropLink(br.Index)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
