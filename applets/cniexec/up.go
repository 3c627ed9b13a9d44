package cniexec

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/cniexec/attachfile"
	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/flock"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

func upVerb() *verb {
	return &verb{name: "up", group: "Run", operands: "FILE", summary: "make and attach the namespaces of a file", new: func(c *call) action { return &upCall{call: c} },
		text: `FILE is JSON, and "-" stdin; all but "network" may be left out:
  {"networks": [CONFIGURATION LIST, …],
   "namespaces": {"web": [{"network": "mynet", "ifname": "eth0",
     "ips": ["10.1.0.5"], "mac": "02:00:00:00:00:05",
     "ports": ["8080:80"]}]}}
Attachments that match the file are kept, and restored as by reload; others are
replaced, and those that are not in the file deleted. An address in the file
belongs to its link: another link that was given it gets a new one. Namespaces
are deleted only by down, or del --delete. What an interrupted up left, the next
one finishes.`,
		examples: []example{
			{"cni-exec up /etc/cni/netns/web.json", "also by cnibox-net@web.service, see dist/"},
			{"cni-exec enter web -- httpd -f", "a process in one of them"},
		},
	}
}

// An upCall is one call of up.
type upCall struct {
	*call
	force bool
	asked map[string]string // addresses and ports, each with the key of the link that asks for it
	doc   upDoc
}

type (
	// An upDoc is the document of up. Attachments that match the file are in the document of
	// reload.
	upDoc struct {
		Created  []string         `json:"created"` // paths of namespaces
		Deleted  []attachmentName `json:"deleted"` // not in the file, or different there
		Attached []attachedDoc    `json:"attached"`
		Restored []restoredDoc    `json:"restored"`
		findingsDoc
	}

	attachedDoc struct {
		attachmentName
		NetNS     string   `json:"netns"`
		Addresses []string `json:"addresses"`
	}
)

func (c *upCall) flags(f *flagSet) {
	f.BoolVar(&c.force, "force", false, "publish also ports on which this host listens")
}

// A wantedLink is an attachment in the file.
type wantedLink struct {
	sandbox.Network
	key      string // in the file
	asked    *asked
	existing *chain.Entry // attached as the file says; nil: not
}

// readFile reads the file of up and down, and names repeated keys.
func (c *call) readFile(operands []string) (*attachfile.File, error) {
	if len(operands) != 1 {
		return nil, usage("%s: it takes one FILE", c.verb)
	}
	if err := c.prepare(); err != nil {
		return nil, err
	}
	c.warnOnce() // until the end
	f, err := attachfile.Read(operands[0], c.Stdin)
	if err != nil {
		return nil, err
	}
	for _, again := range c.linter().Repeated(f.File, f.Doc) {
		c.runner.Warn("%s", again)
	}
	return f, nil
}

