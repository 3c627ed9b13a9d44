package sandbox

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/spec"
)

// A commandEnv is the environment of a command in addition to the namespace.
type commandEnv struct {
	dns     spec.DNS // of its networks; empty: the host's
	servers []string // name servers in place of those of dns; nil: none
	name    string   // of the run, which is its host name; empty: that of the host
	hosts   string   // with a name: the file that is mounted on /etc/hosts
	others  string   // without a name: the text of /etc/hosts; empty: that of the host
	warn    func(format string, args ...any)
}

// mount moves the calling thread, and so the command that it starts, into a new mount namespace
// with /sys and /etc/resolv.conf for its network. If a mount fails, the host's stays, with a
// warning.
//
// It is called in the network namespace of the command, on a thread that ends with the command.
func (s *commandEnv) mount() {
	err := os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWNS))
	if err == nil {
		// slave: mounts of the host are propagated, ours are not
		err = os.NewSyscallError("mount", unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""))
	}
	if err != nil {
		s.warn("the command sees the host's /sys and /etc/resolv.conf: %v", err)
		return
	}
	if text, ok := s.resolvers(); ok {
		if err := coverFile(etcResolvConf, text); err != nil {
			s.warnUncovered(etcResolvConf, etcResolvConf, err)
		}
	}
	switch {
	case s.name != "":
		if err := s.mountName(); err != nil {
			s.warnUncovered("name and "+etcHosts, etcHosts, err)
		}
	case s.others != "":
		if err := coverFile(etcHosts, s.others); err != nil {
			s.warnUncovered(etcHosts, etcHosts, err)
		}
	}
	if err := mountSysfs(); err != nil {
		s.warn("the command sees the host's /sys: %v", err)
	}
}

// warnUncovered warns that the command sees the host's file, since a mount has failed.
func (s *commandEnv) warnUncovered(what, file string, err error) {
	if errors.Is(err, os.ErrNotExist) {
		s.warn("the command has no %s: the host has none to mount another one on (touch %[1]s)", file)
		return
	}
	s.warn("the command sees the host's %s: %v", what, err)
}

// mountName gives the calling thread its own host name, and the /etc/hosts of the run.
func (s *commandEnv) mountName() error {
	err := os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWUTS))
	if err == nil {
		err = os.NewSyscallError("sethostname", unix.Sethostname([]byte(s.name)))
	}
	if err == nil {
		err = os.NewSyscallError("mount", unix.Mount(s.hosts, etcHosts, "", unix.MS_BIND, ""))
	}
	return err
}

const (
	etcResolvConf = "/etc/resolv.conf"
	// the servers of systemd-resolved, whose stub listens on loopback
	upstreamResolvConf = "/run/systemd/resolve/resolv.conf"
)

// resolvers returns the text of /etc/resolv.conf for the command; false: the host's file is used.
// Name servers of the networks come first, then those of systemd-resolved, then those of the host
// that are not on loopback.
func (s *commandEnv) resolvers() (text string, ok bool) {
	d := s.dns
	if len(s.servers) > 0 {
		d.Nameservers = s.servers
		return resolvText(d), true
	}
	if d.Nameservers = slices.DeleteFunc(slices.Clone(d.Nameservers), onLoopback); len(d.Nameservers) > 0 {
		return resolvText(d), true
	}
	b, err := disk.Read(etcResolvConf, 0, record.MaxSize)
	if err != nil {
		return "", false
	}
	host := string(b)
	file := ResolvConf()
	if file == upstreamResolvConf {
		b, _ = disk.Read(file, 0, record.MaxSize) // ResolvConf has read it
	}
	if text = withoutLoopback(string(b)); text == host {
		return "", false
	}
	if file == "" {
		s.warn("the command has no name server: those of %s listen on the host's loopback", etcResolvConf)
	}
	return text, true
}

// ResolvConf returns the content of the host's file with name servers that a container can reach:
// resolv.conf, or that of systemd-resolved, whose stub listens on loopback. Empty: neither has any.
func ResolvConf() string {
	for _, file := range []string{etcResolvConf, upstreamResolvConf} {
		b, err := disk.Read(file, 0, record.MaxSize)
		if err == nil && Reachable(string(b)) {
			return file
		}
	}
	return ""
}

