package main

import (
	"fmt"
	"strings"
)

// addCrowd attaches 20 pods to a node concurrently.
func (n *node) addCrowd(id func(i int) string) error {
	var list []int
	for i := range crowd {
		list = append(list, i)
	}
	err := parallel(list, func(i int) error {
		_, err := n.addPod(sameName(i), id(i))
		return err
	})
	if err != nil {
		return err
	}
	return n.wantLeases()
}

// sameName is the namespace of pod i on each node, and usually its container ID.
func sameName(i int) string { return fmt.Sprintf("pod%02d", i) }

// crowded attaches 20 pods to each node concurrently.
func (t *trial) crowded() error {
	return t.walk(
		stage{"20 pods more on each node, attached at the same time", func() error {
			return parallel(t.nodes, func(n *node) error { return n.addCrowd(sameName) })
		}},
		stage{"each reaches its partner on the other node, both ways, both families", t.partners},
		stage{"CHECK of all, and nothing on the nodes but theirs", func() error {
			return inTurn(t.checkAll, func() error { return parallel(t.nodes, (*node).wantOwned) })
		}},
	)
}

// partners checks that each pod reaches the one with the same name on the other node.
func (t *trial) partners() error {
	byName := func(n *node) map[string]*pod {
		m := map[string]*pod{}
		for _, p := range n.pods {
			m[p.name] = p
		}
		return m
	}
	return t.each(func(from, to *node, family int) error {
		there := byName(to)
		for _, p := range from.pods {
			if q := there[p.name]; q != nil {
				if err := wantSeen(p.netns(), q.at(family), p.addrs[family]); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// vanished ends five pods of each node without DEL, as after a crash of the runtime.
func (t *trial) vanished() error {
	return t.walk(
		stage{"5 pods of each node vanish without DEL: GC releases theirs and nothing else", func() error {
			return parallel(t.nodes, func(n *node) error {
				for i := range 5 {
					if err := n.pods[sameName(i)].vanish(); err != nil {
						return err
					}
				}
				// A new namespace with an old name is not the old one.
				if _, err := n.run("ip", "netns", "add", sameName(0)); err != nil {
					return err
				}
				if err := n.gc(); err != nil {
					return err
				}
				if _, err := n.run("ip", "netns", "del", sameName(0)); err != nil {
					return err
				}
				return n.wantOwned()
			})
		}},
		stage{"the others reach each other, ports are published, new pods get in", func() error {
			return inTurn(t.comesAndGoes(t.a), t.comesAndGoes(t.b), t.partners, t.checkAll, t.portIsOpen(t.a), t.portIsOpen(t.b))
		}},
	)
}

// end detaches all pods.
func (t *trial) end() error {
	return t.walk(stage{"all detached: no port, lease, state file, result or element is left", func() error {
		return parallel(t.nodes, func(n *node) error {
			var pods []*pod
			for _, p := range n.pods {
				pods = append(pods, p)
			}
			if err := parallel(pods, (*pod).detach); err != nil {
				return err
			}
			left, err := n.left()
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("%s: %s", n.name, strings.Join(left, ", "))
			}
			return err
		})
	}})
}
