package applettest

import (
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

// A Segment is a veth pair that carries packets: up0 on a host, where it can be a master, and up1 in a namespace that
// represents another machine on the segment.
type Segment struct {
	NS           *netns.NS // of up1
	Host, Remote *rtnl.Conn
	Up0, Up1     *rtnl.Link
}

// Segment adds up0 to the host, and writes $DIR/resolv.conf.
func (h *Host) Segment() Segment {
	h.Helper()
	h.NoError(os.WriteFile(filepath.Join(h.Dir, "resolv.conf"), []byte("nameserver 10.1.0.53\n"), 0o600))
	s := Segment{NS: kerneltest.NS(h.T)}
	s.Host, s.Remote = kerneltest.Dial(h.T, h.NS), kerneltest.Dial(h.T, s.NS)
	kerneltest.AddLink(h.T, h.NS, rtnl.LinkSpec{Name: "up0", Up: true, Peer: &rtnl.LinkSpec{Name: "up1", NS: s.NS}})
	kerneltest.Address(h.T, s.NS, "up1")
	kerneltest.WaitUp(h.T, h.NS, "up0")
	kerneltest.WaitUp(h.T, s.NS, "up1")
	s.Up0, s.Up1 = kerneltest.Link(h.T, s.Host, "up0"), kerneltest.Link(h.T, s.Remote, "up1")
	return s
}
