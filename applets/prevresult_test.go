package applets_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets"
	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// The specification requires a prevResult for CHECK. Without it all plugins return the same error.
func TestCheckNeedsPrevResult(t *testing.T) {
	for _, a := range applets.All() {
		if a.Main != nil || a.Plugin().Check == nil {
			continue
		}
		code, out := applettest.AnswerIPAM(t, "CHECK", a.Name, "c1", `{"cniVersion":"1.1.0","name":"demo","type":"`+a.Name+`","ipam":{}}`, "")
		if code != spec.CodeConfig || !strings.Contains(out, "prevResult missing") {
			t.Errorf("%s: %d %s", a.Name, code, out)
		}
	}
}

// An empty prevResult is the result of no ADD. CHECK finds a fault with it in all plugins.
func TestKernelCheckOfEmptyPrevResult(t *testing.T) {
	eachConf(t, func(t *testing.T, plugin, bare string, _ bool) {
		s := newStage(t, plugin)
		c, conf := s.container("ctr", bare)
		out := s.Must(spec.Add, plugin, conf, c)
		s.Must(spec.Check, plugin, applettest.Prev(bare, out), c)
		s.Refuse(spec.CodeCheck, "", spec.Check, plugin, applettest.Prev(bare, `{}`), c)
	})
	h := applettest.NewHost(t)
	c := h.Container("c1")
	for plugin, conf := range map[string]string{
		"loopback":   `{"cniVersion":"1.1.0","name":"demo","type":"loopback"}`,
		"static":     `{"cniVersion":"1.1.0","name":"demo","type":"static","ipam":{"type":"static","addresses":[{"address":"10.1.0.2/24"}]}}`,
		"host-local": `{"cniVersion":"1.1.0","name":"demo","type":"host-local","ipam":{"type":"host-local","subnet":"10.1.0.0/24","dataDir":"$DIR"}}`,
	} {
		out := h.Must(spec.Add, plugin, conf, c)
		h.Must(spec.Check, plugin, applettest.Prev(conf, out), c)
		h.Refuse(spec.CodeCheck, "", spec.Check, plugin, applettest.Prev(conf, `{}`), c)
	}
}

// Plugins of others may name a gateway of another family. Who has no use for it passes it on; sbr refuses it.
func TestKernelForeignGatewayIsPassedOn(t *testing.T) {
	const gateway = "fd00::77"
	eachConf(t, func(t *testing.T, plugin, bare string, _ bool) {
		if applettest.Plugins[plugin].After == "" {
			return
		}
		s := newStage(t, plugin)
		c, conf := s.container("ctr", bare)
		mixed := strings.Replace(conf, `"gateway": "10.1.0.1"`, `"gateway": "`+gateway+`"`, 1)
		if mixed == conf {
			t.Skip("SKIPPED: the interface's result has no such gateway")
		}
		if plugin == "sbr" {
			s.Refuse(spec.CodeConfig, "gateway "+gateway+" is of another family", spec.Add, plugin, mixed, c)
			return
		}
		out := s.Must(spec.Add, plugin, mixed, c)
		if !strings.Contains(out, gateway) {
			t.Errorf("passed on: %s", out)
		}
		s.Must(spec.Check, plugin, applettest.Prev(bare, out), c)
		s.Must(spec.Del, plugin, mixed, c)
	})
}

