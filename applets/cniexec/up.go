package cniexec

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/applets/record"
	"cnibox/chain"
	"cnibox/internal/disk"
	"cnibox/internal/flock"
	"cnibox/spec"
)

// A stateFile is what up and down read: named namespaces, and what they are attached to.
type stateFile struct {
	Networks   []json.RawMessage        `json:"networks"` // configuration lists, beside those of --conf-dir
	Namespaces map[string][]stateOfLink `json:"namespaces"`
}

// A stateOfLink is one attachment of a namespace. All but the network may be left out.
type stateOfLink struct {
	Network string   `json:"network"`
	IfName  string   `json:"ifname"` // empty: eth0, eth1 and so on, by the position in the list
	IPs     []string `json:"ips"`    // as --ip has them
	MAC     string   `json:"mac"`
	Ports   []string `json:"ports"` // as --publish has them
}

// A wantedLink is an attachment that a file wants.
type wantedLink struct {
	*call // with the flags and the target of this one
	list  *chain.List
}

// readState reads and checks a file; nothing else is looked at. Errors have code 7.
func readState(file string) (*stateFile, error) {
	b, err := disk.Read(file, 0, record.MaxSize)
	if err != nil {
		return nil, spec.Errorf(spec.CodeConfig, "%w", err)
	}
	s := new(stateFile)
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	err = dec.Decode(s)
	if err == nil && dec.More() {
		err = errors.New("there is more than one JSON object")
	}
	if err == nil && s.Namespaces == nil {
		err = errors.New(`"namespaces" is missing: an object with a list of {"network": NAME} for each name`)
	}
	if err != nil {
		return nil, spec.Errorf(spec.CodeConfig, "%s: %s", file, strings.TrimPrefix(err.Error(), "json: "))
	}
	for name, links := range s.Namespaces {
		if err := checkNetNSName(name); err != nil {
			return nil, spec.Errorf(spec.CodeConfig, "%s: namespaces: %w", file, err)
		}
		if err := nameLinks(links); err != nil {
			return nil, spec.Errorf(spec.CodeConfig, "%s: namespaces.%s%w", file, name, err)
		}
	}
	return s, nil
}

// nameLinks gives the links of a namespace without a name their names, and checks them. The error
// begins with the index of the link.
func nameLinks(links []stateOfLink) error {
	used := make(map[string]bool)
	for i := range links {
		l := &links[i]
		l.IfName = cmp.Or(l.IfName, nthName("eth0", i))
		switch err := spec.CheckIfName(l.IfName); {
		case l.Network == "":
			return fmt.Errorf(`[%d]: "network" is missing`, i)
		case err != nil || used[l.IfName]:
			return fmt.Errorf("[%d]: interface %q is used twice, or is no name of one", i, l.IfName)
		}
		used[l.IfName] = true
	}
	return nil
}

// stateOperand reads the operand of up and down, and the file.
func (c *call) stateOperand(operands []string) (*stateFile, error) {
	if len(operands) != 1 {
		return nil, usage("%s: it takes one FILE", c.verb)
	}
	if err := c.prepare(); err != nil {
		return nil, err
	}
	c.about = operands[0]
	return readState(operands[0])
}

// lockState excludes other calls of up and down.
func (c *call) lockState(ctx context.Context) (unlock func(), err error) {
	dir := filepath.Join(c.runner.Cache.Dir, "cnibox", "locks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, spec.Errorf(spec.CodeIO, "%w", err)
	}
	unlock, err = flock.Lock(ctx, filepath.Join(dir, "up"), 0o600, unix.LOCK_EX)
	if err != nil {
		return nil, spec.Errorf(spec.CodeTryAgain, "another up or down runs: %w", err)
	}
	return unlock, nil
}

