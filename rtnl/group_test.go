package rtnl_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
)

// All matching links are deleted in one change, and no others.
func TestKernelDelLinks(t *testing.T) {
	ns := kerneltest.NS(t)
	c := kerneltest.Dial(t, ns)
	defer func() { fault.Hook = nil }()
	for _, n := range []int{0, 1, 2, 40} {
		for i := range n {
			addPair(t, c, fmt.Sprintf("gone%d", i))
		}
		addPair(t, c, "stays")
		deletions := 0
		fault.Hook = func(what string) error {
			if strings.HasPrefix(what, "link delete") {
				deletions++
			}
			return nil
		}
		err := c.DelLinks(func(l *rtnl.Link) bool { return strings.HasPrefix(l.Name, "gone") }, nil)
		fault.Hook = nil
		if err != nil {
			t.Fatalf("%d links: %v", n, err)
		}
		if want := min(n, 1); deletions != want {
			t.Errorf("%d links: %d deletions, want %d", n, deletions, want)
		}
		if names := linkNames(t, c); names != "lo peerstays stays" && names != "lo stays peerstays" {
			t.Errorf("%d links: left are %s", n, names)
		}
		if err := c.DelLink("stays"); err != nil {
			t.Fatal(err)
		}
	}
}

// If the group cannot be deleted, the links are deleted one by one.
func TestKernelDelLinksOneByOne(t *testing.T) {
	c := kerneltest.Dial(t, kerneltest.NS(t))
	addPair(t, c, "gone0")
	addPair(t, c, "gone1")
	fault.Hook = func(what string) error {
		if what == "link delete group" {
			return errors.New("made to fail")
		}
		return nil
	}
	defer func() { fault.Hook = nil }()
	if err := c.DelLinks(func(l *rtnl.Link) bool { return strings.HasPrefix(l.Name, "gone") }, nil); err != nil {
		t.Fatal(err)
	}
	if names := linkNames(t, c); names != "lo" {
		t.Errorf("left are %s", names)
	}
}

// A link that cannot be deleted is reported with its index, and the others are deleted.
func TestKernelDelLinksFailed(t *testing.T) {
	c := kerneltest.Dial(t, kerneltest.NS(t))
	addPair(t, c, "gone0")
	addPair(t, c, "gone1")
	kept, err := c.Link("gone1")
	if err != nil {
		t.Fatal(err)
	}
	odd := errors.New("made to fail")
	fault.Hook = func(what string) error {
		if what == "link delete group" || what == rtnl.DropLink(kept.Index).String() {
			return odd
		}
		return nil
	}
	defer func() { fault.Hook = nil }()
	failed := map[uint32]error{}
	err = c.DelLinks(func(l *rtnl.Link) bool { return strings.HasPrefix(l.Name, "gone") }, func(index uint32, err error) { failed[index] = err })
	if err != nil || len(failed) != 1 || !errors.Is(failed[kept.Index], odd) {
		t.Errorf("got %v, and %v for gone1, #%d", err, failed, kept.Index)
	}
	if _, err := c.Link("gone0"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("gone0: %v", err)
	}
}

func addPair(t *testing.T, c *rtnl.Conn, name string) {
	t.Helper()
	if err := c.AddLink(rtnl.LinkSpec{Name: name, Peer: &rtnl.LinkSpec{Name: "peer" + name}}); err != nil {
		t.Fatal(err)
	}
}

func linkNames(t *testing.T, c *rtnl.Conn) string {
	t.Helper()
	links, err := c.Links()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Name)
	}
	return strings.Join(names, " ")
}
