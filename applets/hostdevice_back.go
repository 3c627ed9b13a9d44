//go:build !no_host_device

package applets

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"cnibox/applets/attach"
	"cnibox/rtnl"
	"cnibox/spec"
)

// returnTime bounds the wait for the kernel, which ends a namespace in its own time.
const returnTime = time.Second

// restore moves the device back to the host and makes it what it was. It may be in the
// container, on the host under another name, or gone, which is no error: then the kernel
// has deleted it with the namespace, or somebody has unplugged it. It is false if there is
// something left to do later: the name is a stranger's, or hardware has not come back yet.
func (rec *deviceRecord) restore(op *attach.Op, cont *rtnl.Conn, dir records) (bool, error) {
	dev, err := rec.leave(op, cont)
	if dev == nil && err == nil {
		dev, err = rec.search(op.Host, rec.returned)
	}
	known := true
	if dev == nil && err == nil && cont == nil && rec.Kind == "" && op.Call.Verb == spec.Del {
		dev, known, err = rec.await(op.Host)
	}
	if dev == nil || err != nil {
		return known, err
	}
	var ch rtnl.LinkChange
	if rec.MTU != 0 && rec.MTU != dev.MTU {
		ch.MTU = &rec.MTU
	}
	if addr, err := spec.ParseMAC(rec.MAC); err == nil && !bytes.Equal(addr, dev.MAC) {
		ch.MAC = addr
	}
	if dev.Name != rec.Name {
		op.Host.SetLink(dev.Index, ch) // its address tells it while it waits; a refusal comes again below
		if err := rec.rename(op, dev, dir); errors.Is(err, os.ErrExist) {
			op.Warn("device %s is on the host as %s: its name is another link's; GC or DEL give it back when it is free", rec.Name, dev.Name)
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	ch.Alias = &rec.Alias
	if rec.Up && !dev.Up {
		ch.Up = new(true)
	}
	return true, op.Host.SetLink(dev.Index, ch)
}

// search finds the device among the links of a namespace, of several that fit the one with
// its index; nil: it is not there.
func (rec *deviceRecord) search(c *rtnl.Conn, fits func(*rtnl.Link) bool) (found *rtnl.Link, err error) {
	links, err := c.Links()
	for i := range links {
		if l := &links[i]; fits(l) && (found == nil || l.Index == rec.Index) {
			found = l
		}
	}
	return found, err
}

// addressed compares the address, that of hardware by what it was made with too, which
// stays whatever is set.
func (rec *deviceRecord) addressed(l *rtnl.Link) bool {
	return l.Kind == rec.Kind && (l.MAC.String() == rec.MAC || rec.PermMAC != "" && l.PermMAC.String() == rec.PermMAC)
}

// returned tells the device from other links of the host: by its alias and a name that it
// can have there. As it was, it has no such alias.
func (rec *deviceRecord) returned(l *rtnl.Link) bool {
	return l.Alias == rec.Name && (l.Name == rec.Name || isReturned(l.Name, rec.IfName)) && rec.addressed(l)
}

// entered tells it from other links of its container, where it may have got another name
// and another address, or have lost its alias.
func (rec *deviceRecord) entered(l *rtnl.Link) bool {
	if l.Alias == "" {
		return rec.addressed(l) && (l.Index == rec.Index || l.Name == rec.IfName)
	}
	return l.Alias == rec.Name && (l.Index == rec.Index || rec.addressed(l))
}

// await waits for what a namespace that may just be ending gives back. False: it may still
// come.
func (rec *deviceRecord) await(host *rtnl.Conn) (*rtnl.Link, bool, error) {
	if l, err := host.Link(rec.Name); err == nil && l.Alias != rec.Name && rec.addressed(l) {
		return nil, true, nil // as it was
	}
	ctx, cancel := context.WithTimeout(context.Background(), returnTime)
	defer cancel()
	dev, err := host.WaitLink(ctx, rec.returned)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, false, nil
	}
	return dev, true, err
}

// leave moves the device out of the container. It gets its name there, so that on the host
// it never has another: what watches there would act on that. Where the name is taken
// it is devN for now. Nil: it is not there; a nil cont is no container.
func (rec *deviceRecord) leave(op *attach.Op, cont *rtnl.Conn) (*rtnl.Link, error) {
	if cont == nil {
		return nil, nil
	}
	dev, err := rec.search(cont, rec.entered)
	if dev == nil || err != nil {
		return nil, err
	}
	home, err := op.Host.NS()
	if err != nil {
		return nil, err
	}
	defer home.Close()
	if err := cont.SetLink(dev.Index, rtnl.LinkChange{Up: new(false), Alias: &rec.Name}); err != nil {
		return nil, err
	}
	if err := cont.SetLink(dev.Index, rtnl.LinkChange{Name: &rec.Name}); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	for _, name := range []string{rec.Name, "dev" + strconv.Itoa(int(dev.Index)), "dev" + strconv.Itoa(int(rand.Uint32N(1e9)))} {
		err = cont.SetLink(dev.Index, rtnl.LinkChange{NS: home, Name: &name})
		if err == nil {
			return op.Host.Link(name)
		}
		if !errors.Is(err, os.ErrExist) {
			break
		}
	}
	return nil, err
}

// rename gives a device on the host its name; os.ErrExist: a stranger has it.
func (rec *deviceRecord) rename(op *attach.Op, dev *rtnl.Link, dir records) error {
	if err := op.Host.SetLink(dev.Index, rtnl.LinkChange{Up: new(false)}); err != nil {
		return err
	}
	err := op.Host.SetLink(dev.Index, rtnl.LinkChange{Name: &rec.Name})
	if errors.Is(err, os.ErrExist) && freed(op, rec.Name, dir) {
		err = op.Host.SetLink(dev.Index, rtnl.LinkChange{Name: &rec.Name})
	}
	return err
}

// freed takes a name from a link that has it by mistake: a device on record that the
// kernel gave back under the name it had in its container. It gets its own.
func freed(op *attach.Op, name string, dir records) bool {
	taker, err := op.Host.Link(name)
	if err != nil || taker.Up || taker.Alias == "" || taker.Alias == name {
		return false
	}
	free := false
	eachDevice(dir, func(_ string, rec *deviceRecord) error {
		if rec.returned(taker) {
			free = op.Host.SetLink(taker.Index, rtnl.LinkChange{Name: &rec.Name}) == nil
		}
		return nil
	})
	return free
}
