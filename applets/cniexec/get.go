package cniexec

import (
	"context"

	"cnibox/chain"
	"cnibox/spec"
)

// getVerb is the declaration of get.
func getVerb() *verb {
	return &verb{name: "get", operands: "NETWORK NETNS", summary: "print the result again", do: attachment((*call).get),
		text: `It is compared with what the plugins know of the attachment.`,
		examples: []example{
			{"cni-exec get mynet /run/netns/blue", "what add printed"},
			{"cni-exec get mynet --container-id c1 -i net1", "of another interface"},
		},
		flags: func(f *flagSet) {
			f.link("`NAME` interface in the namespace", "`ID` container ID; default: made of NETNS as by cnitool")
		},
	}
}

// get prints what add has printed.
func (c *call) get(ctx context.Context) error {
	l, err := c.load()
	if err != nil {
		return err
	}
	res, err := c.runner.Get(ctx, l, c.target)
	if err != nil {
		return err
	}
	return c.print(l, res)
}

// print writes a result in the version of the list.
func (c *call) print(l *chain.List, res *spec.Result) error {
	v, err := spec.ParseVersion(l.CNIVersion)
	if err != nil {
		return err
	}
	doc, err := res.EncodeFor(v, c.target.IfName)
	if err != nil {
		return err
	}
	return c.writeResult(doc)
}
