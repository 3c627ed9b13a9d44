package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// streams are open connections between the first pods, in each direction and family.
type streams []*stream

func (t *trial) streams() (open streams, err error) {
	err = t.each(func(from, to *node, family int) error {
		s, err := connect(t.web[from].netns(), t.web[to].at(family))
		if err == nil {
			open = append(open, s)
		}
		return err
	})
	return open, err
}

// alive checks that all streams carry data.
func (open streams) alive() error {
	return parallel(open, func(s *stream) error { return s.exchange(1<<16, bulkTime) })
}

func (open streams) close() {
	for _, s := range open {
		s.Close()
	}
}

// comesAndGoes attaches a pod, checks that it reaches the other node, and detaches it.
func (t *trial) comesAndGoes(n *node) func() error {
	return func() error {
		p, err := n.addPod("guest", "guest")
		if err != nil {
			return err
		}
		for family := range families {
			if err := wantSeen(p.netns(), t.web[t.other(n)].at(family), p.addrs[family]); err != nil {
				return err
			}
		}
		return p.detach()
	}
}

// portIsOpen checks that the world reaches the published port of a node.
func (t *trial) portIsOpen(n *node) func() error {
	return func() error {
		for family, addr := range outsideAddrs {
			if err := wantSeen(pinned(outside), published(n, family), addr); err != nil {
				return err
			}
		}
		return nil
	}
}

// sameEnv checks that subnet.env has not changed.
func (n *node) sameEnv(before subnetEnv) func() error {
	return func() error {
		after, err := n.env()
		if err == nil && fmt.Sprint(before) != fmt.Sprint(after) {
			err = fmt.Errorf("%s: subnet.env is %v, before %v", n.name, after, before)
		}
		return err
	}
}

// waitRewritten calls do and waits until flanneld has rewritten subnet.env.
func (n *node) waitRewritten(do func() error) error {
	before, err := os.Stat(n.root(subnetFile))
	if err == nil {
		err = do()
	}
	if err != nil {
		return err
	}
	return eventually(func() error {
		if err := n.flanneld.ended(); err != nil {
			return err
		}
		after, err := os.Stat(n.root(subnetFile))
		if err == nil && os.SameFile(before, after) && before.ModTime().Equal(after.ModTime()) {
			err = errors.New("flanneld has not written subnet.env again")
		}
		return err
	})
}

// restarted stops flanneld as systemd does, then kills it, while streams are open.
func (t *trial) restarted() error {
	open, err := t.streams()
	if err != nil {
		return err
	}
	defer open.close()
	restart := func(n *node, s unix.Signal) func() error {
		return func() error {
			before, err := n.env()
			if err != nil {
				return err
			}
			return inTurn(
				func() error { return n.flanneld.signal(s) },
				open.alive, t.comesAndGoes(n),
				func() error { return n.waitRewritten(n.startFlanneld) },
				n.sameEnv(before), open.alive, t.podsReachEachOther, t.masqueraded,
			)
		}
	}
	return t.walk(
		stage{"flanneld of node1 restarted: subnets stay, connections live, ADD and DEL work meanwhile", restart(t.a, unix.SIGTERM)},
		stage{"flanneld of node2 killed and started: the same", restart(t.b, unix.SIGKILL)},
	)
}

// withoutEtcd kills etcd, and restarts it with its data.
func (t *trial) withoutEtcd() error {
	before, err := t.a.env()
	if err != nil {
		return err
	}
	open, err := t.streams()
	if err != nil {
		return err
	}
	defer open.close()
	return t.walk(
		stage{"etcd gone: connections live, new ones work, ADD and DEL on both nodes", func() error {
			t.etcd.kill()
			return inTurn(open.alive, t.podsReachEachOther, t.comesAndGoes(t.a), t.comesAndGoes(t.b))
		}},
		stage{"etcd gone and flanneld of node1 restarted: ADD and DEL still work", func() error {
			return inTurn(
				func() error { return t.a.flanneld.signal(unix.SIGTERM) },
				t.a.startFlanneld, open.alive, t.comesAndGoes(t.a),
			)
		}},
		stage{"etcd back: flanneld of node1 gets the same subnets, all goes on", func() error {
			return inTurn(
				func() error { return t.a.waitRewritten(t.startEtcd) },
				t.a.sameEnv(before), open.alive, t.podsReachEachOther, t.masqueraded, t.comesAndGoes(t.b),
			)
		}},
	)
}

// rebooted cuts the power of node1 with 16 pods on it. If node2 reaches the new pods, its flanneld,
// which was running while etcd was not, watches leases again.
func (t *trial) rebooted() error {
	n := t.a
	before, err := n.env()
	if err != nil {
		return err
	}
	var old []string // container IDs of the first boot
	for id := range n.pods {
		old = append(old, id)
	}
	slices.Sort(old)
	secondBoot := func(i int) string {
		if i%2 == 0 {
			return sameName(i) // some have the container ID of a pod of the first boot
		}
		return sameName(i) + "-boot2"
	}
	return t.walk(
		stage{"node1 rebooted: until flanneld is back STATUS has code 50, ADD code 11", func() error {
			return inTurn(n.reboot, n.notReady)
		}},
		stage{"flanneld gets the same subnets again", func() error {
			return inTurn(n.startFlanneld, n.sameEnv(before))
		}},
		stage{"21 pods anew, where 16 leases of the earlier boot and 21 do not fit together", func() error {
			if subnet := before.subnets()[0]; len(old)+crowd+1 <= 1<<(32-subnet.Bits())-3 {
				return fmt.Errorf("%d leases of the earlier boot: with the new ones they fit in %s", len(old), subnet)
			}
			p, err := n.addPod("web", "web-boot2", "-p", "8080:5000", "-p", "8080:5000/udp")
			if err != nil {
				return err
			}
			t.web[n] = p
			return n.addCrowd(secondBoot)
		}},
		stage{"they and the pods of node2 reach each other, the world and the published port", func() error {
			return inTurn(t.podsReachEachOther, t.partners, t.masqueraded, t.portIsOpen(n))
		}},
		stage{"late DELs of the earlier boot's pods, then GC: nothing of theirs is left", func() error {
			gone := slices.DeleteFunc(old, func(id string) bool { return n.pods[id] != nil })
			for _, id := range gone[:len(gone)/2] {
				if _, err := n.cni("del", "--container-id", id, network, "/run/netns/none"); err != nil {
					return err
				}
			}
			return inTurn(n.gc, n.wantOwned)
		}},
		stage{"and the new ones are as before: CHECK, traffic, port", func() error {
			return inTurn(t.checkAll, t.partners, t.portIsOpen(n))
		}},
	)
}
