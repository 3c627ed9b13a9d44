package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/test/sandbox"
)

// Directories in the sandbox's /run, which is a tmpfs.
const (
	work    = "/run/power"
	binDir  = work + "/bin"
	confDir = work + "/net.d"
	bootID  = work + "/boot_id"
	mounted = work + "/mnt"       // the disk
	state   = mounted + "/cni"    // of all verbs
	leases  = state + "/networks" // of host-local
	pins    = "/run/netns"        // of containers
	ifName  = "eth0"              // of all attachments
	hosts   = 5                   // IPv4 addresses of a network, without its gateway
	limit   = 2 * time.Minute     // for one verb, which takes some 20 ms
	kept    = "kept"              // network whose leases are kept across boots
	loose   = "loose"             // the other one
	full    = "no IP addresses available"
)

var networks = []string{kept, loose}

// plugins are the plugins of the networks' lists. Those after the first have records on the disk.
var plugins = map[string]string{
	kept: `[{"type":"bridge","bridge":"kept0","isDefaultGateway":true,
 "ipam":{"type":"host-local","keepAcrossBoots":true,"subnet":"10.91.0.0/29"}}]`,
	loose: `[{"type":"bridge","bridge":"loose0","isDefaultGateway":true,
 "ipam":{"type":"host-local","ranges":[[{"subnet":"10.92.0.0/29"}],[{"subnet":"fd00:92::/125"}]]}},
 {"type":"portmap","capabilities":{"portMappings":true}},{"type":"tuning","mtu":1400}]`,
}

// single is the configuration by which another runtime calls the first plugin of a network.
func single(network string) string {
	var list []map[string]any
	if err := json.Unmarshal([]byte(plugins[network]), &list); err != nil {
		panic(err)
	}
	list[0]["cniVersion"], list[0]["name"] = "1.1.0", network
	doc, err := json.Marshal(list[0])
	if err != nil {
		panic(err)
	}
	return string(doc)
}

