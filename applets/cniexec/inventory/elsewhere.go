package inventory

import (
	"slices"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Elsewhere searches for the namespaces of attachments that are not at their recorded paths, such
// as those mounted in another mount namespace only (see [rtnl.EachNS]). It returns where they are,
// and why others may exist unseen.
//
// A namespace is an attachment's if it has the recorded ID, a link with its label, or its interface
// with its address.
func Elsewhere(list []*Entry) (at map[*Entry]string, hidden rtnl.Hidden, err error) {
	at = map[*Entry]string{}
	if len(list) == 0 {
		return at, hidden, nil
	}
	hidden, err = rtnl.EachNS(func(n *rtnl.Namespace) error {
		id := ""
		if n.NS != nil {
			if host, err := n.NS.Same(netns.Host()); host || err != nil {
				return err
			}
			ns, err := n.NS.ID()
			if err != nil {
				return err
			}
			id = ns.String()
		}
		for _, a := range list {
			if id != "" && a.NetNSID != "" {
				if a.NetNSID == id && n.NS.HasCookie(a.NetNSCookie) {
					at[a] = n.Path
				}
			} else if a.isIn(n) {
				at[a] = n.Path
			}
		}
		return nil
	})
	return at, hidden, err
}

// isIn reports whether a namespace has the attachment's link: by its label, or by its name with one
// of the addresses.
func (a *Entry) isIn(n *rtnl.Namespace) bool {
	return slices.ContainsFunc(n.Links, func(l rtnl.Link) bool {
		if l.Kind != "veth" && spec.LabelKey(l.Alias) == a.Key {
			return true
		}
		return l.Name == a.IfName && slices.ContainsFunc(n.Addrs[l.Index], func(addr rtnl.Addr) bool { return a.HasAddr(addr.Prefix.Addr().String()) })
	})
}

// searchGone searches for the namespaces of attachments that seem gone, and corrects their states. A
// veth pair that is gone from the host shows that its namespace is.
func (v *Inventory) searchGone() {
	var list []*Entry
	for _, a := range v.Entries {
		ended := a.Conf.Veth && v.Links != nil && v.Links.ByName[a.HostLink] == nil
		if a.State == chain.StateGone && a.SameBoot() && !ended {
			list = append(list, a)
		}
	}
	at, hidden, err := Elsewhere(list)
	for _, a := range list {
		switch {
		case at[a] != "":
			a.State, a.Why = chain.StateUnknown, a.Why+", but "+chain.HeldBy(at[a])
		case err != nil:
			a.State, a.Why = chain.StateUnknown, a.Why+"; others cannot be searched: "+err.Error()
		case hidden.Named != "" || hidden.Unnamed != "" && !a.Conf.Veth:
			a.State, a.Why = chain.StateUnknown, a.Why+"; it may be elsewhere: "+hidden.String()
		}
	}
}
