package applets_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cnibox/internal/fault"
	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

// A wire is a host and a container with a pair of links between them: host0 with
// 10.9.0.1 and fd09::1, and eth0 with 10.9.0.2 and fd09::2, all up.
type wire struct {
	*metaBox
	h, c *rtnl.Conn // in the host's and in the container's namespace
	veth *rtnl.Link // host0
	eth  *rtnl.Link
}

func newWire(t *testing.T) *wire {
	t.Helper()
	w := &wire{metaBox: newMetaBox(t)}
	kerneltest.LoUp(t, w.cont)
	w.h, w.c = kerneltest.Dial(t, w.host), kerneltest.Dial(t, w.cont)
	w.veth, w.eth = w.pair("host0", "eth0", "10.9.0.1/24", "fd09::1/64", "10.9.0.2/24", "fd09::2/64")
	return w
}

// pair makes a pair of links, and gives the first two addresses to the host's end.
func (w *wire) pair(host, cont string, addrs ...string) (*rtnl.Link, *rtnl.Link) {
	w.t.Helper()
	h, err := w.h.CreateLink(rtnl.LinkSpec{Name: host, Up: true, Peer: &rtnl.LinkSpec{Name: cont, NS: w.cont}})
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := w.c.Link(cont)
	if err != nil {
		w.t.Fatal(err)
	}
	w.ok(w.c.SetLink(c.Index, rtnl.LinkChange{Up: new(true)}))
	// The kernel gives one by itself, and a route with it, but in its own time.
	w.ok(w.c.AddAddr(c.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("fe80::9/64"), NoDAD: true}))
	for i, a := range addrs {
		conn, l := w.h, h
		if i > 1 {
			conn, l = w.c, c
		}
		w.ok(conn.AddAddr(l.Index, rtnl.Addr{Prefix: netip.MustParsePrefix(a), NoDAD: true}))
	}
	return h, c
}

func (w *wire) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// refused wants an error of the code with the text in it.
func (w *wire) refused(err error, code int, text string) {
	w.t.Helper()
	if err == nil || spec.AsError(err).Code != code || !strings.Contains(err.Error(), text) {
		w.t.Errorf("got %v, want code %d and %q", err, code, text)
	}
}

// prev is a result with eth0 and both its addresses; routes is a list in JSON.
func (w *wire) prev(routes string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"host0"},{"name":"eth0","sandbox":%q}],"routes":%s,
		"ips":[{"address":"10.9.0.2/24","gateway":"10.9.0.1","interface":1},
			{"address":"fd09::2/64","gateway":"fd09::1","interface":1}]}`, w.path, routes)
}

// state is all that a verb may change.
func (w *wire) state() string {
	w.t.Helper()
	return kerneltest.Snapshot(w.t, w.host) + "--\n" + kerneltest.Snapshot(w.t, w.cont)
}

// rollback makes the nth change of ADD fail, for each n: after it all is as before,
// but where the ADD can do without it, as needless says.
func (w *wire) rollback(plugin, keys, prev string, needless func(what string) bool) {
	w.t.Helper()
	defer func() { fault.Hook = nil }()
	for nth := 1; ; nth++ {
		before, calls, failed := w.state(), 0, ""
		fault.Hook = func(what string) error {
			if calls++; calls != nth {
				return nil
			}
			failed = what
			return errors.New("made to fail")
		}
		_, err := w.run(plugin, spec.Add, w.call(), keys, prev)
		fault.Hook = nil
		if err == nil && (failed == "" || needless(failed)) {
			w.must(w.run(plugin, spec.Del, w.call(), keys, prev))
			if failed == "" {
				if nth < 3 {
					w.t.Errorf("ADD made %d changes only", nth-1)
				}
				return
			}
			continue
		}
		if err == nil {
			w.t.Fatalf("change %d, %q: ADD succeeds without it", nth, failed)
		}
		if after := w.state(); after != before {
			w.t.Fatalf("change %d, %q, answered by %v, left behind:\n%s", nth, failed, err, kerneltest.Diff(before, after))
		}
	}
}

// goneNetNS are the ways in which a namespace can be missing at DEL.
func goneNetNS(t *testing.T) map[string]string {
	t.Helper()
	stale := filepath.Join(t.TempDir(), "stale")
	if err := os.WriteFile(stale, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"empty": "", "gone": filepath.Join(t.TempDir(), "nothing"), "stale file": stale}
}
