package applets

import (
	"context"
	"errors"
	"fmt"
	"os"

	"cnibox/rtnl"
	"cnibox/spec"
)

// guarded returns the verbs of a plugin with a look at CNI_NETNS before each
// that works in it. The look comes after the checks of [spec.Verbs.Do] and
// before the plugin changes anything.
// The reference looks after the work: its loopback has taken down the host's lo by
// then, and its ADD has printed a result before the error.
func guarded(a *Applet) spec.Verbs {
	v := a.Verbs
	v.Add = guardedResult(v.Add, !a.AnyNetNS)
	if v.Get == nil {
		v.Get = spec.Verbs{}.Do // the answer of a plugin that keeps nothing
	}
	v.Get = guardedResult(v.Get, !a.AnyNetNS)
	v.Check = guardedPlain(v.Check, !a.AnyNetNS)
	v.Del = guardedPlain(v.Del, false)
	return v
}

// guardedResult puts the look before an ADD or GET; nil, which the plugin does not
// have, stays nil. need is whether there must be a namespace.
func guardedResult(do func(context.Context, *spec.Request) (*spec.Result, error), need bool) func(context.Context, *spec.Request) (*spec.Result, error) {
	if do == nil {
		return nil
	}
	return func(ctx context.Context, r *spec.Request) (*spec.Result, error) {
		if err := checkNetNS(r.Call, need); err != nil {
			return nil, err
		}
		return do(ctx, r)
	}
}

// guardedPlain is guardedResult for verbs without a result. DEL needs no namespace:
// that it is gone is why it comes.
func guardedPlain(do func(context.Context, *spec.Request) error, need bool) func(context.Context, *spec.Request) error {
	if do == nil {
		return nil
	}
	return func(ctx context.Context, r *spec.Request) error {
		if err := checkNetNS(r.Call, need); err != nil {
			return err
		}
		return do(ctx, r)
	}
}

// checkNetNS refuses a namespace that is our own: /proc/PID/ns/net of a
// container that ended and whose PID now belongs to the host. One that cannot
// be opened is an error only when it is needed. Errors have code 8 and the
// words of the reference plugins, by which people find them; to GET a container
// whose namespace is gone is unknown: code 3.
// CNI_NETNS_OVERRIDE lets our own namespace pass, for those who mean it.
func checkNetNS(c spec.Call, need bool) error {
	ns, err := rtnl.OpenNS(c.NetNS)
	if err != nil {
		switch {
		case !need:
			return nil
		case c.Verb == spec.Get && errors.Is(err, os.ErrNotExist):
			return spec.Errorf(spec.CodeUnknown, "unknown container %q: its network namespace is gone: %w", c.ContainerID, err)
		}
		return spec.Errorf(spec.CodeNetNS, "failed to open netns %q: %w", c.NetNS, err)
	}
	defer ns.Close()
	if c.NetNSOverride {
		return nil
	}
	own, err := rtnl.Current()
	if err != nil {
		return fmt.Errorf("own network namespace: %w", err)
	}
	defer own.Close()
	same, err := ns.Same(own)
	if err != nil {
		return fmt.Errorf("compare network namespaces: %w", err)
	}
	if same {
		return spec.Errorf(spec.CodeNetNS, "plugin's netns and netns from CNI_NETNS should not be the same (CNI_NETNS is %q)", c.NetNS)
	}
	return nil
}
