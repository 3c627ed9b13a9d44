package cniexec

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/applets/cniexec/defaultnet"
	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

// configured returns the names of the configured networks, and warns of unreadable configurations.
func (c *call) configured() []string {
	names, broken := chain.Networks(c.confDir)
	for _, err := range broken {
		c.runner.Warn("%v", err)
		c.notTested = append(c.notTested, spec.Printable(err.Error()))
	}
	return names
}

// networks returns the names of the configured networks, or the default network if there are none.
// With cached it includes those that only the cache has.
func (c *call) networks(cached bool) ([]string, error) {
	names := c.configured()
	if len(names) == 0 {
		names = []string{defaultnet.Name}
	}
	if !cached {
		return names, nil
	}
	entries, _, err := c.runner.Cache.List() // broken entries have no network
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

// eachNetwork runs a verb for one network after another and prints the error of each. failure is
// the format of the error if any failed, with the number of those and of all. A warning that
// several networks cause is printed once.
func (c *call) eachNetwork(ctx context.Context, names []string, do func(ctx context.Context, network string) error, failure string) error {
	defer c.warnOnce()()
	c.configs = chain.NewDir(c.confDir)
	defer func() { c.configs = nil }()
	failed := 0
	for _, name := range names {
		if err := do(ctx, name); err != nil && !errors.Is(err, context.Cause(ctx)) {
			c.runner.Warn("%s %s: %v", c.verb, name, hint.Line(err))
			c.problem(target{network: name}, c.verb, err)
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
	return c.eachNetwork(ctx, names, func(ctx context.Context, network string) error {
		l, err := c.load(target{network: network})
		if err != nil {
			return err
		}
		return do(ctx, l)
	}, failure)
}

// warnOnce prints a repeated warning only once, until restore is called.
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
