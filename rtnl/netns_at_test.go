package rtnl_test

import (
	"testing"

	"cnibox/internal/kerneltest"
)

// A namespace is at each path that leads to it, and at no other.
func TestKernelNSAt(t *testing.T) {
	ns, other := kerneltest.NS(t), kerneltest.NS(t)
	for path, want := range map[string]bool{
		kerneltest.NSPath(t, ns): true, kerneltest.NSPath(t, ns) + "/.": false, kerneltest.NSPath(t, other): false, "": false, "/nowhere": false,
	} {
		if got := ns.At(path); got != want {
			t.Errorf("%q: %t", path, got)
		}
	}
}