// GET returns prevResult while all parts of the attachment exist. If the container is gone, it
// returns code 3 whatever prevResult has.
func TestKernelGetWithPrevResult(t *testing.T) {
	const alone = `{"cniVersion":"1.1.0","name":"demo","type":"host-local","ipam":{"type":"host-local","subnet":"10.1.0.0/24","dataDir":"$DIR"}}`
	bridge := strings.Replace(alone, `"type":"host-local"`, `"type":"bridge"`, 1)
	h := applettest.NewHost(t)
	p := h.Container("c1")
	lease := filepath.Join(h.Dir, "demo", "10.1.0.2")
	out := h.Must(spec.Add, "bridge", bridge, p)
	ours := applettest.Prev(alone, out)
	get := func(plugin, conf string, code int, text string) {
		t.Helper()
		if got, answer := h.Call(spec.Get, plugin, conf, p); got != code || !strings.Contains(answer, text) {
			t.Errorf("GET of %s: code %d, want %d and %q: %s", plugin, got, code, text, answer)
		}
	}
	both := func(code int, text string) {
		t.Helper()
		get("host-local", ours, code, text)
		get("bridge", applettest.Prev(bridge, out), code, text)
	}
	both(0, "10.1.0.2/24")
	get("host-local", strings.Replace(ours, "10.1.0.2/24", "10.1.0.9/24", 1), spec.CodeCheck, "10.1.0.9")
	moved := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	moved(lease, lease+"-aside")
	both(spec.CodeUnknown, "c1")
	moved(lease+"-aside", lease)

	network := filepath.Dir(lease)
	moved(network, network+"-aside")
	both(spec.CodeUnknown, "c1")
	if err := os.WriteFile(network, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	both(spec.CodeIO, "not a directory")
	if err := os.Remove(network); err != nil {
		t.Fatal(err)
	}
	moved(network+"-aside", network)

	if err := kerneltest.Dial(t, p.NS).DelLink("eth0"); err != nil {
		t.Fatal(err)
	}
	get("bridge", applettest.Prev(bridge, out), spec.CodeCheck, "eth0 of demo/c1/eth0 is gone")
	get("bridge", bridge, spec.CodeCheck, "its addresses are still leased: run DEL")
	get("host-local", ours, 0, "10.1.0.2/24") // the lease still exists

	get("loopback", applettest.Prev(`{"cniVersion":"1.1.0","name":"lo","type":"loopback"}`, out), 0, "10.1.0.2/24")
	h.Must(spec.Del, "loopback", `{"cniVersion":"1.1.0","name":"lo","type":"loopback"}`, p)
	get("loopback", applettest.Prev(`{"cniVersion":"1.1.0","name":"lo","type":"loopback"}`, out), spec.CodeUnknown, "lo is down")

	h.Must(spec.Del, "bridge", bridge, p)
	both(spec.CodeUnknown, "c1")
	get("portmap", applettest.Prev(`{"cniVersion":"1.1.0","name":"demo","type":"portmap"}`, out), spec.CodeUnknown, "eth0")
	p.Path = filepath.Join(h.Dir, "gone")
	for _, a := range applets.All() {
		if a.Main == nil && !a.Plugin().AnyNetNS {
			get(a.Name, applettest.Prev(`{"cniVersion":"1.1.0","name":"demo","type":"`+a.Name+`"}`, out), spec.CodeUnknown, "c1")
		}
	}
}

// GET of a chained plugin returns the result of ADD until DEL, even if the interface is gone. After
// DEL of all plugins the container is unknown.
func TestKernelGetAfterDel(t *testing.T) {
	eachConf(t, func(t *testing.T, plugin, bare string, _ bool) {
		if applettest.Plugins[plugin].After == "" {
			return
		}
		s := newStage(t, plugin)
		c, conf := s.container("ctr", bare)
		after := s.Plugin.After
		out := s.Must(spec.Add, plugin, conf, c)
		conf = applettest.Prev(bare, out)
		if got := s.Must(spec.Get, plugin, conf, c); got != out {
			t.Errorf("after ADD:\n%s\nwant:\n%s", got, out)
		}
		if err := kerneltest.Dial(t, c.NS).DelLink("eth0"); err != nil {
			t.Fatal(err)
		}
		if code, got := s.Call(spec.Get, plugin, conf, c); code == spec.CodeUnknown {
			t.Errorf("without the interface, before DEL: %s", got)
		}
		s.Must(spec.Del, plugin, bare, c)
		s.Must(spec.Del, after, makerConf(s.After), c)
		s.Refuse(spec.CodeUnknown, "", spec.Get, plugin, conf, c)
	})
}

// With an IPAM plugin that stores nothing, the interface shows whether the container is known.
func TestKernelGetWithStaticIPAM(t *testing.T) {
	const alone = `{"cniVersion":"1.1.0","name":"demo","type":"static","ipam":{"type":"static","addresses":[{"address":"10.1.0.2/24"}]}}`
	bridge := strings.Replace(alone, `"type":"static"`, `"type":"bridge"`, 1)
	h := applettest.NewHost(t)
	c := h.Container("c1")
	h.Refuse(spec.CodeUnknown, "eth0", spec.Get, "bridge", bridge, c)
	out := h.Must(spec.Add, "bridge", bridge, c)
	for plugin, conf := range map[string]string{"static": alone, "bridge": bridge} {
		for _, conf := range []string{conf, applettest.Prev(conf, out)} {
			if got := h.Must(spec.Get, plugin, conf, c); !strings.Contains(got, "10.1.0.2/24") {
				t.Errorf("GET of %s: %s", plugin, got)
			}
		}
	}
	h.Must(spec.Del, "bridge", bridge, c)
	h.Refuse(spec.CodeUnknown, "eth0", spec.Get, "static", applettest.Prev(alone, out), c)
	h.Refuse(spec.CodeUnknown, "eth0", spec.Get, "bridge", applettest.Prev(bridge, out), c)
	h.Refuse(spec.CodeUnknown, "eth0", spec.Get, "bridge", bridge, c)
}
