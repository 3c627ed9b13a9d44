package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/image"
)

const (
	kubeImage    = "docker.io/library/cnibox-nodes:1"
	imageProgram = "/nodes" // this program, in the image

	serveArg = "--serve" // its first argument in a pod: serve as in traffic.go
	pauseArg = "--pause" // its argument in the pause image: wait for SIGTERM

	cgroupRoot   = "/sys/fs/cgroup"
	cgroupPrefix = "cnibox-nodes-"
	cgroupVar    = "CNIBOX_NODES_CGROUP" // control group of all pods

	socketPath = "unix:///run/containerd/containerd.sock"
)

// podMain is the program of a container: a server, or one that only waits.
func podMain(arg string) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	if arg == serveArg {
		s, err := serve("")
		if err != nil {
			return err
		}
		defer s.close()
		defer s.drain()
	}
	<-signals
	return nil
}

// writeImage writes the image of all containers: this program, which is static.
func writeImage(file string) error {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	i := &image.Image{Name: kubeImage, Cmd: []string{imageProgram, pauseArg}, Files: []image.File{
		{Name: imageProgram[1:], Mode: 0o755, Body: program},
		{Name: "etc/hosts", Mode: 0o644, Body: []byte("127.0.0.1 localhost\n")},
	}}
	return errors.Join(i.Write(f), f.Close())
}

// containerdConf has the settings of the CRI plugin. Some machines of continuous integration forbid
// a negative oom_score_adj, and some are so busy that a shim needs more than a few seconds to
// answer.
const containerdConf = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + kubeImage + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + pluginDir + `"
    conf_dir = "/etc/cni/net.d"
[timeouts]
  "io.containerd.timeout.shim.cleanup" = "1m"
  "io.containerd.timeout.shim.load" = "1m"
  "io.containerd.timeout.shim.shutdown" = "1m"
  "io.containerd.timeout.task.state" = "1m"
`

// kubeChain is the list that kube-flannel.yml installs, with bandwidth.
const kubeChain = `{
  "name": "` + network + `",
  "cniVersion": "1.0.0",
  "plugins": [
    { "type": "flannel", "delegate": { "hairpinMode": true, "isDefaultGateway": true } },
    { "type": "portmap", "capabilities": { "portMappings": true } },
    { "type": "bandwidth", "capabilities": { "bandwidth": true } }
  ]
}
`

// Addresses of the cluster. A node has 254 IPv4 addresses.
const (
	podNetworks     = "10.244.0.0/16,fd00:10:244::/56"
	serviceNetworks = "10.96.0.0/16,fd00:10:96::/112"
	flannelConf     = `{"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:10:244::/56", "Backend": {"Type": "vxlan"}}`
)

// A kubeNode is a node with the daemons of Kubernetes.
type kubeNode struct {
	*node
	programs string // directory of Kubernetes' programs

	containerd, kubelet, proxy *process
}

// stateDir has the configuration of the node's daemons, and is on its disk.
const stateDir = "/var/lib/kubelet"

