package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/spec"
)

const (
	etcHosts  = "/etc/hosts"
	hostsMark = " # cni-exec run" // ends our lines

	maxHostName = 64 // HOST_NAME_MAX, include/uapi/linux/utsname.h: __NEW_UTS_LEN
)

// CheckRunName returns an error for an invalid name of a run, which becomes the name of a namespace
// and of a host and, with its prefix, a container ID.
func CheckRunName(name string) error {
	if err := CheckNetNSName(name); err != nil {
		return err
	}
	if len(name) > maxHostName || spec.CheckContainerID(name) != nil {
		return fmt.Errorf("%q is not a valid host name: a letter or a digit, then also dots, dashes and underscores, at most %d", name, maxHostName)
	}
	return nil
}

// runsDir has a file for each named run of this cache. The file is the /etc/hosts of the command,
// and is locked by flock(2) while the run lives. It is changed under the lock of NetNSDir.
func (n Names) runsDir() string { return filepath.Join(n.Runner.Cache.Dir, "cnibox", "runs") }

// hostsFile is the file of a named run.
func (n Names) hostsFile(name string) string { return filepath.Join(n.runsDir(), name) }

// takeName gives a run its name: a file that stays locked until release or the end of the process,
// and the namespace in NetNSDir. The error of a name in use has code 100.
func (n Names) takeName(ctx context.Context, name string, ns *netns.NS) (release func(), err error) {
	unlock, err := lockNames(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := os.MkdirAll(n.runsDir(), 0o700); err != nil {
		return nil, spec.Errorf(spec.CodeIO, "%w", err)
	}
	path := filepath.Join(NetNSDir, name)
	if _, err := netns.IDAt(path); err == nil {
		return nil, spec.Errorf(spec.CodeBusy, "--name %s: there is a network namespace of this name, %s", name, path)
	}
	fd, err := tryLock(n.hostsFile(name), unix.O_CREAT)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, spec.Errorf(spec.CodeBusy, "--name %s is in use by a cni-exec run whose namespace was deleted", name)
	case err != nil:
		return nil, spec.Errorf(spec.CodeIO, "%w", err)
	}
	// despite the umask, since the command may run as another user
	if err := errors.Join(os.NewSyscallError("fchmod", unix.Fchmod(fd, 0o644)), bindNetNS(ns, path)); err != nil {
		return nil, errors.Join(err, disk.Remove(n.hostsFile(name)), unix.Close(fd))
	}
	return func() { unix.Close(fd) }, nil
}

// tryLock opens and locks the file of a run; it fails with EWOULDBLOCK for a live run.
func tryLock(file string, flags int) (fd int, err error) {
	fd, err = unix.Open(file, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|flags, 0o644)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: file, Err: err}
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		return -1, &os.PathError{Op: "lock", Path: file, Err: err}
	}
	return fd, nil
}

