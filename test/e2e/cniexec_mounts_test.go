package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
)

// mounted runs the command by cni-exec run, in a mount namespace that prepare has changed.
func (r *runner) mounted(prepare func() error, flags []string, command ...string) (stdout, stderr string, err error) {
	r.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(r.Path("bin/cni-exec"), append(append([]string{"run", "--cache-dir", r.Path("cni")}, flags...), append([]string{"--"}, command...)...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.Dir, &out, &errs
	err = netns.OnDiscardedThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
			return err
		}
		if err := prepare(); err != nil {
			return err
		}
		if err := r.NS.Enter(); err != nil {
			return err
		}
		return cmd.Start()
	})
	if err == nil {
		err = cmd.Wait()
	}
	return out.String(), errs.String(), err
}

func (r *runner) file(name, text string) string {
	r.Helper()
	path := r.Path(name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.Fatal(err)
	}
	return path
}

// bind includes submounts (MS_REC): a user namespace must not uncover what is below them.
func bind(from, to string) error { return unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, "") }

// The command of run sees the links of its network namespace in /sys, and the host's mounts below
// /sys.
func TestKernelRunSysfs(t *testing.T) {
	kerneltest.Slow(t)
	r := newRunner(t)
	mount := func() error {
		if err := unix.Mount("tmpfs", "/sys/kernel", "tmpfs", 0, "size=64k"); err != nil {
			return err
		}
		return os.WriteFile("/sys/kernel/mark", nil, 0o600)
	}
	out, stderr, err := r.mounted(mount, []string{"--conf-dir", r.Path("none")},
		"sh", "-c", "echo $(ls /sys/class/net); cat /sys/class/net/eth0/type; echo $(ls /sys/kernel)")
	if want := "eth0 lo\n1\nmark\n"; err != nil || out != want {
		t.Errorf("got %q, want %q: %v\n%s", out, want, err, stderr)
	}
	if strings.Contains(stderr, "/sys") {
		t.Errorf("stderr: %s", stderr)
	}
	r.clean()
}

// run needs no writable directory but the cache.
func TestKernelRunReadOnlyTmp(t *testing.T) {
	kerneltest.Slow(t)
	r := newRunner(t)
	conf := r.file("resolv.conf", "nameserver 192.0.2.53\n")
	prepare := func() error {
		if err := bind(conf, "/etc/resolv.conf"); err != nil {
			return err
		}
		cache := r.Path("cni")
		if err := os.Mkdir(cache, 0o700); err != nil {
			return err
		}
		for _, dir := range []string{os.TempDir(), cache} {
			if err := bind(dir, dir); err != nil {
				return err
			}
		}
		return unix.Mount("", os.TempDir(), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	out, stderr, err := r.mounted(prepare, []string{"--conf-dir", r.Path("none")}, "cat", "/etc/resolv.conf")
	if err != nil || out != "nameserver 192.0.2.53\n" || strings.Contains(stderr, "resolv.conf") {
		t.Errorf("got %q, %v\n%s", out, err, stderr)
	}
}

// run works on a host without the files that it replaces for the command, as in an initramfs.
func TestKernelRunWithoutEtcFiles(t *testing.T) {
	kerneltest.Slow(t)
	r := newRunner(t)
	prepare := func() error { return unix.Mount("tmpfs", "/etc", "tmpfs", 0, "size=64k") }
	out, stderr, err := r.mounted(prepare, []string{"--conf-dir", r.Path("none"), "--name", "bare", "--dns", "192.0.2.53"}, "hostname")
	if err != nil || out != "bare\n" || !strings.Contains(stderr, "touch /etc/resolv.conf") || !strings.Contains(stderr, "touch /etc/hosts") {
		t.Errorf("got %q, %v\n%s", out, err, stderr)
	}
	r.clean()
}

// If the host's resolvers listen on loopback, where the command cannot reach them, the command gets
// the upstream resolvers.
func TestKernelRunResolvers(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	const (
		stub   = "nameserver 127.0.0.53\noptions edns0\nsearch example.org\n"
		behind = "nameserver 192.0.2.1\nnameserver 2001:db8::1\nsearch example.org\n"
		mixed  = "nameserver 127.0.0.1\nnameserver ::1\nnameserver ::ffff:127.0.0.1\nnameserver 192.0.2.9\nsearch example.org\n"
		plain  = "# mine\nnameserver 192.0.2.7\nsearch example.org\n"
	)
	tests := map[string]struct {
		host, upstream string
		embedded, bare string // resolvers on the default network, and on one without DNS
		warning        string
	}{
		"systemd-resolved": {stub, behind, "nameserver 192.0.2.1\nnameserver 2001:db8::1\nsearch example.org\n", behind, ""},
		"mixed":            {mixed, "", "nameserver 192.0.2.9\nsearch example.org\n", "nameserver 192.0.2.9\nsearch example.org\n", ""},
		"stub alone":       {stub, "", "options edns0\nsearch example.org\n", "options edns0\nsearch example.org\n", "the command has no name server"},
		"both stubs":       {stub, stub, "options edns0\nsearch example.org\n", "options edns0\nsearch example.org\n", "the command has no name server"},
		"none on loopback": {plain, behind, "nameserver 192.0.2.7\nsearch example.org\n", plain, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRunner(t)
			if err := os.Mkdir(r.Path("net.d"), 0o700); err != nil {
				t.Fatal(err)
			}
			r.file("net.d/bare.conflist", `{"cniVersion":"1.1.0","name":"bare","plugins":[{"type":"bridge","bridge":"br0"}]}`)
			host := r.file("host", tt.host)
			prepare := func() error {
				if err := bind(host, "/etc/resolv.conf"); err != nil {
					return err
				}
				if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil || tt.upstream == "" {
					return err
				}
				if err := os.MkdirAll("/run/systemd/resolve", 0o755); err != nil {
					return err
				}
				return os.WriteFile("/run/systemd/resolve/resolv.conf", []byte(tt.upstream), 0o644)
			}
			for dir, want := range map[string]string{"none": tt.embedded, "net.d": tt.bare} {
				out, stderr, err := r.mounted(prepare, []string{"--conf-dir", r.Path(dir)}, "cat", "/etc/resolv.conf")
				if err != nil || out != want {
					t.Errorf("%s: got %q, want %q: %v\n%s", dir, out, want, err, stderr)
				}
				if warned := strings.Contains(stderr, "name server"); warned != (tt.warning != "") || !strings.Contains(stderr, tt.warning) {
					t.Errorf("%s: stderr: %s", dir, stderr)
				}
			}
		})
	}
}
