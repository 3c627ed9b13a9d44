package chained_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/applets/frame"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/flock"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/spec/spectest"
)

// request returns a request for eth0 of container c1 at a path.
func request(t *testing.T, verb spec.Verb, path string) *spec.Request {
	t.Helper()
	r := spectest.Request(t, verb, `{}`, "")
	r.Call.NetNS = path
	r.Warn = t.Logf
	return r
}

// newOp returns an Op with what exists of the interface of a request.
func newOp(t *testing.T, r *spec.Request, dir record.Dir) *chained.Op {
	t.Helper()
	op := &chained.Op{Op: frame.New(t.Context(), r), Dir: dir}
	if err := op.OpenLink(0); err != nil {
		t.Fatal(err)
	}
	return op
}

// OpenLink finds the interface. If it or its namespace is missing, it sets neither and returns no error
// for DEL, and a code for other verbs. It creates nothing at the path.
func TestKernelOpen(t *testing.T) {
	v := applettest.NewVeth(t)
	none := applettest.NewHost(t).Container("c1")
	missing := applettest.MissingNetNS(t)
	type want struct {
		path     string
		ns, link bool
		code     int // of verbs other than DEL
	}
	tests := map[string]want{"complete": {v.Cont.Path, true, true, 0}, "no interface": {none.Path, true, false, spec.CodeConfig}}
	for name, path := range missing {
		tests["namespace "+name] = want{path, false, false, spec.CodeNetNS}
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := newOp(t, request(t, spec.Del, tt.path), "")
			if (c.NS != nil) != tt.ns || (c.Cont != nil) != tt.ns || (c.Link != nil) != tt.link {
				t.Errorf("DEL has %+v", c)
			}
			if tt.link && c.Link.Index != v.Eth0.Index {
				t.Errorf("DEL has link #%d, want #%d", c.Link.Index, v.Eth0.Index)
			}
			err := (&chained.Op{Op: frame.New(t.Context(), request(t, spec.Add, tt.path))}).OpenLink(spec.CodeConfig)
			if (err != nil) != (tt.code != 0) || err != nil && spec.AsError(err).Code != tt.code {
				t.Errorf("ADD: got %v, want code %d", err, tt.code)
			}
		})
	}
	if _, err := os.Lstat(missing["gone"]); !os.IsNotExist(err) {
		t.Errorf("at the path there is something now: %v", err)
	}
}

// Only its attachment reads a record, and undo restores the former one.
func TestKernelRecordUndo(t *testing.T) {
	v := applettest.NewVeth(t)
	dir := record.Dir(t.TempDir())
	a := spec.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}
	open := func() *chained.Op {
		r := request(t, spec.Del, v.Cont.Path)
		r.Attachment = a
		return newOp(t, r, dir)
	}
	other := spec.Attachment{Network: "net2", ContainerID: "c1", IfName: "eth0"}
	first := open()
	v.NoError(first.Record())
	was := dir.Head(a)
	if was == nil || was.Index != v.Eth0.Index || was.Parent != v.Host0.Index || dir.Head(other) != nil {
		t.Fatalf("got record %+v", was)
	}
	v.NoError(v.HostConn.DelLink("host0"))
	v.AddPair("host0", "eth0")
	second := open()
	v.NoError(second.Record())
	if now := dir.Head(a); now == nil || *now == *was {
		t.Errorf("got record %+v of another interface", now)
	}
	second.Failed(os.ErrInvalid)
	if now := dir.Head(a); now == nil || *now != *was {
		t.Errorf("after undo: got %+v, want %+v", now, was)
	}
	first.Failed(os.ErrInvalid)
	if now := dir.Head(a); now != nil {
		t.Errorf("after undo of the first: got %+v", now)
	}
}

// An interface belongs to the attachment whose record has it: not to another network, and not to
// that attachment if another namespace is at the path.
func TestKernelOwnsRecordedInterface(t *testing.T) {
	v, next := applettest.NewVeth(t), applettest.NewVeth(t)
	dir := record.Dir(t.TempDir())
	path := filepath.Join(t.TempDir(), "netns")
	owns := func(r *spec.Request, rec *record.Head) (yes bool) {
		t.Helper()
		verb := session.New()
		defer verb.Close()
		r.Call.Session = verb.For(0, "", nil)
		defer r.Call.Session.Close()
		v.NoError(v.NS.Do(func() error { // has the host-side veth
			op := &chained.Op{Op: frame.New(t.Context(), r), Dir: dir}
			err := op.OpenLink(0)
			if err == nil {
				yes, err = op.Owns(rec)
			}
			return err
		}))
		return yes
	}
	v.NoError(os.Symlink(v.Cont.Path, path))
	r := request(t, spec.Del, path)
	if owns(r, nil) {
		t.Error("an interface without record, label and prevResult is the attachment's")
	}
	v.NoError(newOp(t, r, dir).Record())
	rec := dir.Head(r.Attachment)
	if !owns(r, rec) {
		t.Error("the interface on record is not the attachment's")
	}
	other := request(t, spec.Del, path)
	other.Attachment.Network = "net2"
	if owns(other, nil) {
		t.Error("the interface is another network's as well")
	}
	v.NoError(os.Remove(path))
	v.NoError(os.Symlink(next.Cont.Path, path))
	if owns(r, rec) {
		t.Error("an interface in another namespace at the path is the attachment's")
	}
}

// Lock excludes a process that has opened the same namespace until Unlock. After the timeout the
// error has code 11.
func TestKernelLockExcludes(t *testing.T) {
	defer func(was time.Duration) { flock.Timeout = was }(flock.Timeout)
	flock.Timeout = 20 * time.Millisecond
	c := applettest.NewHost(t).Container("c1")
	one, two := newOp(t, request(t, spec.Del, c.Path), ""), newOp(t, request(t, spec.Del, kerneltest.NSPath(t, c.NS)), "")
	defer two.Unlock()
	if err := one.Lock(); err != nil {
		t.Fatal(err)
	}
	if err := two.Lock(); err == nil || spec.AsError(err).Code != spec.CodeTryAgain {
		t.Errorf("while it is locked: got %v, want code %d", err, spec.CodeTryAgain)
	}
	one.Unlock()
	if err := two.Lock(); err != nil {
		t.Errorf("after it is unlocked: %v", err)
	}
}