// lockFile excludes other calls of up and down.
func (c *call) lockFile(ctx context.Context) (unlock func(), err error) {
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

// do creates the namespaces of a file and attaches them. What exists already stays as it is. After
// an error it continues with the next namespace.
//
// After an interruption the next call finishes the work: a namespace gets its name when it is
// complete, and the cache has each ADD that was begun.
func (c *upCall) do(ctx context.Context, operands []string) (int, error) {
	f, err := c.readFile(operands)
	if err != nil {
		return 0, err
	}
	wanted, err := c.wanted(f)
	if err != nil {
		return 0, err
	}
	c.about = f.File
	if err := cmp.Or(sandbox.Privileged(), c.CheckLimits()); err != nil {
		return 0, err
	}
	unlock, err := c.lockFile(ctx)
	if err != nil {
		return 0, err
	}
	defer unlock()
	c.doc = upDoc{Created: []string{}, Deleted: []attachmentName{}, Attached: []attachedDoc{}}
	entries, err := c.entriesByContainer()
	if err != nil {
		return 0, err
	}
	// Detach from all namespaces first: an address may move from one to another.
	detach := func(name string) error { return c.detachUnwanted(ctx, name, wanted[name], entries) }
	restore := func(names []string, failed func(string, error)) { c.restoreExisting(ctx, names, wanted, failed) }
	attach := func(names []string, failed func(string, error)) { c.attachMissing(ctx, names, wanted, failed) }
	err = c.eachNamespace(ctx, f.Names(), eachName(ctx, detach), restore, attach)
	c.doc.Restored, c.doc.findingsDoc = notNull(c.restored), c.found()
	return exitOK, c.document(ctx, c.doc, err)
}

// A step is one of up or down, for several namespaces. It calls failed for each one with an error,
// once.
type step func(names []string, failed func(name string, err error))

// eachName is a step for one namespace after another.
func eachName(ctx context.Context, do func(name string) error) step {
	return func(names []string, failed func(string, error)) {
		for _, name := range names {
			if ctx.Err() != nil {
				return
			}
			if err := do(name); err != nil {
				failed(name, err)
			}
		}
	}
}

// eachNamespace runs one step after another, each for the namespaces of a file,
// without those for which a step has failed. The error has the code of the first error, and all
// others in its details; each is a finding.
func (c *call) eachNamespace(ctx context.Context, names []string, steps ...step) error {
	ignoreClosedPipe()
	var errs []error
	for _, do := range steps {
		failed := map[string]bool{}
		do(names, func(name string, err error) {
			failed[name] = true
			c.problem(target{RuntimeConf: chain.RuntimeConf{NetNS: filepath.Join(sandbox.NetNSDir, name)}}, c.verb, err)
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		})
		names = slices.DeleteFunc(names, func(name string) bool { return failed[name] })
		if ctx.Err() != nil {
			break
		}
	}
	switch {
	case len(errs) == 0 && ctx.Err() != nil:
		return context.Cause(ctx)
	case len(errs) < 2:
		return errors.Join(errs...)
	}
	return spec.AsError(errs[0]).WithDetails("%v", errors.Join(errs[1:]...))
}

// wanted loads the networks, and checks what the file asks of them, before any change.
func (c *upCall) wanted(f *attachfile.File) (map[string][]*wantedLink, error) {
	networks := make(map[string]*chain.List) // those of the file, and those looked up
	lists, err := f.Lists()
	for _, l := range lists {
		networks[l.Name] = l
		c.warnOf(l, true)
	}
	if err != nil {
		return nil, err
	}
	wanted := make(map[string][]*wantedLink)
	c.asked = make(map[string]string)
	c.configs = chain.NewDir(c.confDir)
	defer func() { c.configs = nil }()
	for _, name := range f.Names() {
		for i, link := range f.Namespaces[name] {
			key := attachfile.Key(name, i)
			w, err := c.want(name, link, networks)
			if err == nil {
				w.key = key
				err = w.unique(c.asked)
			}
			if err != nil {
				return nil, f.AtLink(key, err)
			}
			wanted[name] = append(wanted[name], w)
		}
	}
	return wanted, nil
}

// askedBy returns what a link asks for, in the form of add's flags.
func askedBy(l *attachfile.Link, force bool) (*asked, error) {
	a := &asked{force: force}
	var errs []error
	for _, ip := range l.IPs {
		a.ips = append(a.ips, askedFor{value: ip})
		errs = append(errs, about("ips", ip, checkIP(ip)))
	}
	if l.MAC != "" {
		a.macs = append(a.macs, askedFor{value: l.MAC})
		errs = append(errs, about("mac", l.MAC, checkMAC(l.MAC)))
	}
	for _, p := range l.Ports {
		errs = append(errs, about("ports", p, a.addPorts(p)))
	}
	return a, errors.Join(errs...)
}

// about adds the key and the value to an error; nil stays nil.
func about(key, value string, err error) error {
	if err == nil {
		return nil
	}
	return spec.Errorf(spec.CodeConfig, "%s: %q: %w", key, value, err)
}

// want returns what one link asks for, and of which network. Errors have code 7, or that of the network.
func (c *upCall) want(name string, link attachfile.Link, networks map[string]*chain.List) (*wantedLink, error) {
	path := filepath.Join(sandbox.NetNSDir, name)
	t := chain.RuntimeConf{ContainerID: chain.DerivedID(path), IfName: link.IfName, NetNS: path}
	asked, err := askedBy(&link, c.force)
	if err != nil {
		return nil, err
	}
	l := networks[link.Network]
	if l == nil {
		if l, err = c.lookup(link.Network); err != nil {
			return nil, err
		}
		networks[link.Network] = l
		c.warnOf(l, true)
	}
	if err = asked.canHonour(c.call, l); err == nil {
		t.Capabilities, err = asked.capabilities(nil)
	}
	if err != nil {
		return nil, err
	}
	t.Args, t.Capabilities = asked.arguments(&t, []*chain.List{l}, 0)
	return &wantedLink{Network: sandbox.Network{List: l, RuntimeConf: t}, asked: asked}, c.runner.Validate(l, t)
}

// onNetwork names an address of a network in messages.
func (w *wantedLink) onNetwork(a netip.Addr) string {
	return fmt.Sprintf("%s of network %s", a, w.List.Name)
}

// unique records the addresses and ports of a link. An address or port that another link has is an
// error.
func (w *wantedLink) unique(owners map[string]string) error {
	var all []string
	for _, ip := range w.asked.ips {
		text, _, _ := strings.Cut(ip.value, "/")
		address, _ := netip.ParseAddr(text) // checked
		all = append(all, w.onNetwork(address))
	}
	for _, m := range w.asked.macs {
		mac, _ := spec.ParseMAC(m.value) // checked
		all = append(all, fmt.Sprintf("MAC address %s of network %s", mac, w.List.Name))
	}
	for _, p := range w.asked.publish {
		text := fmt.Sprintf("host port %s %d", p.Protocol, p.HostPort)
		if p.HostIP.IsValid() {
			text += " " + p.HostIP.String()
		}
		all = append(all, text)
	}
	for _, what := range all {
		if other := owners[what]; other != "" {
			return spec.Errorf(spec.CodeConfig, "%s is also requested by %s", what, other)
		}
		owners[what] = w.key
	}
	return nil
}

// detachUnwanted creates a namespace, and detaches what the file does not have, or has otherwise.
func (c *upCall) detachUnwanted(ctx context.Context, name string, wanted []*wantedLink, all map[string][]*chain.Entry) error {
	path := filepath.Join(sandbox.NetNSDir, name)
	entries := all[chain.DerivedID(path)]
	created, left, err := c.createNetNS(ctx, path, func() ([]*chain.Entry, error) { return entries, nil })
	if err != nil {
		return err
	}
	if created {
		c.summarize("%s: created", name)
		c.doc.Created = append(c.doc.Created, path)
	}
	find := func(e *chain.Entry) int {
		return slices.IndexFunc(wanted, func(w *wantedLink) bool { return w.Attachment() == e.Attachment() })
	}
	for _, e := range left {
		if find(e) < 0 {
			c.detached(name, e)
		}
	}
	for _, e := range entries {
		if slices.Contains(left, e) {
			if _, err := c.runner.Cache.Lookup(e.Attachment()); errors.Is(err, os.ErrNotExist) {
				continue
			}
		}
		if i := find(e); i >= 0 {
			if wanted[i].is(e) && !c.holdsAsked(wanted[i], e) {
				wanted[i].existing = e
				continue
			}
			if e.Interrupted() || !e.Live() {
				continue // ADD deletes what is left of a wanted one
			}
		}
		if err := c.detachEntry(ctx, e); err != nil {
			return withNetNS(e.Attachment(), path, err)
		}
		c.detached(name, e)
	}
	return nil
}

// detached reports an attachment that was detached from a namespace.
func (c *upCall) detached(name string, e *chain.Entry) {
	c.summarize("%s: %s detached from %s", name, e.IfName, e.NetworkName)
	c.doc.Deleted = append(c.doc.Deleted, nameOf(e.Attachment()))
}

// holdsAsked reports whether an attachment has been given an address for which another link of the
// file asks.
func (c *upCall) holdsAsked(w *wantedLink, e *chain.Entry) bool {
	for _, ip := range e.BriefResult().IPs {
		if by := c.asked[w.onNetwork(ip.Address.Addr())]; by != "" && by != w.key {
			return true
		}
	}
	return false
}

// restoreExisting restores what the attachments that match the file have lost on the host. One that only DEL and ADD restore,
// as one whose interface is gone, is detached.
func (c *upCall) restoreExisting(ctx context.Context, names []string, wanted map[string][]*wantedLink, failed func(string, error)) {
	var existing []*chain.Entry
	links := map[spec.Attachment]*wantedLink{}
	for _, name := range names {
		for _, w := range wanted[name] {
			if w.existing != nil {
				existing = append(existing, w.existing)
				links[w.Attachment()] = w
			}
		}
	}
	var lost []*wantedLink
	title, remedies := chain.Titles(existing), c.remedies(nil)
	errs := map[string][]error{} // by container
	s := session.NewForMany()
	defer s.Close()
	nft.Rebuild(s)
	err := c.runner.Restore(ctx, existing, s, func(r *chain.Restored) {
		if len(r.External) == 0 && slices.ContainsFunc(r.Errs, func(err error) bool { return errors.Is(err, spec.ErrNeedsAdd) }) {
			lost = append(lost, links[r.Attachment()])
			return
		}
		c.restored = append(c.restored, restoredOf(r))
		if len(r.Did) > 0 {
			c.summarize("%s: %s", title(r.Entry), strings.Join(r.Did, ", "))
		}
		if r.Busy {
			r.Errs = append(r.Errs, spec.Errorf(spec.CodeTryAgain, "%s", r.Unchecked))
		}
		if err := errors.Join(r.Errs...); err != nil {
			j := &chain.Judgement{Entry: r.Entry, State: chain.StateFault, Err: err}
			err = &hint.Error{Err: fmt.Errorf("restore %s: %w", title(r.Entry), err), Hint: remedies.For(j, true).Advice()}
			errs[r.ContainerID] = append(errs[r.ContainerID], withNetNS(r.Attachment(), r.NetNSPath(), err))
		}
	})
	for _, w := range lost {
		name := filepath.Base(w.RuntimeConf.NetNS)
		if err := c.detachEntry(ctx, w.existing); err != nil {
			failed(name, withNetNS(w.Attachment(), w.RuntimeConf.NetNS, err))
			continue
		}
		c.detached(name, w.existing)
		w.existing = nil
	}
	for _, name := range names {
		id := chain.DerivedID(filepath.Join(sandbox.NetNSDir, name))
		if err := errors.Join(append(errs[id], err)...); err != nil {
			failed(name, err)
		}
	}
}

// attachMissing attaches what is missing.
func (c *upCall) attachMissing(ctx context.Context, names []string, wanted map[string][]*wantedLink, failed func(string, error)) {
	stopped := map[string]bool{}
	for _, w := range attachOrder(names, wanted) {
		name := filepath.Base(w.RuntimeConf.NetNS)
		switch {
		case ctx.Err() != nil:
			return
		case stopped[name]:
			continue
		}
		res, err := c.runner.Add(ctx, w.List, w.RuntimeConf)
		if err != nil {
			stopped[name] = true
			failed(name, withNetNS(w.Attachment(), w.RuntimeConf.NetNS, err))
			continue
		}
		addrs := []string{}
		for _, ip := range res.IPs {
			addrs = append(addrs, ip.Address.String())
		}
		c.summarize("%s", strings.TrimSpace(fmt.Sprintf("%s: %s attached to %s %s", name, w.RuntimeConf.IfName, w.List.Name, strings.Join(addrs, " "))))
		c.doc.Attached = append(c.doc.Attached, attachedDoc{nameOf(w.Attachment()), w.RuntimeConf.NetNS, addrs})
	}
}

// attachOrder returns the missing links in the order of their ADDs. In a namespace it is that of
// the file: of several default routes the first one counts. On a network a link that asks for an
// address comes before those that do not, which might get it; where both is impossible, the address
// counts.
func attachOrder(names []string, wanted map[string][]*wantedLink) (order []*wantedLink) {
	missing := map[string][]*wantedLink{} // by namespace
	asking := map[string]int{}            // those of them that ask for an address, by network
	for _, name := range names {
		for _, w := range wanted[name] {
			if w.existing != nil {
				continue
			}
			missing[name] = append(missing[name], w)
			if w.asksAddress() {
				asking[w.List.Name]++
			}
		}
	}
	take := func(name string, i int) {
		w := missing[name][i]
		missing[name] = slices.Delete(missing[name], i, i+1)
		if w.asksAddress() {
			asking[w.List.Name]--
		}
		order = append(order, w)
	}
	for more := true; more; {
		more = false
		for _, name := range names {
			for len(missing[name]) > 0 && (missing[name][0].asksAddress() || asking[missing[name][0].List.Name] == 0) {
				take(name, 0)
				more = true
			}
		}
		for _, name := range names {
			if i := slices.IndexFunc(missing[name], (*wantedLink).asksAddress); i >= 0 && !more {
				take(name, i)
				more = true
			}
		}
	}
	return order
}

// asksAddress reports whether the file has addresses of the link.
func (w *wantedLink) asksAddress() bool { return len(w.asked.ips) > 0 }

// is reports whether the entry of an attachment is alive and matches the link.
func (w *wantedLink) is(e *chain.Entry) bool {
	config, err := w.List.Effective()
	t := &w.RuntimeConf
	return err == nil && e.Live() && !e.Interrupted() && bytes.Equal(e.Config, config) && slices.Equal(e.Args, t.Args) &&
		maps.EqualFunc(e.CapabilityArgs, t.Capabilities, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })
}