// up makes the namespaces of a file and attaches them; what is there already stays as it is. It
// goes on with the next namespace after an error.
//
// Whatever interrupts it, the next one finishes the work: a namespace gets its name when it is
// complete, and an ADD that was begun is in the cache.
func (c *call) up(ctx context.Context, operands []string) (int, error) {
	s, err := c.stateOperand(operands)
	if err != nil {
		return 0, err
	}
	wanted, err := c.wanted(s, operands[0])
	if err != nil {
		return 0, err
	}
	if err := cmp.Or(privileged(), c.Ready()); err != nil {
		return 0, err
	}
	unlock, err := c.lockState(ctx)
	if err != nil {
		return 0, err
	}
	defer unlock()
	return exitOK, eachNamespace(ctx, s, func(name string) error { return c.upOne(ctx, name, wanted[name]) })
}

// eachNamespace calls do for the namespaces of a file, in the order of their names. The error has
// the code of the first one, and all others in its details.
func eachNamespace(ctx context.Context, s *stateFile, do func(name string) error) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(s.Namespaces)) {
		if err := do(name); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	if len(errs) < 2 {
		return errors.Join(errs...)
	}
	return spec.AsError(errs[0]).WithDetails("%v", errors.Join(errs[1:]...))
}

// wanted loads the networks, and checks what is asked of them, before anything is made.
func (c *call) wanted(s *stateFile, file string) (map[string][]*wantedLink, error) {
	own := make(map[string]*chain.List) // and those that were looked up
	for i, doc := range s.Networks {
		l, err := chain.Parse(doc)
		if err != nil {
			return nil, fmt.Errorf("%s: networks[%d]: %w", file, i, err)
		}
		if own[l.Name] != nil || len(l.Plugins) == 0 {
			return nil, spec.Errorf(spec.CodeConfig, "%s: networks[%d]: %q is there twice, or has no plugins", file, i, l.Name)
		}
		l.File = file
		own[l.Name] = l
	}
	wanted := make(map[string][]*wantedLink)
	for _, name := range slices.Sorted(maps.Keys(s.Namespaces)) {
		wanted[name] = nil
		for i, link := range s.Namespaces[name] {
			w, err := c.want(name, link, own)
			if err != nil {
				return nil, fmt.Errorf("%s: namespaces.%s[%d]: %w", file, name, i, err)
			}
			wanted[name] = append(wanted[name], w)
		}
	}
	return wanted, nil
}

// want makes the call that attaches one link. Errors have code 7, or that of the network.
func (c *call) want(name string, link stateOfLink, own map[string]*chain.List) (*wantedLink, error) {
	path := filepath.Join(netnsDir, name)
	f, line, one := *c.flags, *c.commandLine, *c
	line.flags, one.commandLine, one.network = &f, &line, link.Network
	f.ips, f.macs, f.publish = askedIPs{}, askedMACs{}, nil
	one.target = chain.Target{ContainerID: derivedID(path), IfName: link.IfName, NetNS: path}
	var errs []error
	for _, ip := range link.IPs {
		errs = append(errs, about("ips", ip, f.ips.Set(ip)))
	}
	if link.MAC != "" {
		errs = append(errs, about("mac", link.MAC, f.macs.Set(link.MAC)))
	}
	for _, p := range link.Ports {
		errs = append(errs, about("ports", p, f.publish.Set(p)))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	l := own[link.Network]
	if l == nil {
		var err error
		if l, err = one.lookup(link.Network); err != nil {
			return nil, err
		}
		own[link.Network] = l
	}
	err := one.canHonour(l)
	if err == nil {
		one.target.Capabilities, err = one.flags.capabilities("")
	}
	if err != nil {
		return nil, err
	}
	one.target.Args, one.target.Capabilities = one.arguments([]*chain.List{l}, 0)
	return &wantedLink{&one, l}, nil
}

// about names the key and the value of an error; nil stays nil.
func about(key, value string, err error) error {
	if err == nil {
		return nil
	}
	return spec.Errorf(spec.CodeConfig, "%s: %q: %w", key, value, err)
}

// upOne is up for one namespace: what the file does not want any more is deleted first, since it
// may be in the way.
func (c *call) upOne(ctx context.Context, name string, wanted []*wantedLink) error {
	path := filepath.Join(netnsDir, name)
	created, left, err := c.createNetNS(ctx, path, derivedID(path))
	if err != nil {
		return err
	}
	if created {
		c.done("%s: created", name)
	}
	wants := func(a spec.Attachment) bool {
		return slices.ContainsFunc(wanted, func(w *wantedLink) bool { return w.attachment() == a })
	}
	for _, e := range left {
		if a := e.Attachment(); !wants(a) {
			c.done("%s: %s detached from %s", name, a.IfName, a.Network)
		}
	}
	entries, err := c.entriesOf(derivedID(path))
	if err != nil {
		return err
	}
	there := make(map[spec.Attachment]bool)
	for _, e := range entries {
		a := e.Attachment()
		there[a] = slices.ContainsFunc(wanted, func(w *wantedLink) bool { return w.attachment() == a && w.is(e) })
		if there[a] || wants(a) && (e.Interrupted() || !e.Live()) {
			continue // what is left of one that is wanted, ADD deletes
		}
		if err := c.detachEntry(ctx, e); err != nil {
			return err
		}
		c.done("%s: %s detached from %s", name, a.IfName, a.Network)
	}
	for _, w := range wanted {
		if there[w.attachment()] {
			continue
		}
		res, err := w.runner.Add(ctx, w.list, w.target)
		if err != nil {
			return err
		}
		var addrs []string
		for _, ip := range res.IPs {
			addrs = append(addrs, ip.Address.String())
		}
		c.done("%s", strings.TrimSpace(fmt.Sprintf("%s: %s attached to %s %s", name, w.target.IfName, w.list.Name, strings.Join(addrs, " "))))
	}
	return nil
}

// attachment returns the names of the link's attachment.
func (w *wantedLink) attachment() spec.Attachment {
	return spec.Attachment{Network: w.list.Name, ContainerID: w.target.ContainerID, IfName: w.target.IfName}
}

// is reports whether an entry of the link's attachment is alive, and as it is wanted.
func (w *wantedLink) is(e *chain.Entry) bool {
	config, err := w.list.Effective()
	t := &w.target
	return err == nil && e.Live() && !e.Interrupted() && bytes.Equal(e.Config, config) && slices.Equal(e.Args, t.Args) &&
		maps.EqualFunc(e.CapabilityArgs, t.Capabilities, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })
}