// freeName deletes the namespace and the file of a named run at its end, before release.
func (n Names) freeName(ctx context.Context, name string) error {
	unlock, err := lockNames(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := errors.Join(unbindNetNS(filepath.Join(NetNSDir, name)), disk.Remove(n.hostsFile(name))); err != nil {
		return err
	}
	return n.writeHosts()
}

// DeleteDead deletes the namespaces and files of named runs that were killed.
func (n Names) DeleteDead(ctx context.Context) error {
	if names, err := os.ReadDir(n.runsDir()); err != nil || len(names) == 0 {
		return nil // without named runs nothing is locked
	}
	unlock, err := lockNames(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	files, err := os.ReadDir(n.runsDir())
	errs := []error{err}
	for _, f := range files {
		_, err := n.freeDeadName(f.Name())
		errs = append(errs, err)
	}
	return errors.Join(append(errs, n.writeHosts())...)
}

// freeDeadName is DeleteDead for one name, if it is that of a killed run. The caller has the lock.
// It does not write the files of the other runs.
func (n Names) freeDeadName(name string) (freed bool, err error) {
	fd, err := tryLock(n.hostsFile(name), 0)
	if err != nil {
		return false, nil // it is alive, or has ended normally
	}
	defer unix.Close(fd)
	return true, errors.Join(unbindNetNS(filepath.Join(NetNSDir, name)), disk.Remove(n.hostsFile(name)))
}

// updateHosts is writeHosts after a run was attached.
func (n Names) updateHosts(ctx context.Context) error {
	unlock, err := lockNames(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return n.writeHosts()
}

// writeHosts writes the files of all named runs, in place, since they are mounted over the
// /etc/hosts of the commands. The caller has the lock.
func (n Names) writeHosts() error {
	files, err := os.ReadDir(n.runsDir())
	if err != nil {
		return err
	}
	entries, _, err := n.Runner.Cache.List()
	if err != nil {
		return err
	}
	runs := namedRuns(files, entries)
	host := hostsOfHost()
	var errs []error
	for _, r := range runs {
		errs = append(errs, overwrite(n.hostsFile(r.name), hostsText(r, runs, host)))
	}
	return errors.Join(errs...)
}

// hostsWithout returns the /etc/hosts of a run without a name, in an attached namespace, with the
// named runs that are on its networks now. Empty: there are none, and the host's file is used.
func (n Names) hostsWithout(ns *netns.NS) string {
	files, err := os.ReadDir(n.runsDir())
	if err != nil || len(files) == 0 {
		return ""
	}
	entries, _, err := n.Runner.Cache.List()
	if err != nil {
		return ""
	}
	self := addressesOf("", entries, func(e *chain.Entry) bool { return ns.IsAt(e.NetNSPath()) })
	host := hostsOfHost()
	if text := hostsText(self, namedRuns(files, entries), host); text != hostsText(self, nil, host) {
		return text
	}
	return ""
}

// hostsOfHost returns the host's /etc/hosts; an initramfs has none.
func hostsOfHost() string {
	host, _ := disk.Read(etcHosts, 0, record.MaxSize)
	return string(host)
}

// namedRuns returns the runs that have the files.
func namedRuns(files []os.DirEntry, entries []*chain.Entry) (runs []runAddresses) {
	for _, f := range files {
		matches := func(e *chain.Entry) bool { return e.ContainerID == chain.RunPrefix+f.Name() }
		runs = append(runs, addressesOf(f.Name(), entries, matches))
	}
	return runs
}

// The runAddresses are the addresses of a run, by network; the name may be empty.
type runAddresses struct {
	name     string
	networks map[string][]netip.Addr
}

// addressesOf reads the addresses of a run from its cache entries.
func addressesOf(name string, entries []*chain.Entry, its func(*chain.Entry) bool) runAddresses {
	r := runAddresses{name, make(map[string][]netip.Addr)}
	for _, e := range entries {
		if !its(e) || e.Interrupted() || !e.Live() {
			continue
		}
		addrs := []netip.Addr{} // a network without addresses counts too
		for _, ip := range e.BriefResult().IPs {
			addrs = append(addrs, ip.Address.Addr())
		}
		r.networks[e.NetworkName] = append(r.networks[e.NetworkName], addrs...)
	}
	return r
}

// hostsText returns the /etc/hosts of a run: itself, the others on its networks, and the content of
// the host's file, or localhost.
func hostsText(r runAddresses, all []runAddresses, host string) string {
	var own, others []string
	for _, o := range all {
		for network, addrs := range o.networks {
			if _, shared := r.networks[network]; !shared {
				continue
			}
			for _, a := range addrs {
				line := fmt.Sprintf("%s\t%s%s\n", a, o.name, hostsMark)
				if o.name == r.name {
					own = append(own, line)
				} else {
					others = append(others, line)
				}
			}
		}
	}
	slices.Sort(own)
	slices.Sort(others)
	if host == "" {
		host = "127.0.0.1\tlocalhost\n::1\tlocalhost\n"
	}
	text := strings.Join(append(own, others...), "")
	for line := range strings.Lines(host) {
		if !strings.HasSuffix(strings.TrimSpace(line), hostsMark) { // without the lines of a run that has started this one
			text += line
		}
	}
	return text
}

// overwrite replaces the content of a file in place. Readers never see a part of the text, unless
// it is longer than a page.
func overwrite(file, text string) error {
	return disk.Change("write "+filepath.Base(file), func() error {
		f, err := os.OpenFile(file, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt([]byte(text), 0)
		return errors.Join(err, f.Truncate(int64(len(text))), f.Close())
	})
}
