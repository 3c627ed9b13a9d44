package tap

import (
	"bytes"
	"testing"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
)

// The arguments with which the plugin re-executes itself, in the SELinux context, are parsed to the
// same values.
func TestKernelTapReexecArguments(t *testing.T) {
	kerneltest.Need(t, "CONFIG_TUN", rtnl.ProbeTap)
	ns := kerneltest.NS(t)
	a := &Applet
	again := func(args []string) (code int, text string) {
		var stderr bytes.Buffer
		err := ns.Do(func() error {
			code = a.Run(t.Context(), applet.Process{Args: args, Getenv: func(string) string { return "" }, Stderr: &stderr})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return code, stderr.String()
	}
	c := plugin{MultiQueue: true, Owner: new(uint32(107)), Group: new(uint32(4294967294))}
	args := c.reexec("eth0")[1:]
	if code, text := again(args); code != 0 {
		t.Fatal(text)
	}
	l, err := kerneltest.Dial(t, ns).Link("eth0")
	if err != nil || l.Kind != "tun" {
		t.Fatalf("%+v, %v", l, err)
	}
	if code, text := again(args); code != 1 || text != "tap: tap add eth0: file exists\n" {
		t.Errorf("a second time: %d %q", code, text)
	}
	if code, _ := again(args[:3]); code != 1 {
		t.Errorf("too few arguments: %d", code)
	}
}
