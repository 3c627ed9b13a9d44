package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/netns"
)

// Privileged returns an error that names the capabilities which this process lacks to create and
// attach network namespaces; it is os.ErrPermission.
func Privileged() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // this version has 64 bits
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil // the kernel reports what is missing
	}
	return missingPrivilege(data[0].Effective, foreignNetNS(), Sysctl)
}

// foreignNetNS reports whether the network namespace of this process belongs to a user namespace
// above its own, as after unshare -Ur without -n. Capabilities have no effect in it.
func foreignNetNS() bool {
	ns, err := netns.Current()
	if err != nil {
		return false
	}
	defer ns.Close()
	owner, err := unix.IoctlRetInt(ns.FD(), unix.NS_GET_USERNS)
	if err == nil {
		unix.Close(owner)
	}
	return errors.Is(err, unix.EPERM)
}

// missingPrivilege is Privileged for the first 32 capabilities.
func missingPrivilege(effective uint32, foreign bool, sysctl func(key string) string) error {
	var missing []string
	for _, c := range []struct {
		bit  int
		name string
	}{{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}} {
		if effective&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	if foreign {
		missing = append(missing, "a network namespace of this user namespace")
	}
	if len(missing) == 0 {
		return nil
	}
	advice := "or in a user namespace, with a network that ends there: unshare -Urnm cni-exec … --state-dir DIR"
	for _, off := range []struct{ key, value string }{
		{"user/max_user_namespaces", "0"}, {"kernel/unprivileged_userns_clone", "0"}, {"kernel/apparmor_restrict_unprivileged_userns", "1"},
	} {
		if sysctl(off.key) == off.value {
			advice = fmt.Sprintf("since %s=%s allows no user namespace", strings.ReplaceAll(off.key, "/", "."), off.value)
		}
	}
	return &hint.Error{Err: fmt.Errorf("%w: without %s: run it as root, %s", os.ErrPermission, strings.Join(missing, " and "), advice)}
}

// Sysctl reads a setting; empty: the kernel does not have it.
func Sysctl(key string) string {
	const longest = 32 // bytes of a number
	b, _ := disk.Read("/proc/sys/"+key, 0, longest)
	return strings.TrimSpace(string(b))
}