// done prints what was changed.
func (c *call) done(format string, args ...any) { fmt.Fprintf(c.Stdout, format+"\n", args...) }

// entriesOf returns the attachments of a container.
func (c *call) entriesOf(containerID string) (of []*chain.Entry, err error) {
	entries, _, err := c.runner.Cache.List()
	for _, e := range entries {
		if e.ContainerID == containerID {
			of = append(of, e)
		}
	}
	return of, err
}

// detachEntry deletes an attachment with the configuration and the arguments of its ADD.
func (c *call) detachEntry(ctx context.Context, e *chain.Entry) error {
	l, err := e.List()
	if err != nil {
		if l, err = c.lookup(e.NetworkName); err != nil {
			return err
		}
	}
	return c.runner.Del(ctx, l, chain.Target{ContainerID: e.ContainerID, IfName: e.IfName})
}

// down detaches and deletes the namespaces of a file, with what add has attached to them, and
// goes on after errors. That nothing is there is no error.
func (c *call) down(ctx context.Context, operands []string) (int, error) {
	s, err := c.stateOperand(operands)
	if err != nil {
		return 0, err
	}
	unlock, err := c.lockState(ctx)
	if err != nil {
		return 0, err
	}
	defer unlock()
	c.runner.KeepGoing = true
	return exitOK, eachNamespace(ctx, s, func(name string) error { return c.downOne(ctx, name) })
}

// downOne is down for one namespace.
func (c *call) downOne(ctx context.Context, name string) error {
	path := filepath.Join(netnsDir, name)
	entries, err := c.entriesOf(derivedID(path))
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range slices.Backward(entries) {
		err := c.detachEntry(ctx, e)
		if err == nil {
			c.done("%s: %s detached from %s", name, e.IfName, e.NetworkName)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err // the namespace is needed for another try
	}
	c.target.NetNS = path
	_, missing := os.Lstat(path)
	err = c.deleteUnused(ctx)
	if _, still := os.Lstat(path); err == nil && missing == nil && still != nil {
		c.done("%s: deleted", name)
	}
	return err
}
