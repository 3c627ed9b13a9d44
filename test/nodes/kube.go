package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// `make kubernetes` builds kubePrograms.
var kubePrograms = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"}

// A kube is a Kubernetes cluster. Its control plane runs on the router, beside etcd.
type kube struct {
	*cluster
	programs, reference, dist string // directories: of Kubernetes' programs, of the reference's plugins, of dist/kubernetes
	a, b                      *kubeNode
	web                       map[*kubeNode]*deployment // one pod each, with a host port
	services                  map[string][]string       // cluster addresses
}

// Ports of the trial. A node port is open on all nodes.
const (
	webHostPort   = 8080
	webNodePort   = 30080
	localNodePort = 30081
)

// kubernetes runs the stages of a Kubernetes cluster.
func (c *cluster) kubernetes(programs, reference, dist string) error {
	k := &kube{cluster: c, programs: programs, reference: reference, dist: dist, web: map[*kubeNode]*deployment{}, services: map[string][]string{}}
	v, err := c.versions()
	if err != nil {
		return err
	}
	version, err := run(filepath.Join(programs, "kubelet"), "--version")
	if err != nil {
		return err
	}
	fmt.Println("nodes:", strings.TrimSpace(version)+",", v)
	for _, part := range []func() error{
		k.start, k.installed, k.firstPods, k.servicesWork, k.hostPorts, k.bandwidth, k.rollout, k.killed, k.flushed, k.crowded, k.rebooted, k.empty,
	} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// walk runs the stages up to the first that fails.
func (k *kube) walk(stages ...stage) error {
	for _, s := range stages {
		if err := k.step(s.text, s.do); err != nil {
			return err
		}
	}
	return nil
}

func (k *kube) nodes() []*kubeNode { return []*kubeNode{k.a, k.b} }

func (k *kube) other(n *kubeNode) *kubeNode {
	if n == k.a {
		return k.b
	}
	return k.a
}

// start starts the control plane and two nodes.
func (k *kube) start() error {
	return k.walk(
		stage{"etcd and the API server answer", func() error { return inTurn(k.startEtcd, k.startControl) }},
		stage{"two nodes with containerd, kubelet, flanneld and kube-proxy are ready, dual stack", func() error {
			if err := k.bootNodes("kube", true); err != nil {
				return err
			}
			for i, to := range []**kubeNode{&k.a, &k.b} {
				*to = &kubeNode{node: k.cluster.nodes[i], programs: k.programs}
			}
			return parallel(k.nodes(), func(n *kubeNode) error {
				return inTurn(func() error { return n.installReference(k.reference) }, n.configure, n.start, n.ready)
			})
		}},
	)
}

// startControl starts the control plane.
func (k *kube) startControl() error {
	dir := filepath.Join(work, "control")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	keyFile, tokens, config := dir+"/sa.key", dir+"/tokens", dir+"/kubeconfig"
	for file, text := range map[string]string{
		keyFile: string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
		tokens:  apiToken + `,admin,admin,"system:masters"` + "\n", config: kubeconfig,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
	}
	start := func(name string, args ...string) error {
		_, err := k.cluster.start(name, append([]string{"ip", "netns", "exec", underlay, filepath.Join(k.programs, name)}, args...)...)
		return err
	}
	err = start("kube-apiserver", "--etcd-servers="+etcdURL, "--bind-address="+routerAddrs[0].String(), "--advertise-address="+routerAddrs[0].String(),
		"--cert-dir="+dir, "--token-auth-file="+tokens, "--authorization-mode=AlwaysAllow", "--disable-admission-plugins=ServiceAccount",
		"--service-account-issuer=https://nodes", "--service-account-key-file="+keyFile, "--service-account-signing-key-file="+keyFile,
		"--service-cluster-ip-range="+serviceNetworks, "--endpoint-reconciler-type=none")
	if err != nil {
		return err
	}
	if err := within(rolloutTime, func() error { return api(http.MethodGet, "/readyz", nil, nil) }); err != nil {
		return err
	}
	return inTurn(func() error {
		return start("kube-controller-manager", "--kubeconfig="+config, "--cluster-cidr="+podNetworks, "--allocate-node-cidrs",
			"--node-cidr-mask-size-ipv4=24", "--node-cidr-mask-size-ipv6=64", "--service-cluster-ip-range="+serviceNetworks,
			"--service-account-private-key-file="+keyFile, "--leader-elect=false", "--cert-dir="+dir)
	}, func() error {
		return start("kube-scheduler", "--kubeconfig="+config, "--leader-elect=false", "--cert-dir="+dir)
	})
}

// firstPods starts a pod on each node.
func (k *kube) firstPods() error {
	return k.walk(
		stage{"a pod on each node is ready, with an address of each family", func() error {
			for _, n := range k.nodes() {
				k.web[n] = &deployment{app: "web-" + n.name, replicas: 1, node: n.name, hostPort: webHostPort, recreate: true}
			}
			return parallel(k.nodes(), func(n *kubeNode) error { return k.web[n].create() })
		}},
		stage{"the pods reach each other under their own addresses, both ways, both families", func() error {
			return k.each(func(from, to *kubeNode, family int) error {
				client, server, err := k.pair(from, to)
				if err != nil {
					return err
				}
				return wantSeen(client.ns, server.at(family), client.addrs[family])
			})
		}},
		stage{"16 MiB there and back between them, both ways, both families", func() error {
			return k.each(func(from, to *kubeNode, family int) error {
				client, server, err := k.pair(from, to)
				if err != nil {
					return err
				}
				s, err := connect(client.ns, server.at(family))
				if err != nil {
					return err
				}
				defer s.Close()
				return s.exchange(bulk, bulkTime)
			})
		}},
		stage{"the world sees pods under their node's address, both families", func() error {
			return k.each(func(from, _ *kubeNode, family int) error {
				client, err := k.webPod(from)
				if err != nil {
					return err
				}
				return wantSeen(client.ns, netip.AddrPortFrom(outsideAddrs[family], port), from.addrs[family])
			})
		}},
	)
}

// A place is a running pod: its addresses and its network namespace.
type place struct {
	addrs [2]netip.Addr
	ns    namespace
}

// at is the address of the pod's server in a family: 0 is IPv4, 1 is IPv6.
func (p *place) at(family int) netip.AddrPort { return netip.AddrPortFrom(p.addrs[family], port) }

// placeOf returns the place of a node's pod.
func (n *kubeNode) placeOf(p *kubePod) (*place, error) {
	if err := p.ready(); err != nil {
		return nil, err
	}
	at := &place{}
	for i, ip := range p.Status.PodIPs {
		a, err := netip.ParseAddr(ip.IP)
		if err != nil {
			return nil, err
		}
		at.addrs[i] = a
	}
	var err error
	at.ns, err = n.sandboxOf(p)
	return at, err
}

// webPod returns the first pod of a node.
func (k *kube) webPod(n *kubeNode) (*place, error) {
	pods, err := podsOf(k.web[n].app)
	if err != nil {
		return nil, err
	}
	if len(pods) != 1 {
		return nil, fmt.Errorf("%s has %d pods", k.web[n].app, len(pods))
	}
	return n.placeOf(&pods[0])
}

func (k *kube) pair(from, to *kubeNode) (client, server *place, err error) {
	client, err1 := k.webPod(from)
	server, err2 := k.webPod(to)
	return client, server, errors.Join(err1, err2)
}

// each calls fn with both directions between the nodes, in both families.
func (k *kube) each(fn func(from, to *kubeNode, family int) error) error {
	for family := range families {
		for _, n := range k.nodes() {
			if err := fn(n, k.other(n), family); err != nil {
				return fmt.Errorf("%s from %s: %w", families[family], n.name, err)
			}
		}
	}
	return nil
}

func (k *kube) clusterAddr(name string, family int) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(k.services[name][family]), port)
}