// configure writes the configuration of all daemons.
func (n *kubeNode) configure() error {
	list, err := n.formOf(kubeChain)
	if err != nil {
		return err
	}
	type m = map[string]any
	kubelet := m{
		"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
		"authentication": m{"anonymous": m{"enabled": true}, "webhook": m{"enabled": false}},
		"authorization":  m{"mode": "AlwaysAllow"}, "failSwapOn": false,
		"cgroupsPerQOS": false, "enforceNodeAllocatable": []string{}, "cgroupDriver": "cgroupfs", "cgroupRoot": os.Getenv(cgroupVar),
		"localStorageCapacityIsolation": false, "containerRuntimeEndpoint": socketPath, "serializeImagePulls": false,
		"evictionHard":                m{"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
		"imageGCHighThresholdPercent": 100, "nodeStatusUpdateFrequency": "2s", "nodeStatusReportFrequency": "10s",
		"maxPods": 110, "resolvConf": "",
	}
	proxy := m{
		"kind": "KubeProxyConfiguration", "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "mode": "nftables",
		"clientConnection": m{"kubeconfig": stateDir + "/kubeconfig"}, "clusterCIDR": podNetworks, "hostnameOverride": n.name,
		"conntrack": m{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	}
	for name, content := range map[string]any{
		stateDir + "/kubeconfig": kubeconfig, stateDir + "/kubelet.json": kubelet, stateDir + "/proxy.json": proxy,
		stateDir + "/containerd.toml": containerdConf, stateDir + "/flannel.json": flannelConf,
		"/etc/cni/net.d/10-flannel.conflist": list,
	} {
		text, ok := content.(string)
		if !ok {
			b, err := json.Marshal(content)
			if err != nil {
				return err
			}
			text = string(b)
		}
		file := n.root(name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return errors.Join(writeImage(n.root(stateDir+"/image.tar")), writeProductImage(n.c.bin, n.root(stateDir+"/product.tar")),
		writeFlannelImage(n.c.bin, n.root(stateDir+"/flannel.tar")))
}

// daemon starts a daemon of the node.
func (n *kubeNode) daemon(name string, argv ...string) (*process, error) {
	return n.c.start(n.name+"-"+name, n.enter(argv...)...)
}

func (n *kubeNode) startContainerd() (err error) {
	if n.containerd, err = n.daemon("containerd", "containerd", "--config", stateDir+"/containerd.toml"); err != nil {
		return err
	}
	return eventually(func() error {
		_, err := n.run("ctr", "version")
		return errors.Join(err, n.containerd.ended())
	})
}

func (n *kubeNode) startKubelet() (err error) {
	addrs := []string{n.addrs[0].String(), n.addrs[1].String()}
	n.kubelet, err = n.daemon("kubelet", filepath.Join(n.programs, "kubelet"), "--config="+stateDir+"/kubelet.json",
		"--kubeconfig="+stateDir+"/kubeconfig", "--hostname-override="+n.name, "--node-ip="+strings.Join(addrs, ","))
	return err
}

func (n *kubeNode) startProxy() (err error) {
	n.proxy, err = n.daemon("kube-proxy", filepath.Join(n.programs, "kube-proxy"), "--config="+stateDir+"/proxy.json")
	return err
}

func (n *kubeNode) startFlannel() (err error) {
	n.flanneld, err = n.daemon("flanneld", "env", "NODE_NAME="+n.name, n.c.flanneldPath, "--kube-subnet-mgr",
		"--kubeconfig-file="+stateDir+"/kubeconfig", "--net-config-path="+stateDir+"/flannel.json", "--iface=eth0", "--ip-masq")
	return err
}

// start starts all daemons after a boot.
func (n *kubeNode) start() error {
	load := func(archive string) func() error {
		return func() error {
			_, err := n.run("ctr", "--namespace", "k8s.io", "image", "import", stateDir+"/"+archive)
			return err
		}
	}
	return inTurn(n.startContainerd, load("image.tar"), load("product.tar"), load("flannel.tar"), n.startKubelet, n.startFlannel, n.startProxy)
}

// ready waits until the node is Ready, and has no taint and a subnet of each family.
func (n *kubeNode) ready() error {
	return within(rolloutTime, func() error {
		for _, p := range []*process{n.containerd, n.kubelet, n.flanneld, n.proxy} {
			if err := p.ended(); err != nil {
				return err
			}
		}
		var got struct {
			Spec struct {
				PodCIDRs []string
				Taints   []struct{ Key string }
			}
			Status struct {
				Conditions []struct{ Type, Status, Message string }
			}
		}
		if err := api(http.MethodGet, nodesPath+"/"+n.name, nil, &got); err != nil {
			return err
		}
		for _, c := range got.Status.Conditions {
			if c.Type == "Ready" && (c.Status != "True" || len(got.Spec.Taints) > 0) {
				return fmt.Errorf("%s is not ready: %+v %s", n.name, got.Spec, c.Message)
			}
		}
		if len(got.Spec.PodCIDRs) != len(families) {
			return fmt.Errorf("%s has the subnets %s", n.name, got.Spec.PodCIDRs)
		}
		_, err := n.env()
		return err
	})
}

// sandboxOf returns the network namespace of a pod: that of the cached result with its address.
func (n *kubeNode) sandboxOf(p *kubePod) (namespace, error) {
	files, err := filepath.Glob(n.root("/var/lib/cni/results/" + network + "-*-eth0"))
	if err != nil {
		return "", err
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		var entry struct {
			Result struct {
				Interfaces []struct{ Name, Sandbox string }
				IPs        []struct{ Address netip.Prefix }
			}
		}
		if err := json.Unmarshal(text, &entry); err != nil || len(entry.Result.IPs) == 0 || len(p.Status.PodIPs) == 0 {
			continue
		}
		if entry.Result.IPs[0].Address.Addr().String() != p.Status.PodIPs[0].IP {
			continue
		}
		for _, i := range entry.Result.Interfaces {
			if i.Sandbox != "" {
				return namespace(n.root(strings.TrimPrefix(i.Sandbox, "/var"))), nil // /var/run is a link to /run
			}
		}
	}
	return "", fmt.Errorf("%s: no cached result has the address of pod %s", n.name, p.Metadata.Name)
}

// rolloutTime limits how long many pods may take on a busy machine.
const rolloutTime = 5 * time.Minute
