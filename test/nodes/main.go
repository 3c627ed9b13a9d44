// Command nodes runs a cluster of two nodes on a cnibox binary: real etcd, real flanneld, and pods
// of the plugin flannel, with its backends vxlan and host-gw, both dual stack. With the directory
// of Kubernetes' programs it runs a Kubernetes cluster instead.
//
//	go run -C test ./nodes [-bin ../bin/cnibox] [-flanneld PATH] [-kubernetes DIR] [-require]
//
// It needs root, the programs of the table below and a kernel with vxlan; without them it prints
// what is missing and exits with 0, or with -require fails. Each node is a network namespace and a
// mount namespace, with its own /run, /etc/cni, /var/lib/cni and /opt/cni. All of it is in a sandbox:
// it neither sees nor changes the machine's links, rules, files and processes, and everything ends
// with the first process of the sandbox.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	groups "github.com/cnibox/cnibox/test/sandbox"
)

// work is the directory of all files of the run, in the sandbox's /run.
const work = "/run/nodes"

// sandboxVar is set for the second process, which is in the sandbox.
const sandboxVar = "CNIBOX_NODES_SANDBOX"

// holdArg is the first argument of the process that holds a node's namespaces.
const holdArg = "--hold"

// needed are the programs, and the Debian packages that have them.
var needed = []struct{ program, pkg string }{
	{"etcd", "etcd-server"}, {"ip", "iproute2"}, {"iptables", "iptables"}, {"nft", "nftables"}, {"nsenter", "util-linux"},
}

// kubeNeeded are needed for Kubernetes as well.
var kubeNeeded = []struct{ program, pkg string }{{"containerd", "containerd"}, {"ctr", "containerd"}, {"runc", "runc"}, {"busybox", "busybox-static"}}

// The main goroutine stays on the first thread: a child with Pdeathsig dies with the thread that
// started it, and the threads of [namespace.do] end.
func init() { runtime.LockOSThread() }

func main() {
	switch {
	case len(os.Args) > 2 && os.Args[1] == holdArg:
		fail(hold(os.Args[2]))
		return
	case len(os.Args) == 2 && (os.Args[1] == serveArg || os.Args[1] == pauseArg):
		fail(podMain(os.Args[1]))
		return
	}
	bin := flag.String("bin", "../bin/cnibox", "the binary to try")
	flanneld := flag.String("flanneld", "", "flanneld; `make flanneld` builds it")
	programs := flag.String("kubernetes", "", "directory of kubelet and the rest; `make kubernetes` builds them")
	reference := flag.String("reference", "", "with -kubernetes, directory of the reference's plugins; `make reference` builds them")
	dist := flag.String("dist", "../dist/kubernetes", "with -kubernetes, directory of the DaemonSets")
	require := flag.Bool("require", false, "fail where something is missing")
	flag.Parse()
	for _, path := range []*string{bin, flanneld, programs, reference, dist} {
		if *path != "" {
			abs, err := filepath.Abs(*path)
			fail(err)
			*path = abs
		}
	}
	if os.Getenv(sandboxVar) != "" {
		fail(inside(*bin, *flanneld, func(c *cluster) error {
			if *programs != "" {
				return c.kubernetes(*programs, *reference, *dist)
			}
			return c.trial()
		}))
		return
	}
	if reason := missing(*flanneld, *programs, *reference); reason != "" {
		fmt.Println("SKIPPED: nodes:", reason)
		if *require {
			fail(errors.New("-require: nothing may be missing"))
		}
		return
	}
	_, err := os.Stat(*bin)
	fail(err)
	os.Exit(sandbox())
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "nodes:", err)
		os.Exit(1)
	}
}

// missing returns what this machine lacks to run nodes; "": nothing.
func missing(flanneld, kubernetes, reference string) string {
	if os.Geteuid() != 0 {
		return "nodes need root: try sudo"
	}
	var programs, packages []string
	all := needed
	if kubernetes != "" {
		all = append(all, kubeNeeded...)
	}
	for _, n := range all {
		if _, err := exec.LookPath(n.program); err != nil {
			programs, packages = append(programs, n.program), append(packages, n.pkg)
		}
	}
	if len(programs) > 0 {
		return fmt.Sprintf("no %s here: apt-get install %s", strings.Join(programs, ", "), strings.Join(packages, " "))
	}
	if _, err := os.Stat(flanneld); err != nil {
		return "no flanneld here: `make flanneld` builds it, -flanneld names it"
	}
	if kubernetes != "" {
		for _, name := range kubePrograms {
			if _, err := os.Stat(filepath.Join(kubernetes, name)); err != nil {
				return fmt.Sprintf("no %s here: `make kubernetes` builds it", name)
			}
		}
		for _, name := range referencePlugins {
			if _, err := os.Stat(filepath.Join(reference, name)); err != nil {
				return fmt.Sprintf("no reference plugin %s here: `make reference` builds it", name)
			}
		}
	}
	probe := `ip link add vx0 type vxlan id 1 dstport 8472 local 127.0.0.1 && ip link add br0 type bridge && ip link add v0 type veth peer name v1`
	if out, err := exec.Command("unshare", "--net", "sh", "-c", probe).CombinedOutput(); err != nil {
		return fmt.Sprintf("this kernel makes no vxlan, bridge or veth link (CONFIG_VXLAN, CONFIG_BRIDGE, CONFIG_VETH): %s", strings.TrimSpace(string(out)))
	}
	return ""
}

// sandbox runs this program as the first process of new namespaces, and returns its exit code.
func sandbox() int {
	groups.RemoveOldCgroups(cgroupPrefix)
	group := fmt.Sprint(cgroupPrefix, os.Getpid())
	defer groups.RemoveCgroup(group)
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), sandboxVar+"=1", cgroupVar+"=/"+group)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	err := cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1)
	}
	fail(err)
	return 0
}

// inside runs the trial in the sandbox. An error has the logs and the state of both nodes.
func inside(bin, flanneld string, trial func(*cluster) error) error {
	if os.Getpid() != 1 {
		return fmt.Errorf("%s is set, but this is not the first process of a sandbox", sandboxVar)
	}
	if err := setupMounts(); err != nil {
		return err
	}
	c, err := newCluster(bin, flanneld)
	if err == nil {
		err = trial(c)
	}
	if err != nil {
		fmt.Fprint(os.Stderr, c.report())
		fmt.Println("nodes: FAIL")
		return err
	}
	c.stop()
	fmt.Printf("nodes: PASS: %d things proven\n", c.proven)
	return nil
}

// setupMounts mounts an empty /run, and /proc of the new PID namespace.
func setupMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	for _, m := range []struct{ kind, on string }{{"tmpfs", "/run"}, {"proc", "/proc"}} {
		if err := unix.Mount(m.kind, m.on, m.kind, unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.on, err)
		}
	}
	return os.MkdirAll(work, 0o755)
}