// servicesWork tests services of an application with pods on both nodes, and of one with a pod on
// the first alone.
func (k *kube) servicesWork() error {
	app := &deployment{app: "app", replicas: 2}
	return k.walk(
		stage{"a service of two pods: its address answers in pods and on nodes, both families", func() error {
			if err := app.create(); err != nil {
				return err
			}
			var err error
			if k.services["app"], err = (&service{name: "app", app: "app", nodePort: webNodePort}).create(); err != nil {
				return err
			}
			return k.serviceAnswers()
		}},
		stage{"its node port answers the world, on both nodes, both families", k.nodePortAnswers},
		stage{"externalTrafficPolicy Local: the pod sees the client's own address", func() error {
			var err error
			local := &service{name: "local", app: k.web[k.a].app, nodePort: localNodePort, local: true}
			if k.services["local"], err = local.create(); err != nil {
				return err
			}
			for family := range families {
				if err := wantSeen(pinned(outside), netip.AddrPortFrom(k.a.addrs[family], localNodePort), outsideAddrs[family]); err != nil {
					return err
				}
				if s, err := connect(pinned(outside), netip.AddrPortFrom(k.b.addrs[family], localNodePort)); err == nil {
					s.Close()
					return fmt.Errorf("%s answers at %d, and has no pod of the service", k.b.name, localNodePort)
				}
			}
			return nil
		}},
	)
}

