package applets_test

import (
	"slices"
	"testing"

	"github.com/cnibox/cnibox/applets"
)

// The kernel starts the program of a #! line with the path of the file before the arguments.
func TestCalled(t *testing.T) {
	for _, tt := range []struct {
		argv []string
		name string
		args []string
	}{
		{nil, "", nil},
		{[]string{"/opt/cni/bin/bridge"}, "/opt/cni/bin/bridge", []string{}},
		{[]string{"/opt/cni/bin/cnibox", "/opt/cni/bin/bridge"}, "/opt/cni/bin/bridge", []string{}},
		{[]string{"/opt/cni/bin/cnibox", "./cni-exec", "add", "net"}, "./cni-exec", []string{"add", "net"}},
		{[]string{"/usr/lib/cni/cnibox", "/opt/cni/bin/cnibox", "verify", "/opt/cni/bin"}, "/opt/cni/bin/cnibox", []string{"verify", "/opt/cni/bin"}},
		{[]string{"/opt/cni/bin/cnibox", "/x/buildkit-cni-host-local"}, "/x/buildkit-cni-host-local", []string{}},
		{[]string{"/root/cnibox-arm64.bin", "bridge"}, "bridge", []string{}}, // execvp with a PATH that has the current directory
		{[]string{"/opt/cni/bin/cnibox", "bridge"}, "/opt/cni/bin/cnibox", []string{"bridge"}},
		{[]string{"/opt/cni/bin/cnibox", "/x/other"}, "/opt/cni/bin/cnibox", []string{"/x/other"}},
		{[]string{"/opt/cni/bin/dhcp", "daemon"}, "/opt/cni/bin/dhcp", []string{"daemon"}},
		{[]string{"/opt/cni/bin/cni-exec", "/x/bridge"}, "/opt/cni/bin/cni-exec", []string{"/x/bridge"}},
	} {
		if name, args := applets.Called(tt.argv); name != tt.name || !slices.Equal(args, tt.args) {
			t.Errorf("%q: %q %q, want %q %q", tt.argv, name, args, tt.name, tt.args)
		}
	}
}
