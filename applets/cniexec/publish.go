package cniexec

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/tty"
	"github.com/cnibox/cnibox/spec"
)

func publishVerb() *verb {
	return &verb{name: "publish", group: "Run", operands: "ID PORT…", summary: "publish ports of a running container, or remove them", new: func(c *call) action { return &publishCall{call: c} },
		text: `PORT is [IP:]HOST:CONTAINER[/tcp|udp|sctp], or a range, as of add --publish. ID
may be a name, as ls has it. The ports are those of the attachment from then on,
as if add had got them: check, reload and del know them. All are published, or
none. With --remove PORT may be without CONTAINER, and without IP it is that of
any address; a port that is not published is an error, and none is removed.`,
		examples: []example{
			{"cni-exec publish c1 8081:80", "port 8081 of the host leads to port 80"},
			{"cni-exec publish --remove c1 8081", "it does so no more"},
		},
	}
}

func unpublishVerb() *verb {
	return &verb{name: "unpublish", instead: "publish --remove", new: func(c *call) action { return &unpublishCall{publishCall{call: c, remove: true}} }}
}

// A publishCall is one call of publish.
type publishCall struct {
	*call
	force       bool
	remove, all bool
	net, ifName string // empty: any
}

func (c *publishCall) flags(f *flagSet) {
	c.declareAttachment(f)
	f.BoolVar(&c.force, "force", false, "publish also ports on which this host listens")
	f.BoolVar(&c.remove, "remove", false, "publish these no more")
	f.BoolVar(&c.all, "all", false, "with --remove: each of its ports, in place of PORT")
}

// declareAttachment declares the flags that select an attachment of the container.
func (c *publishCall) declareAttachment(f *flagSet) {
	f.name(&c.net, "net", "", "`NETWORK` the attachment to this one")
	f.name(&c.ifName, "ifname", "i", "`NAME` the attachment with this interface")
	f.outputs("`json` print the attachment as it is then, as JSON")
}

func (c *publishCall) do(ctx context.Context, operands []string) (int, error) {
	if c.remove {
		return c.removePorts(ctx, operands)
	}
	switch {
	case c.all:
		return 0, usage("publish: --all is for --remove")
	case len(operands) < 2:
		return 0, usage("publish: it takes a container's ID or name, and ports")
	}
	var ports []spec.Port
	for _, text := range operands[1:] {
		more, err := parsePublished(text)
		if err != nil {
			return 0, usage("publish: %q: %w", text, err)
		}
		ports = append(ports, more...)
	}
	a, err := c.attachment(operands[0], func(a *inventory.Entry) bool { return takesPorts(a.Entry) })
	if err != nil {
		return 0, err
	}
	if !takesPorts(a.Entry) {
		return 0, spec.Errorf(spec.CodeConfig, "network %s had no plugin for published ports at the add%s, then del and add", a.NetworkName, c.publishAdvice())
	}
	var added []spec.Port
	err = c.runner.Change(ctx, a.Attachment(), chain.Change{Capability: spec.CapPorts, Value: func(_ *chain.Entry, now json.RawMessage) (json.RawMessage, error) {
		mappings, err := readMappings(now)
		if err != nil {
			return nil, err
		}
		for _, p := range ports {
			if !slices.ContainsFunc(mappings, func(m mapping) bool { return m.Port == p }) {
				added, mappings = append(added, p), append(mappings, mappingOf(p))
			}
		}
		if c.force {
			return encodeMappings(mappings), nil
		}
		return encodeMappings(mappings), listening(added)
	}})
	if err != nil {
		return 0, err
	}
	return c.printPorts(a, added, "published")
}

// takesPorts reports whether a plugin of an attachment has the capability.
func takesPorts(e *chain.Entry) bool {
	l, err := e.List()
	return err == nil && declares(l, spec.CapPorts)
}

// attachment finds the attachment of a container: the only one that fits.
func (c *publishCall) attachment(name string, fits func(*inventory.Entry) bool) (*inventory.Entry, error) {
	c.about = name
	if err := c.prepare(); err != nil {
		return nil, err
	}
	v, err := c.readInventory()
	if err != nil {
		return nil, err
	}
	all, err := v.Find(name)
	if err != nil {
		return nil, err
	}
	named := slices.DeleteFunc(slices.Clone(all), func(a *inventory.Entry) bool {
		return c.net != "" && a.NetworkName != c.net || c.ifName != "" && a.IfName != c.ifName
	})
	fitting := slices.DeleteFunc(slices.Clone(named), func(a *inventory.Entry) bool { return !fits(a) })
	switch {
	case len(named) == 0:
		return nil, spec.Errorf(spec.CodeUnknown, "it has no such attachment, but: %s", attachmentsText(entriesIn(all)))
	case len(named) == 1:
		return named[0], nil // if it does not fit, the error concerns it
	case len(fitting) == 1:
		return fitting[0], nil
	case len(fitting) == 0:
		fitting = named
	}
	return nil, usage("%s: %s has several attachments: %s: name one with --net or -i", c.verb, name, attachmentsText(entriesIn(fitting)))
}

