package cniexec

import "context"

// delVerb is the declaration of del.
func delVerb() *verb {
	return &verb{name: "del", operands: "NETWORK NETNS", summary: "detach; no error if it is gone", do: attachment((*call).del),
		text: `The configuration and arguments of the add are used, unless others are given.`,
		examples: []example{
			{"cni-exec del --delete mynet blue", "with the namespace, which may be gone already"},
			{"cni-exec del mynet --container-id c1 --keep-going", "run all plugins even if one fails"},
		},
		flags: func(f *flagSet) {
			f.link("`NAME` interface in the namespace", "`ID` container ID; default: made of NETNS as by cnitool")
			f.BoolVar(&f.delete, "delete", false, "delete the named namespace as well, with its last attachment")
			f.BoolVar(&f.keepGoing, "keep-going", false, "run all plugins even if one fails")
		},
	}
}

// del runs DEL; it prints nothing.
func (c *call) del(ctx context.Context) error {
	l, err := c.load()
	if err != nil {
		return err
	}
	if err = c.runner.Del(ctx, l, c.target); err != nil || !c.delete {
		return err
	}
	return c.names().DeleteUnused(ctx, c.target.NetNS)
}