func (k *kube) serviceAnswers() error {
	return k.each(func(from, _ *kubeNode, family int) error {
		client, err := k.webPod(from)
		if err != nil {
			return err
		}
		for _, ns := range []namespace{client.ns, from.netns()} {
			if err := wantSeen(ns, k.clusterAddr("app", family), netip.Addr{}); err != nil {
				return err
			}
		}
		return nil
	})
}

func (k *kube) nodePortAnswers() error {
	return k.each(func(n, _ *kubeNode, family int) error {
		return wantSeen(pinned(outside), netip.AddrPortFrom(n.addrs[family], webNodePort), netip.Addr{})
	})
}

// hostPorts tests the host ports of the first pods.
func (k *kube) hostPorts() error {
	return k.walk(
		stage{"hostPort: from the world with its own address, both nodes, their pods, and the pod itself", k.hostPortsAnswer},
		stage{"a successor gets the host port at once", func() error {
			return parallel(k.nodes(), func(n *kubeNode) error {
				d := k.web[n]
				if err := d.roll("successor"); err != nil {
					return err
				}
				return d.wait()
			})
		}},
		stage{"and has it in every direction", k.hostPortsAnswer},
	)
}

func (k *kube) hostPortsAnswer() error {
	return k.each(func(n, other *kubeNode, family int) error {
		own, far, err := k.pair(n, other)
		if err != nil {
			return err
		}
		at := netip.AddrPortFrom(n.addrs[family], webHostPort)
		if err := wantSeen(pinned(outside), at, outsideAddrs[family]); err != nil {
			return fmt.Errorf("from the world: %w", err)
		}
		for name, ns := range map[string]namespace{"the node": n.netns(), "the other node": other.netns(), "the pod": own.ns, "a pod of the other node": far.ns} {
			if err := wantSeen(ns, at, netip.Addr{}); err != nil {
				return fmt.Errorf("from %s: %w", name, err)
			}
		}
		return nil
	})
}

// bandwidth tests the annotation that limits a pod's rate.
func (k *kube) bandwidth() error {
	const (
		rate = 4 << 20 // bits per second
		size = 1 << 20 // bytes; a queue passes the first of them at once
	)
	d := &deployment{app: "slow", replicas: 1, annotations: map[string]string{
		"kubernetes.io/ingress-bandwidth": fmt.Sprint(rate), "kubernetes.io/egress-bandwidth": fmt.Sprint(rate),
	}}
	return k.walk(stage{"bandwidth annotations limit a pod, and no other", func() error {
		if err := d.create(); err != nil {
			return err
		}
		pods, err := podsOf(d.app)
		if err != nil || len(pods) != 1 {
			return fmt.Errorf("%d pods: %w", len(pods), err)
		}
		n := k.a
		if pods[0].Spec.NodeName == k.b.name {
			n = k.b
		}
		slow, err := n.placeOf(&pods[0])
		if err != nil {
			return err
		}
		client, err := k.webPod(k.other(n))
		if err != nil {
			return err
		}
		web, err := k.webPod(n)
		if err != nil {
			return err
		}
		limited, err := exchangeTime(client.ns, slow.at(0), size)
		if err != nil {
			return err
		}
		free, err := exchangeTime(client.ns, web.at(0), size)
		if err != nil {
			return err
		}
		// Half of the time at that rate, since the queue passes the burst at once.
		if least := time.Duration(size*8/rate) * time.Second / 2; limited < least || free > limited/2 {
			return fmt.Errorf("%d bytes there and back took %v with a limit of %d bit/s, want %v or more; without one %v", size, limited, rate, least, free)
		}
		return d.delete()
	}})
}