// printPorts prints the ports and what was done to them.
func (c *publishCall) printPorts(a *inventory.Entry, ports []spec.Port, done string) (int, error) {
	if c.output == outputJSON {
		v, err := c.readInventory()
		if err != nil {
			return 0, err
		}
		v.Entries = slices.DeleteFunc(v.Entries, func(now *inventory.Entry) bool { return now.Key != a.Key })
		return c.writeJSON(docOf(v, v.Entries))
	}
	if len(ports) == 0 {
		c.summarize("%s (%s): nothing to do", a.Name(), a.NetworkName)
		return exitOK, nil
	}
	c.summarize("%s (%s): %s %s", a.Name(), a.NetworkName, tty.Several(each(ports, spec.Port.Short)), done)
	return exitOK, nil
}

// An unpublishCall is one call of unpublish, of an earlier release.
type unpublishCall struct{ publishCall }

func (c *unpublishCall) flags(f *flagSet) {
	c.declareAttachment(f)
	f.BoolVar(&c.all, "all", false, "")
}

// removePorts takes published ports back.
func (c *publishCall) removePorts(ctx context.Context, operands []string) (int, error) {
	switch {
	case len(operands) == 0, len(operands) == 1 && !c.all:
		return 0, usage("%s: it takes a container's ID or name, and ports, or --all", c.verb)
	case c.force:
		return 0, usage("%s: --force is not for --remove", c.verb)
	case c.all && len(operands) > 1:
		return 0, usage("%s: unexpected argument %q: --all takes all ports back", c.verb, operands[1])
	}
	var ports []spec.Port
	for _, text := range operands[1:] {
		more, err := parsePorts(text)
		if errors.Is(err, errPorts) || err == nil && more[0].HostPort == 0 {
			err = errors.New("it must be [IP:]HOST[/tcp|udp|sctp], with a port from 1 to 65535, or a range of them")
		}
		if err != nil {
			return 0, usage("%s: %q: %w", c.verb, text, err)
		}
		ports = append(ports, more...)
	}
	isNamed := func(p spec.Port) bool {
		return slices.ContainsFunc(ports, func(named spec.Port) bool { return matches(named, p) })
	}
	fits := func(a *inventory.Entry) bool {
		if c.all {
			return len(a.Ports) > 0
		}
		return slices.ContainsFunc(a.Ports, isNamed)
	}
	a, err := c.attachment(operands[0], fits)
	if err != nil {
		return 0, err
	}
	var removed []spec.Port
	err = c.runner.Change(ctx, a.Attachment(), chain.Change{Capability: spec.CapPorts, Less: true, Value: func(_ *chain.Entry, now json.RawMessage) (json.RawMessage, error) {
		mappings, err := readMappings(now)
		if err != nil {
			return nil, err
		}
		for _, h := range ports {
			if !slices.ContainsFunc(mappings, func(m mapping) bool { return matches(h, m.Port) }) {
				text := h.Host()
				if h.ContainerPort != 0 {
					text = h.Short()
				}
				return nil, spec.Errorf(spec.CodeUnknown, "%s (%s) has no port %s: %s", a.Name(), a.NetworkName, text, whatIsThere(mappings))
			}
		}
		mappings = slices.DeleteFunc(mappings, func(m mapping) bool {
			gone := m.HostPort != 0 && (c.all || isNamed(m.Port))
			if gone {
				removed = append(removed, m.Port)
			}
			return gone
		})
		return encodeMappings(mappings), nil
	}})
	if err != nil {
		return 0, err
	}
	return c.printPorts(a, removed, "taken back")
}

// whatIsThere lists the ports of mappings.
func whatIsThere(mappings []mapping) string {
	if len(mappings) == 0 {
		return "it has none"
	}
	return "it has " + tty.Several(each(mappings, func(m mapping) string { return m.Short() }))
}

// A mapping is an entry of the capability portMappings, including members that a [spec.Port] does
// not have.
type mapping struct {
	spec.Port
	raw json.RawMessage
}

// mappingOf returns the mapping of a port.
func mappingOf(p spec.Port) mapping {
	raw, _ := json.Marshal(p) // numbers and strings
	return mapping{p, raw}
}

// readMappings reads the value of the capability; nil has none.
func readMappings(value json.RawMessage) (mappings []mapping, err error) {
	var raw []json.RawMessage
	if value != nil {
		err = spec.Unmarshal(spec.CapPorts, value, &raw)
	}
	for _, r := range raw {
		var p spec.Port
		err = errors.Join(err, spec.Unmarshal(spec.CapPorts, r, &p))
		mappings = append(mappings, mapping{p.Normal(), r})
	}
	return mappings, err
}

// encodeMappings returns the value of the capability, which may be an empty list.
func encodeMappings(mappings []mapping) json.RawMessage {
	value, _ := json.Marshal(each(mappings, func(m mapping) json.RawMessage { return m.raw })) // they were decoded before
	return value
}

// matches reports whether an operand of publish --remove, with zero for what it leaves open, is about a published port.
func matches(named, p spec.Port) bool {
	return p.HostPort == named.HostPort && p.Protocol == named.Protocol &&
		(!named.HostIP.IsValid() || p.HostIP == named.HostIP) && (named.ContainerPort == 0 || p.ContainerPort == named.ContainerPort)
}
