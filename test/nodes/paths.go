package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// bulk is the size of a transfer in each direction, bulkTime its limit.
const (
	bulk     = 16 << 20
	bulkTime = 30 * time.Second
)

// traffic checks reachability and source addresses.
func (t *trial) traffic() error {
	return t.walk(
		stage{"pods of both nodes reach each other under their own addresses", t.podsReachEachOther},
		stage{"16 MiB there and back between pods, both ways, both families", func() error {
			return t.each(func(from, to *node, family int) error {
				s, err := connect(t.web[from].netns(), t.web[to].at(family))
				if err != nil {
					return err
				}
				defer s.Close()
				return s.exchange(bulk, bulkTime)
			})
		}},
		stage{"the world sees pods under their node's address", t.masqueraded},
		stage{"a node reaches its own pods and those of the other node", func() error {
			return t.each(func(from, to *node, family int) error {
				for _, p := range t.web {
					if err := wantSeen(from.netns(), p.at(family), netip.Addr{}); err != nil {
						return err
					}
				}
				e, err := from.env()
				if err != nil {
					return err
				}
				seen, err := seenFrom(from.netns(), t.web[to].at(family))
				if want := t.source(e, from, family); err == nil && !want.Contains(seen) {
					err = fmt.Errorf("the pod sees %s, want one of %s", seen, want)
				}
				return err
			})
		}},
		stage{"the world has no way to a pod's own address", func() error {
			for family := range families {
				if s, err := connect(pinned(outside), t.web[t.a].at(family)); err == nil {
					s.Close()
					return fmt.Errorf("%s is reached from outside", t.web[t.a].at(family))
				}
			}
			return nil
		}},
	)
}

func (t *trial) podsReachEachOther() error {
	return t.each(func(from, to *node, family int) error {
		return wantSeen(t.web[from].netns(), t.web[to].at(family), t.web[from].addrs[family])
	})
}

func (t *trial) masqueraded() error {
	return t.each(func(from, _ *node, family int) error {
		return wantSeen(t.web[from].netns(), netip.AddrPortFrom(outsideAddrs[family], port), from.addrs[family])
	})
}

// sizes checks MTUs, and packets of that size.
func (t *trial) sizes() error {
	return t.walk(
		stage{fmt.Sprintf("pods have the MTU of subnet.env, %d", t.mtu), func() error {
			for _, p := range t.web {
				got, err := p.mtu()
				if err == nil && got != t.mtu {
					err = fmt.Errorf("eth0 of %s has %d", p.n.name, got)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}},
		stage{fmt.Sprintf("unfragmented packets of %d (IPv4) and %d bytes (IPv6) cross, none of a byte more", t.path[0], t.path[1]), func() error {
			return t.each(func(from, to *node, family int) error {
				ns, at := t.web[from].netns(), t.web[to].at(family)
				if err := datagram(ns, at, t.mtu+1); !errors.Is(err, unix.EMSGSIZE) {
					return fmt.Errorf("a packet bigger than the link: %w", err)
				}
				// The pod gets an ICMP error for a packet that the node cannot forward.
				err := eventually(func() error {
					if err := datagram(ns, at, t.path[family]+1); !errors.Is(err, unix.EMSGSIZE) {
						return fmt.Errorf("a packet bigger than the path: %w", err)
					}
					return nil
				})
				if err != nil {
					return err
				}
				return datagram(ns, at, t.path[family])
			})
		}},
	)
}

const hostPort = 8080

// published is the address at which a node publishes its first pod.
func published(n *node, family int) netip.AddrPort {
	return netip.AddrPortFrom(n.addrs[family], hostPort)
}

// ports checks the published port of each node from everywhere.
func (t *trial) ports() error {
	from := func(client func(to, other *node, family int) (namespace, netip.Addr)) func() error {
		return func() error {
			return t.each(func(other, to *node, family int) error {
				ns, want := client(to, other, family)
				return wantSeen(ns, published(to, family), want)
			})
		}
	}
	return t.walk(
		stage{"port 8080 of a node from outside, with the client's address", from(func(_, _ *node, family int) (namespace, netip.Addr) {
			return pinned(outside), outsideAddrs[family]
		})},
		stage{"port 8080 by UDP from outside", func() error {
			return t.each(func(_, to *node, family int) error {
				return eventually(func() error { return datagram(pinned(outside), published(to, family), 100) })
			})
		}},
		stage{"port 8080 from a pod of the other node, as that node", from(func(_, other *node, family int) (namespace, netip.Addr) {
			return t.web[other].netns(), other.addrs[family]
		})},
		stage{"port 8080 from the other node", from(func(_, other *node, family int) (namespace, netip.Addr) {
			return other.netns(), other.addrs[family]
		})},
		stage{"port 8080 from the node itself and from the pod itself", func() error {
			return t.each(func(_, to *node, family int) error {
				for _, ns := range []namespace{to.netns(), t.web[to].netns()} {
					if err := wantSeen(ns, published(to, family), netip.Addr{}); err != nil {
						return err
					}
				}
				return nil
			})
		}},
		stage{"port 8080 of 127.0.0.1 on the node", func() error {
			for _, n := range t.nodes {
				if err := wantSeen(n.netns(), netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), hostPort), netip.Addr{}); err != nil {
					return err
				}
			}
			return nil
		}},
	)
}

// delegateMasquerades runs flanneld without --ip-masq: then the flannel plugin makes its delegate
// masquerade packets that leave the node's subnet, as the reference does.
func (t *trial) delegateMasquerades() error {
	return t.walk(
		stage{"flanneld without --ip-masq: the delegate masquerades, the world sees nodes", t.masqueraded},
		stage{"and so do pods of the other node, as the delegate knows its node's subnet only", func() error {
			return t.each(func(from, to *node, family int) error {
				return wantSeen(t.web[from].netns(), t.web[to].at(family), from.addrs[family])
			})
		}},
	)
}
