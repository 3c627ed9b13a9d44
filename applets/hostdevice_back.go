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
	if cont != nil {
		if err := rec.leave(op, cont); err != nil {
			return false, err
		}
	}
	dev, err := rec.onHost(op.Host)
	known := true
	if dev == nil && err == nil && cont == nil && rec.Kind == "" && op.Call.Verb == spec.Del {
		dev, known, err = rec.await(op.Host)
	}
	if dev == nil || err != nil {
		return known, err
	}
	if dev.Name != rec.Name {
		if err := rec.rename(op, dev, dir); errors.Is(err, os.ErrExist) {
			op.Warn("device %s is on the host as %s: its name is another link's; GC or DEL give it back when it is free", rec.Name, dev.Name)
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	ch := rtnl.LinkChange{Alias: &rec.Alias}
	if rec.MTU != 0 && rec.MTU != dev.MTU {
		ch.MTU = &rec.MTU
	}
	if addr, err := spec.ParseMAC(rec.MAC); err == nil && !bytes.Equal(addr, dev.MAC) {
		ch.MAC = addr
	}
	if rec.Up && !dev.Up {
		ch.Up = new(true)
	}
	return true, op.Host.SetLink(dev.Index, ch)
}

// onHost finds the device on the host by its alias, and a name that it can have there;
// nil: it is not there, or is as it was.
func (rec *deviceRecord) onHost(host *rtnl.Conn) (*rtnl.Link, error) {
	links, err := host.Links()
	if err != nil {
		return nil, err
	}
	for i := range links {
		if rec.returned(&links[i]) {
			return &links[i], nil
		}
	}
	return nil, nil
}

// returned tells the device on the host from other links.
func (rec *deviceRecord) returned(l *rtnl.Link) bool {
	return l.Alias == rec.Name && (l.Name == rec.Name || isReturned(l.Name, rec.IfName))
}

// await is onHost for a namespace that may just be ending. False: the device may still come.
func (rec *deviceRecord) await(host *rtnl.Conn) (*rtnl.Link, bool, error) {
	if l, err := host.Link(rec.Name); err == nil && l.Alias != rec.Name {
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
// it is devN for now.
func (rec *deviceRecord) leave(op *attach.Op, cont *rtnl.Conn) error {
	dev, err := rec.inside(cont)
	if dev == nil || err != nil {
		return err
	}
	home, err := op.Host.NS()
	if err != nil {
		return err
	}
	defer home.Close()
	if err := cont.SetLink(dev.Index, rtnl.LinkChange{Up: new(false), Alias: &rec.Name}); err != nil {
		return err
	}
	if err := cont.SetLink(dev.Index, rtnl.LinkChange{Name: &rec.Name}); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	for _, name := range []string{rec.Name, "dev" + strconv.Itoa(int(dev.Index)), "dev" + strconv.Itoa(int(rand.Uint32N(1e9)))} {
		if err = cont.SetLink(dev.Index, rtnl.LinkChange{NS: home, Name: &name}); !errors.Is(err, os.ErrExist) {
			break
		}
	}
	return err
}

// inside finds the device in the container by its alias, whatever its name is by now; one
// whose alias was taken away there, by its name and address. Nil: it is not there.
func (rec *deviceRecord) inside(cont *rtnl.Conn) (*rtnl.Link, error) {
	links, err := cont.Links()
	if err != nil {
		return nil, err
	}
	var likely *rtnl.Link
	for i := range links {
		switch l := &links[i]; {
		case l.Alias == rec.Name:
			return l, nil
		case l.Name == rec.IfName && l.Alias == "" && rec.MAC != "" && l.MAC.String() == rec.MAC:
			likely = l
		}
	}
	return likely, nil
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
		if rec.Name == taker.Alias && isReturned(name, rec.IfName) {
			free = op.Host.SetLink(taker.Index, rtnl.LinkChange{Name: &rec.Name}) == nil
		}
		return nil
	})
	return free
}
