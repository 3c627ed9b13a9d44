package cniexec

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cnibox/applets/cniexec/hint"
	"cnibox/chain"
	"cnibox/spec"
)

// configured returns the names of the networks that are configured. Configurations that cannot
// be read are warned of.
func (c *call) configured() []string {
	names, broken := chain.Networks(c.confDir)
	for _, err := range broken {
		c.runner.Warn("%v", err)
		c.notTested = append(c.notTested, spec.Printable(err.Error()))
	}
	return names
}

// networks returns the names of the networks that are configured, or the default network if
// there are none; with cached, also of those of which only the cache knows.
func (c *call) networks(cached bool) ([]string, error) {
	names := c.configured()
	if len(names) == 0 {
		names = []string{defaultNetwork}
	}
	if !cached {
		return names, nil
	}
	entries, _, err := c.runner.Cache.List() // broken ones have no network
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !slices.Contains(names, e.NetworkName) {
			names = append(names, e.NetworkName)
		}
	}
	return names, nil
}

// eachNetwork runs a verb for the networks one after another and prints what went wrong with each.
// failure is the error if anything did, for how many that were and how many there are. A warning
// that several of them give is printed once.
func (c *call) eachNetwork(ctx context.Context, names []string, do func(context.Context) error, failure string) error {
	defer c.warnOnce()()
	defer func() { c.network = "" }()
	failed := 0
	for _, name := range names {
		c.network = name
		if err := do(ctx); err != nil && !errors.Is(err, context.Cause(ctx)) {
			c.runner.Warn("%s %s: %v", c.verb, name, hint.Line(err))
			c.problem(c.verb, err)
			failed++
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if failed > 0 {
		return fmt.Errorf(failure, failed, len(names))
	}
	return nil
}

// eachList is eachNetwork with the configuration of each network.
func (c *call) eachList(ctx context.Context, names []string, do func(context.Context, *chain.List) error, failure string) error {
	return c.eachNetwork(ctx, names, func(ctx context.Context) error {
		l, err := c.load()
		if err != nil {
			return err
		}
		return do(ctx, l)
	}, failure)
}

// warnOnce prints a warning that is given several times once, until it is restored.
func (c *call) warnOnce() (restore func()) {
	warn, printed := c.runner.Warn, map[string]bool{}
	c.runner.Warn = func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !printed[text] {
			printed[text] = true
			warn("%s", text)
		}
	}
	return func() { c.runner.Warn = warn }
}
