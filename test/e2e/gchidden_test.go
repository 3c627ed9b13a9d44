package e2e

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

// holders are what keeps a namespace alive whose path is gone; each returns what ends that.
var holders = map[string]func(t *testing.T, c applettest.Container) (end func()){
	"a socket": func(t *testing.T, c applettest.Container) func() {
		conn := kerneltest.Dial(t, c.NS)
		return func() { conn.Close() }
	},
	"a mount in another mount namespace": func(t *testing.T, c applettest.Container) func() {
		file, sleep := filepath.Join(t.TempDir(), "ns"), exec.Command("sleep", "1000")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		err := netns.OnDiscardedThread(func() error {
			return cmp.Or(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""), c.NS.Bind(file), sleep.Start())
		})
		if err != nil {
			t.Fatal(err)
		}
		end := func() { sleep.Process.Kill(); sleep.Wait() }
		t.Cleanup(end)
		return end
	},
	"a thread": func(t *testing.T, c applettest.Container) func() {
		in, leave := make(chan error), make(chan bool)
		go netns.OnDiscardedThread(func() error {
			in <- c.NS.Enter()
			<-leave
			return nil
		})
		if err := <-in; err != nil {
			t.Fatal(err)
		}
		return func() { close(leave) }
	},
}

// gc keeps an attachment without a link on the host as long as its namespace exists, with
// and without its entry, and deletes it then.
func TestKernelGCHidden(t *testing.T) {
	fixtureOf("macvlan").NeedChain(t)
	if kerneltest.OneUser() {
		t.Skip("SKIPPED: namespaces of other users, which may have the addresses, cannot be looked into from a user namespace")
	}
	for what, hold := range holders {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := &reloading{world: newWorld(t)}
			r.write("net.d/demo.conflist", `{"cniVersion":"1.1.0","name":"demo","plugins":[{"type":"macvlan","master":"up0",
				"ipam":{"type":"host-local","subnet":"10.1.0.0/24","dataDir":"$DIR/leases"}}]}`)
			kerneltest.AddLink(t, r.NS, rtnl.LinkSpec{Name: "up0", Kind: rtnl.Bridge{}, Up: true})
			c := r.Container("one")
			r.add(c)
			end := hold(t, c)
			if err := errors.Join(netns.Unbind(c.Path), os.Remove(c.Path), c.NS.Close()); err != nil {
				t.Fatal(err)
			}
			leased := func() bool {
				_, err := os.Stat(r.Path("leases/demo/10.1.0.2"))
				return err == nil
			}
			gc := func() string {
				a := r.exec(nil, "gc", "demo")
				r.must("gc", a)
				return a.stderr
			}
			if out := r.exec(nil, "ls").stdout; !strings.Contains(out, "unknown: no namespace "+c.Path+", but ") {
				t.Errorf("ls prints %s", out)
			}
			if out := gc(); !leased() || !strings.Contains(out, "is not its network namespace any more, but there is its link eth0 in ") {
				t.Errorf("with the entry: leased %t: %s", leased(), out)
			}
			if err := os.RemoveAll(r.Path("cni/results")); err != nil {
				t.Fatal(err)
			}
			if out := gc(); !leased() || !strings.Contains(out, "has no entry of it, but there is its link eth0 in ") {
				t.Errorf("without the entry: leased %t: %s", leased(), out)
			}
			end()
			if hidden, err := netns.Each(func(string, *netns.NS) error { return nil }); err != nil || hidden != "" {
				t.Skipf("SKIPPED: %s %v", hidden, err)
			}
			kerneltest.Until(t, "the end of the namespace", func() bool { gc(); return !leased() })
		})
	}
}