// install makes the files that all boots share.
func install(bin string) error {
	for _, dir := range []string{binDir, confDir, mounted} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for name, list := range plugins {
		doc := fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"plugins":%s}`, name, list)
		if err := os.WriteFile(filepath.Join(confDir, name+".conflist"), []byte(doc), 0o644); err != nil {
			return err
		}
	}
	if err := os.WriteFile(bootID, nil, 0o644); err != nil {
		return err
	}
	if err := unix.Mount(bootID, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount over the boot ID: %w", err)
	}
	// As in ip-netns(8), before the first namespace: otherwise that one would be mounted twice.
	for _, flags := range []uintptr{unix.MS_BIND | unix.MS_REC, unix.MS_SHARED | unix.MS_REC} {
		if err := unix.Mount(pins, pins, "", flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", pins, err)
		}
	}
	_, err := command(bin, "install", binDir)
	return err
}

// command runs a program, and returns its stdout. The error has its output.
func command(argv ...string) (string, error) { return feed("", nil, argv...) }

func feed(stdin string, env []string, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var out, diag strings.Builder
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = append(env, "PATH="+os.Getenv("PATH")), strings.NewReader(stdin), &out, &diag
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(out.String()+diag.String()))
	}
	return out.String(), nil
}

// A world is one boot of the machine, with new network namespaces. It is not a test, so it has no
// applettest.Host.
type world struct {
	host *sandbox.NetNS
}

// boots counts the boots of this run, since each needs its own boot ID.
var boots int

// boot begins a boot, with an empty /run.
func boot() (*world, error) {
	boots++
	id := fmt.Sprintf("00000000-0000-4000-8000-%012d\n", boots)
	if err := os.WriteFile(bootID, []byte(id), 0o644); err != nil {
		return nil, err
	}
	for _, dir := range []string{"/run/cni", "/run/cnibox"} {
		if err := os.RemoveAll(dir); err != nil {
			return nil, err
		}
	}
	host, err := sandbox.NewNetNS(fmt.Sprintf("host%d", boots))
	return &world{host}, err
}

// end ends a boot: no verb is called, and no namespace is left.
func (w *world) end() error {
	w.host.Close()
	names, err := os.ReadDir(pins)
	for _, name := range names {
		err = errors.Join(err, unpin(name.Name()))
	}
	return err
}

// unpin deletes a namespace, which may be gone.
func unpin(name string) error {
	path := filepath.Join(pins, name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// run runs a program of cnibox on the host.
func (w *world) run(stdin string, env []string, argv ...string) (out string, err error) {
	err = w.host.Do(func() (err error) {
		out, err = feed(stdin, append(env, "CNIBOX_STATE="+state, "NETCONFPATH="+confDir), append([]string{filepath.Join(binDir, argv[0])}, argv[1:]...)...)
		return err
	})
	return out, err
}

func (w *world) cni(args ...string) (string, error) {
	return w.run("", nil, append([]string{"cni-exec"}, args...)...)
}

// plugin calls the first plugin of a network, as another runtime does.
func (w *world) plugin(verb, network, id, netns string) (string, error) {
	return w.run(single(network), []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id, "CNI_IFNAME=" + ifName, "CNI_NETNS=" + netns}, "bridge")
}

// foreign reports whether another runtime attached the container; it has no cache entry.
func foreign(id string) bool { return strings.HasPrefix(id, "other") }

// add attaches a container, and returns its addresses.
func (w *world) add(network, id string, args ...string) ([]netip.Addr, error) {
	var out string
	var err error
	if foreign(id) {
		ns, nerr := sandbox.NewNetNS(id)
		if nerr != nil {
			return nil, nerr
		}
		ns.Close()
		out, err = w.plugin("ADD", network, id, ns.Path)
	} else {
		out, err = w.cni(append([]string{"add", "--create", "--container-id", id, network, id}, args...)...)
	}
	if err != nil {
		return nil, errors.Join(err, unpin(id))
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil || len(result.IPs) == 0 {
		return nil, fmt.Errorf("add %s %s printed %q: %w", network, id, out, err)
	}
	var addrs []netip.Addr
	for _, ip := range result.IPs {
		addrs = append(addrs, ip.Address.Addr())
	}
	return addrs, nil
}

// del detaches a container, whose namespace may be gone.
func (w *world) del(network, id string) error {
	var err error
	if foreign(id) {
		netns := filepath.Join(pins, id)
		if _, serr := os.Stat(netns); serr != nil {
			netns = ""
		}
		_, err = w.plugin("DEL", network, id, netns)
	} else {
		_, err = w.cni("del", "--container-id", id, network, id)
	}
	return errors.Join(err, unpin(id))
}

// An entry is an attachment in the cache, as ls prints it.
type entry struct {
	Network, ContainerID, State string
	Addresses                   []netip.Prefix
}

// ls lists the cache.
func (w *world) ls() ([]entry, error) {
	out, err := w.cni("ls", "-o", "json")
	if err != nil && !incomplete(err) {
		return nil, err
	}
	var doc struct{ Attachments []entry }
	err = json.Unmarshal([]byte(out), &doc)
	return doc.Attachments, err
}

// incomplete reports whether the error is the exit code of an answer without the entries whose writes were lost.
func incomplete(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() == 3
}

// bootVerb runs cni-exec reload, as at the boot, and returns the attachments that it has deleted.
func (w *world) bootVerb() ([]entry, error) {
	out, err := w.cni("reload", "-o", "json")
	if err != nil && !incomplete(err) {
		return nil, err
	}
	var doc struct{ Deleted []entry }
	err = json.Unmarshal([]byte(out), &doc)
	return doc.Deleted, err
}

// links returns the names of the links on the host without lo.
func (w *world) links() ([]string, error) {
	c, err := rtnl.Dial(w.host.NS)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	all, err := c.Links()
	var names []string
	for _, l := range all {
		if l.Name != "lo" {
			names = append(names, l.Name)
		}
	}
	return names, err
}

// leased returns the leases of a network that have an owner.
func leased(network string) (map[netip.Addr]string, error) {
	dir := filepath.Join(leases, network)
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	owners := map[netip.Addr]string{}
	for _, f := range files {
		a, err := netip.ParseAddr(f.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, err
		}
		if owner := strings.Trim(string(text), "\x00"); owner != "" {
			owners[a] = owner
		}
	}
	return owners, nil
}

// left returns the files of attachments in the state directory, without quarantined ones.
func left() ([]string, error) {
	var names []string
	err := filepath.WalkDir(state, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() && d.Name() != "quarantine" && path != filepath.Join(state, "cnibox") {
			return err
		}
		if d.IsDir() {
			return filepath.SkipDir
		}
		if d.Name() != "lock" && !strings.HasPrefix(d.Name(), "last_reserved_ip.") {
			names = append(names, strings.TrimPrefix(path, state+"/"))
		}
		return nil
	})
	return slices.Clip(names), err
}
