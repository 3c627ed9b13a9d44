// Package netns is spec.Call's namespace.
package netns

import (
	"cnibox/internal/netns"
	"cnibox/spec"
)

func Open(c spec.Call) (*netns.NS, error)               { return c.OpenNS() }
func OpenIfThere(c spec.Call) (*netns.NS, error)        { return c.OpenNSIfThere() }
func Host(c spec.Call) *netns.NS                        { return c.HostNS() }
func At(_ spec.Call, ns *netns.NS, sandbox string) bool { return ns.At(sandbox) }
