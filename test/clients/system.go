package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/cnibox/cnibox/test/sandbox"
)

// systemEnter makes the system the root of a process, which other commands enter. State is shared
// with this host, where the trials look for what is left.
const systemEnter = `set -e
mount --bind "$1" "$1"
mount -o remount,bind,suid,dev "$1"
cd "$1"
mkdir -p old var/lib/containers var/lib/cni /var/lib/cni /run/cnibox
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mkdir run/cnibox
mount --bind /run/cnibox run/cnibox
mount --bind /var/lib/cni var/lib/cni
mount -t tmpfs tmpfs dev
mkdir dev/net dev/pts dev/shm dev/mqueue
while read name major minor; do mknod -m 666 dev/$name c $major $minor; done <<END
null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
tty 5 0
net/tun 10 200
END
chmod 1777 dev/shm
mount -t devpts devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs tmpfs var/lib/containers
mkdir -p run/user/1000 home/user
chown 1000:1000 run/user/1000 home/user
echo user:x:1000:1000::/home/user:/bin/sh >>etc/passwd
echo user:x:1000: >>etc/group
echo user:100000:65536 | tee etc/subuid >etc/subgid
pivot_root . old
exec chroot . sh -c 'umount -l /old && touch /run/ready && exec sleep infinity'
`

// A system is a Debian in a root directory of its own, on the network of the host.
type system struct {
	*host
	pid int // of the process whose root it is
}

// enter starts a process whose root the system is, until ctx ends.
func (s *system) enter(ctx context.Context, root string) error {
	inside := exec.CommandContext(ctx, "unshare", "-m", "sh", "-c", systemEnter, "sh", root)
	inside.Stderr = os.Stderr
	inside.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := inside.Start(); err != nil {
		return err
	}
	s.pid = inside.Process.Pid
	return eventually(func() error { _, err := s.inside("test", "-e", "/run/ready"); return err })
}

// inside runs a command in the system.
func (s *system) inside(args ...string) (string, error) {
	return s.insideAs("/root", args...)
}

// insideAs runs a command in the system with a home directory.
func (s *system) insideAs(home string, args ...string) (string, error) {
	argv := append([]string{"nsenter", "--mount", "--root", "--wd", "--target", fmt.Sprint(s.pid)}, args...)
	env := []string{"PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + home, "XDG_RUNTIME_DIR=/run/user/1000"}
	out, _, err := sandbox.Call{Argv: argv, Env: env}.Run()
	return strings.TrimSpace(string(out)), err
}
