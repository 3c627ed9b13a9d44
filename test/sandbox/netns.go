package sandbox

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
)

// pins is the directory of named namespaces, as in ip-netns(8).
const pins = "/run/netns"

// A NetNS is a network namespace with a path that other processes can open.
type NetNS struct {
	*netns.NS
	Path string
}

// NewNetNS makes a network namespace with lo up and binds it to a file of that name, which must be
// free. It lives until [NetNS.Remove] or the end of the sandbox, also after an error.
func NewNetNS(name string) (*NetNS, error) {
	path := filepath.Join(pins, name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return nil, err
	}
	ns, err := kerneltest.NewNS()
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", name, err)
	}
	fd := fmt.Sprintf("/proc/self/fd/%d", ns.FD())
	if err := unix.Mount(fd, path, "", unix.MS_BIND, ""); err != nil {
		ns.Close()
		return nil, fmt.Errorf("pin %s: %w", path, err)
	}
	return &NetNS{NS: ns, Path: path}, loUp(ns)
}

// Remove removes the name. The kernel deletes the namespace and its links asynchronously.
func (n *NetNS) Remove() error {
	n.Close()
	if err := unix.Unmount(n.Path, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", n.Path, err)
	}
	return os.Remove(n.Path)
}
