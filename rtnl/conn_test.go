package rtnl_test

import (
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
)

// Every socket reports the same cookie for a namespace. Kernels before 5.14 have none.
func TestKernelConnNSCookie(t *testing.T) {
	seen := map[uint64]bool{}
	for range 2 {
		ns := kerneltest.NS(t)
		a, err := kerneltest.Dial(t, ns).NSCookie()
		if err != nil {
			t.Fatal(err)
		}
		if b, err := kerneltest.Dial(t, ns).NSCookie(); err != nil || b != a {
			t.Errorf("another socket: %d, %v, want %d", b, err, a)
		}
		if seen[a] && a != 0 {
			t.Errorf("two namespaces have the cookie %d", a)
		}
		seen[a] = true
	}
	if seen[0] {
		t.Log("this kernel reports no cookies")
	}
}