// Reachable reports whether a resolv.conf has a name server that is not on
// this host's loopback.
func Reachable(conf string) bool {
	for line := range strings.Lines(conf) {
		if server, ok := nameserver(line); ok && !onLoopback(server) {
			return true
		}
	}
	return false
}

// withoutLoopback removes the name servers on loopback.
func withoutLoopback(conf string) string {
	var b strings.Builder
	for line := range strings.Lines(conf) {
		if server, ok := nameserver(line); !ok || !onLoopback(server) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// nameserver returns the address in a line of resolv.conf(5); false: it is another line.
func nameserver(line string) (string, bool) {
	words := strings.Fields(line)
	if len(words) < 2 || words[0] != "nameserver" {
		return "", false
	}
	_, err := netip.ParseAddr(words[1])
	return words[1], err == nil
}

// onLoopback reports whether a name server is on this host; 0.0.0.0 means 127.0.0.1.
func onLoopback(server string) bool {
	a, err := netip.ParseAddr(server)
	return err == nil && (a.Unmap().IsLoopback() || a.Unmap().IsUnspecified())
}

// resolvText formats the result's DNS for resolv.conf(5), without the limits of libc.
func resolvText(d spec.DNS) string {
	var b strings.Builder
	for _, n := range d.Nameservers {
		b.WriteString("nameserver " + oneLine(n) + "\n")
	}
	if d.Domain != "" {
		b.WriteString("domain " + oneLine(d.Domain) + "\n")
	}
	for _, list := range []struct {
		key   string
		words []string
	}{{"search", d.Search}, {"options", d.Options}} {
		if len(list.words) > 0 {
			b.WriteString(list.key + " " + oneLine(strings.Join(list.words, " ")) + "\n")
		}
	}
	return b.String()
}

// oneLine removes newlines, so that a plugin cannot add lines.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// coverFile mounts text over a file, in the mount namespace of this thread. The text is in memory:
// no directory of the host has to be writable.
func coverFile(file, text string) error {
	// the mount point, until the file is bound
	if err := unix.Mount("tmpfs", sysDir, "tmpfs", sysMountFlags, "mode=755,size=64k"); err != nil {
		return os.NewSyscallError("mount", err)
	}
	defer unix.Unmount(sysDir, unix.MNT_DETACH)
	f, err := os.Create(sysDir + "/text")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.NewSyscallError("mount", unix.Mount(f.Name(), file, "", unix.MS_BIND, ""))
}

const (
	sysDir        = "/sys"
	sysMountFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
)

// mountSysfs mounts the sysfs of this thread's network namespace, with its links in /sys/class/net,
// over the host's. File systems mounted below that, such as cgroup, stay.
func mountSysfs() error {
	if _, err := os.Lstat(sysDir); errors.Is(err, os.ErrNotExist) {
		return nil // an initramfs may have none
	}
	below, err := mountsBelow(sysDir)
	if err != nil {
		return err
	}
	fds := make([]int, len(below))
	for i, dir := range below { // later only descriptors lead to them
		if fds[i], err = unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
			fds[i] = -1
			continue
		}
		defer unix.Close(fds[i])
	}
	flags := uintptr(sysMountFlags)
	var st unix.Statfs_t
	if unix.Statfs(sysDir, &st) == nil && st.Flags&unix.ST_RDONLY != 0 {
		flags |= unix.MS_RDONLY
	}
	if err := unix.Mount("sysfs", sysDir, "sysfs", flags, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	for i, dir := range below {
		if fds[i] >= 0 {
			// what cannot be bound is missing, as in ip netns exec
			unix.Mount(fmt.Sprintf("/proc/thread-self/fd/%d", fds[i]), dir, "", unix.MS_BIND|unix.MS_REC, "")
		}
	}
	return nil
}

// mountsBelow returns the topmost mount points below a directory, of this thread's mount
// namespace.
func mountsBelow(dir string) (below []string, err error) {
	mounts, err := disk.Mounts("")
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		within := func(above string) bool { return m.Point == above || strings.HasPrefix(m.Point, above+"/") }
		if m.Point != dir && within(dir) && !slices.ContainsFunc(below, within) {
			below = append(below, m.Point)
		}
	}
	return below, nil
}