// exchangeTime returns the time to send size bytes there and back.
func exchangeTime(ns namespace, to netip.AddrPort, size int) (time.Duration, error) {
	s, err := connect(ns, to)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	begin := time.Now()
	err = s.exchange(size, time.Minute)
	return time.Since(begin), err
}

// rollout replaces the pods of a service while clients use it.
func (k *kube) rollout() error {
	app := &deployment{app: "app", replicas: 2}
	return k.walk(stage{"a rollout under load loses no request", func() error {
		client, err := k.webPod(k.b)
		if err != nil {
			return err
		}
		stop, lost := make(chan struct{}), make(chan error, 1)
		asked := 0
		go func() {
			for {
				select {
				case <-stop:
					lost <- nil
					return
				default:
				}
				family := asked % len(families)
				if _, err := seenFrom(client.ns, k.clusterAddr("app", family)); err != nil {
					lost <- fmt.Errorf("request %d: %w", asked, err)
					return
				}
				asked++
			}
		}()
		err = inTurn(func() error { return app.roll("under load") }, app.wait)
		close(stop)
		if err := errors.Join(err, <-lost); err != nil {
			return err
		}
		if asked < 100 {
			return fmt.Errorf("only %d requests", asked)
		}
		return nil
	}})
}

// killed kills the daemons of a node while pods start.
func (k *kube) killed() error {
	const pods = 20
	d := &deployment{app: "killed", node: "node1"}
	return k.walk(
		stage{"kubelet and containerd are killed while 20 pods start, and come back: all get ready", func() error {
			if err := inTurn(d.create, func() error { return d.scale(pods) }); err != nil {
				return err
			}
			// Wait until the first of them are being attached.
			before, err := k.a.leases()
			if err != nil {
				return err
			}
			err = within(rolloutTime, func() error {
				now, err := k.a.leases()
				if err == nil && len(now) <= len(before) {
					err = errors.New("no pod has begun")
				}
				return err
			})
			if err != nil {
				return err
			}
			k.a.kubelet.kill()
			k.a.containerd.kill()
			return inTurn(k.a.startContainerd, k.a.startKubelet, d.wait)
		}},
		stage{"each has its own addresses, and nothing is on the node but what pods have", func() error { return within(rolloutTime, k.onlyPods) }},
		stage{"they end, and leave nothing", func() error {
			return inTurn(d.delete, func() error { return within(rolloutTime, k.onlyPods) })
		}},
	)
}

// onlyPods returns an error if a node has leases or results that do not belong to its pods.
func (k *kube) onlyPods() error {
	pods, err := podsOf("")
	if err != nil {
		return err
	}
	for _, n := range k.nodes() {
		want := map[netip.Addr]bool{}
		count := 0
		for _, p := range pods {
			if p.Spec.NodeName != n.name {
				continue
			}
			count++
			for _, ip := range p.Status.PodIPs {
				want[netip.MustParseAddr(ip.IP)] = true
			}
		}
		leases, err := n.leases()
		if err != nil {
			return err
		}
		for _, a := range leases {
			if !want[a] {
				return fmt.Errorf("%s: the lease of %s is of no pod", n.name, a)
			}
		}
		if len(want) != len(families)*count || len(leases) != len(want) {
			return fmt.Errorf("%s: %d pods with %d addresses and %d leases", n.name, count, len(want), len(leases))
		}
		left, err := n.left()
		if err != nil {
			return err
		}
		found := map[string]int{}
		for _, what := range left {
			kind, _, _ := strings.Cut(what, " ")
			if kind == "link" || kind == "element" {
				found[kind]++
			} else {
				found[filepath.Dir(what)]++
			}
		}
		if found["link"] != count || found["flannel"] != count || found["results"] != 2*count { // eth0's and lo's
			return fmt.Errorf("%s: %d pods, and %v: %s", n.name, count, found, strings.Join(left, ", "))
		}
	}
	return nil
}

