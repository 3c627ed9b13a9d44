package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A node is a machine: namespaces that end with a boot, and a disk that stays.
type node struct {
	c      *cluster
	name   string
	addrs  [2]netip.Addr // of eth0, IPv4 and IPv6
	disk   string        // directory that stays across boots
	ipMasq bool          // flanneld masquerades
	boots  int

	holder   *exec.Cmd
	release  io.Closer // its end ends the holder
	flanneld *process
	pods     map[string]*pod
	mu       sync.Mutex // guards pods and warnings
	warnings bytes.Buffer
}

// owned are the node's own directories, by parent.
var owned = map[string][]string{
	"/etc": {"cni"}, "/opt": {"cni"}, "/var/lib": {"cni", "containerd", "kubelet"}, "/var/log": {"pods", "containers"},
}

// settings are the sysctls that kubelet requires. It finds them as required, and sets none.
var settings = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// hold is the first process of a node's PID namespace, which holds its namespaces: it mounts the
// file systems, reports that on stdout, and waits for the end of stdin. All processes of the node
// end with it.
func hold(disk string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	for above, names := range owned {
		if err := mountOwn(disk, above, names); err != nil {
			return err
		}
	}
	cgroups := filepath.Join(disk, "cgroup")
	if err := os.MkdirAll(cgroups, 0o755); err != nil {
		return err
	}
	binds := map[string]string{"/proc/sys/kernel/random/boot_id": filepath.Join(disk, "boot_id")}
	for name, value := range settings {
		file := filepath.Join(disk, strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		binds["/proc/sys/"+name] = file
	}
	type mount struct {
		source, on, kind string
		flags            uintptr
	}
	mounts := []mount{
		{cgroupRoot, cgroups, "", unix.MS_BIND | unix.MS_REC},
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV},
		{"sysfs", "/sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV},
		{cgroups, cgroupRoot, "", unix.MS_MOVE},
	}
	for on, source := range binds {
		mounts = append(mounts, mount{source, on, "", unix.MS_BIND})
	}
	mounts = append(mounts,
		mount{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV}, // over the directory of the disk
		mount{"", "/", "", unix.MS_REC | unix.MS_SHARED})                // as kubelet requires of its directory
	for _, m := range mounts {
		if err := unix.Mount(m.source, m.on, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.on, err)
		}
	}
	go reap()
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// mountOwn gives the node its own directories. Since the machine may lack one, they are made in an
// overlay over the parent.
func mountOwn(disk, above string, names []string) error {
	layer := filepath.Join(disk, above)
	upper, scratch := filepath.Join(layer, "upper"), filepath.Join(layer, "work")
	for _, d := range []string{upper, scratch} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	err := unix.Mount("overlay", above, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", above, upper, scratch))
	if err != nil {
		return fmt.Errorf("layer over %s: %w", above, err)
	}
	for _, name := range names {
		dir, on := filepath.Join(layer, name), filepath.Join(above, name)
		for _, d := range []string{dir, on} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount(dir, on, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", on, err)
		}
	}
	return nil
}

// reap waits for the processes whose parents have ended.
func reap() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for range ended {
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}

// boot makes the node's namespaces, with an empty /run and a new boot ID.
func (n *node) boot() error {
	n.boots++
	n.pods = map[string]*pod{}
	if err := os.MkdirAll(n.disk, 0o755); err != nil {
		return err
	}
	id := fmt.Sprintf("00000000-0000-4000-8000-%08d%04d\n", n.addrs[0].As4()[3], n.boots)
	if err := os.WriteFile(filepath.Join(n.disk, "boot_id"), []byte(id), 0o444); err != nil {
		return err
	}
	n.holder = exec.Command("/proc/self/exe", holdArg, n.disk)
	n.holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID}
	n.holder.Stderr = os.Stderr
	stdin, err := n.holder.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := n.holder.StdoutPipe()
	if err != nil {
		return err
	}
	if err := n.holder.Start(); err != nil {
		return err
	}
	n.release = stdin
	if _, err := io.ReadFull(stdout, make([]byte, len("ready\n"))); err != nil {
		return fmt.Errorf("%s: its mounts: %w", n.name, err)
	}
	return n.cable()
}

// cable connects eth0 to the underlay network. Its MAC address stays the same across boots, as on a
// real machine: neighbours cache it for up to a minute.
func (n *node) cable() error {
	if _, err := run("ip", "-n", underlay, "link", "add", n.name, "master", "lan", "up", "type", "veth",
		"peer", "name", "eth0", "address", fmt.Sprintf("02:00:00:00:00:%02x", n.addrs[0].As4()[3]), "netns", fmt.Sprint(n.holder.Process.Pid)); err != nil {
		return err
	}
	_, err := n.feed(fmt.Sprintf(`link set lo up
link set eth0 up
addr add %s/24 dev eth0
addr add %s/64 dev eth0 nodad
route add default via %s
route add default via %s
`, n.addrs[0], n.addrs[1], routerAddrs[0], routerAddrs[1]), "ip", "-batch", "-")
	return err
}

// shutdown ends the node as a power failure does: nothing is detached, and no daemon is stopped.
func (n *node) shutdown() error {
	for _, p := range n.pods {
		p.server.close() // an open socket would keep the pod's namespace
	}
	// The kernel deletes the links of a namespace asynchronously.
	if _, err := run("ip", "-n", underlay, "link", "del", n.name); err != nil {
		return err
	}
	n.flanneld.kill()
	n.release.Close()
	if err := n.holder.Wait(); err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	return nil
}

// reboot is a power failure and a boot.
func (n *node) reboot() error {
	if err := n.shutdown(); err != nil {
		return err
	}
	return n.boot()
}

// root returns the path of a node's file outside the node.
func (n *node) root(path string) string {
	return fmt.Sprintf("/proc/%d/root%s", n.holder.Process.Pid, path)
}

func (n *node) netns() namespace {
	return namespace(fmt.Sprintf("/proc/%d/ns/net", n.holder.Process.Pid))
}

// enter returns a command line that runs a command on the node.
func (n *node) enter(argv ...string) []string {
	return append([]string{"nsenter", "-t", fmt.Sprint(n.holder.Process.Pid), "-m", "-n", "-p", "--"}, argv...)
}

func (n *node) run(argv ...string) (string, error) { return run(n.enter(argv...)...) }

func (n *node) feed(stdin string, argv ...string) (string, error) {
	return feed(stdin, n.enter(argv...)...)
}

const (
	network   = "cbr0"
	pluginDir = "/opt/cni/bin"
)

// kubeFlannel is the list that kube-flannel.yml installs, with the newest cniVersion.
const kubeFlannel = `{
  "name": "cbr0",
  "cniVersion": "1.1.0",
  "plugins": [
    { "type": "flannel", "delegate": { "hairpinMode": true, "isDefaultGateway": true } },
    { "type": "portmap", "capabilities": { "portMappings": true } }
  ]
}
`

// formOf returns a list as the node has it: the second node of a cluster has it folded, so that each
// trial has both forms.
func (n *node) formOf(list string) (string, error) {
	if n.name != "node2" {
		return list, nil
	}
	plain := n.disk + ".conflist"
	if err := os.WriteFile(plain, []byte(list), 0o600); err != nil {
		return "", err
	}
	folded, err := exec.Command(n.c.bin, "fold", plain).Output()
	return string(folded), err
}

// install installs the binary as a user does, and writes the list.
func (n *node) install(bin string) error {
	conf := n.root("/etc/cni/net.d/10-flannel.conflist")
	for _, dir := range []string{n.root(pluginDir), filepath.Dir(conf)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	list, err := n.formOf(kubeFlannel)
	if err != nil {
		return err
	}
	if err := os.WriteFile(conf, []byte(list), 0o644); err != nil {
		return err
	}
	for _, dir := range []string{pluginDir, n.runtimeDir()} {
		file := dir + "/cnibox"
		if _, err := n.run("sh", "-c", `mkdir -p "$1" && cp "$2" "$3" && "$3" install "$1"`, "sh", dir, bin, file); err != nil {
			return err
		}
	}
	return nil
}

// runtimeDir is the directory of cni-exec. On node2 it is another file than the plugins, and starts
// them as processes, as containerd does; on node1 they are built in.
func (n *node) runtimeDir() string {
	if n.name == "node2" {
		return "/opt/cni/runtime"
	}
	return pluginDir
}

// cni runs cni-exec on the node. It records warnings for [cluster.report].
func (n *node) cni(args ...string) (string, error) {
	argv := n.enter(append([]string{"env", "CNI_PATH=" + pluginDir, n.runtimeDir() + "/cni-exec"}, args...)...)
	cmd := exec.Command(argv[0], argv[1:]...)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	err := cmd.Run()
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintf(&n.warnings, "cni-exec %s\n%s", strings.Join(args, " "), diag.String())
	if err != nil {
		err = fmt.Errorf("%s: cni-exec %s: %w: %s", n.name, strings.Join(args, " "), err, strings.TrimSpace(out.String()+diag.String()))
	}
	return out.String(), err
}

func (n *node) gc() error {
	_, err := n.cni("gc", network)
	return err
}

// subnetEnv is the file that flanneld writes for the plugin.
type subnetEnv map[string]string

// prefix returns the network of an address in the file.
func (e subnetEnv) prefix(key string) netip.Prefix {
	p, _ := netip.ParsePrefix(e[key]) // the zero Prefix contains nothing
	return p.Masked()
}

// subnets are the node's IPv4 and IPv6 subnets.
func (e subnetEnv) subnets() [2]netip.Prefix {
	return [2]netip.Prefix{e.prefix("FLANNEL_SUBNET"), e.prefix("FLANNEL_IPV6_SUBNET")}
}

const subnetFile = "/run/flannel/subnet.env"

// env waits for subnet.env.
func (n *node) env() (e subnetEnv, err error) {
	err = eventually(func() error {
		text, err := os.ReadFile(n.root(subnetFile))
		if err != nil {
			return errors.Join(err, n.flanneld.ended())
		}
		e = subnetEnv{}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			e[key] = value
		}
		if e["FLANNEL_IPMASQ"] == "" { // the last line of the file
			return errors.New(subnetFile + " is not complete")
		}
		return nil
	})
	return e, err
}

func (n *node) startFlanneld() (err error) {
	n.flanneld, err = n.c.start(n.name+"-flanneld", n.enter(n.c.flanneldPath,
		"--etcd-endpoints="+etcdURL, "--iface=eth0", fmt.Sprintf("--ip-masq=%t", n.ipMasq))...)
	return err
}