// flushed flushes the rule set of a node.
func (k *kube) flushed() error {
	return k.walk(stage{"nft flush ruleset, and cni-exec reload: host ports and services answer again", func() error {
		n := k.a
		if _, err := n.run("nft", "flush", "ruleset"); err != nil {
			return err
		}
		if s, err := connect(pinned(outside), netip.AddrPortFrom(n.addrs[0], webHostPort)); err == nil {
			s.Close()
			return errors.New("the host port answers without rules")
		}
		if _, err := n.cni("reload"); err != nil {
			return err
		}
		// flanneld and kube-proxy do not watch their rules: an operator has to restart them.
		n.proxy.kill()
		n.flanneld.kill()
		return inTurn(n.startFlannel, n.startProxy, k.hostPortsAnswer, k.serviceAnswers, k.nodePortAnswers)
	}})
}

// crowded starts many pods on one node.
func (k *kube) crowded() error {
	const pods = 60
	d := &deployment{app: "crowd", node: "node2", replicas: pods}
	return k.walk(
		stage{"60 pods more on one node get ready", d.create},
		stage{"a pod of the other node reaches each, both families; nothing is there but what pods have", func() error {
			client, err := k.webPod(k.a)
			if err != nil {
				return err
			}
			list, err := podsOf(d.app)
			if err != nil {
				return err
			}
			for i := range list {
				p, err := k.b.placeOf(&list[i])
				if err != nil {
					return err
				}
				for family := range families {
					if err := wantSeen(client.ns, p.at(family), client.addrs[family]); err != nil {
						return err
					}
				}
			}
			return k.onlyPods()
		}},
		stage{"they end, and leave nothing", func() error {
			return inTurn(d.delete, func() error { return within(rolloutTime, k.onlyPods) })
		}},
	)
}

// rebooted cuts the power of a node and boots it.
func (k *kube) rebooted() error {
	return k.walk(
		stage{"a node reboots: all processes and /run are gone; its pods get ready again", func() error {
			n := k.b
			if err := inTurn(n.reboot, n.start); err != nil {
				return err
			}
			return within(rolloutTime, func() error {
				if err := n.ready(); err != nil {
					return err
				}
				at, err := k.webPod(n)
				if err != nil {
					return err
				}
				client, err := k.webPod(k.a)
				if err != nil {
					return err
				}
				_, err = seenFrom(client.ns, at.at(0))
				return err
			})
		}},
		stage{"host ports and services answer again", func() error {
			return inTurn(k.hostPortsAnswer, k.serviceAnswers, k.nodePortAnswers)
		}},
		stage{"nothing of the earlier boot is left but what the next DEL of the kubelet takes", func() error { return within(rolloutTime, k.onlyPods) }},
	)
}

// empty deletes all pods.
func (k *kube) empty() error {
	return k.walk(stage{"all pods end: no link, lease, result, state file or element is left", func() error {
		var all []*deployment
		for _, d := range k.web {
			all = append(all, d)
		}
		all = append(all, &deployment{app: "app"})
		if err := parallel(all, (*deployment).delete); err != nil {
			return err
		}
		return within(rolloutTime, func() error {
			for _, n := range k.nodes() {
				if left, err := n.left(); err != nil || len(left) > 0 {
					return errors.Join(err, fmt.Errorf("%s: left are %s", n.name, strings.Join(left, ", ")))
				}
			}
			return nil
		})
	}})
}
