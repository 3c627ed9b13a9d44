package cniexec

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// external is a plugin that cni-exec knows only by what it reports.
var external = applet.Applet{Name: "wormhole", Plugin: func() spec.Plugin {
	return spec.Plugin{
		Facts:    spec.Facts{Interface: true, Publishes: true},
		Validate: func(*spec.Request) (spec.Resources, error) { return spec.Resources{Link: "bridge9"}, nil },
		Holds: func(_ context.Context, r *spec.Request) ([]spec.Holding, error) {
			return []spec.Holding{
				{Kind: spec.KindHostLink, Text: "host side worm0 on lo", Data: spec.HostLink{Name: "worm0", Parent: "lo"}},
				{Kind: spec.KindPort, Text: "tcp port 9999", Data: spec.Port{HostPort: 9999, ContainerPort: 99, Protocol: "tcp"}},
				{Kind: spec.KindMACGuard, Text: "worm0 sends from 02:00:00:00:00:99 alone", Data: spec.MACGuard{Link: "worm0", MAC: "02:00:00:00:00:99"}},
				{Kind: "colour", Text: "painted blue", Data: r.ContainerID},
			}, nil
		},
	}
}}

// The resources that a plugin reports are in ls, show, who and tree, also of an unknown plugin.
func TestHoldsOfUnknownPlugin(t *testing.T) {
	kerneltest.Native(t)
	f := newFixture(t)
	netns := f.netns("ns")
	f.write(chain.Entry{NetworkName: "deep", ContainerID: "c1", IfName: "eth0", NetNS: netns,
		Config: []byte(`{"cniVersion":"1.0.0","name":"deep","plugins":[{"type":"wormhole"}]}`),
		Result: []byte(`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"` + netns + `"}],"ips":[{"address":"10.5.0.2/24","interface":0}]}`)})
	conf := filepath.Join(f.dir, "net.d")
	if err := os.MkdirAll(conf, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"ls"}, `(?m)^deep +c1 +eth0 +10\.5\.0\.2 +- +worm0 +9999:99 +.* alive$`},
		{[]string{"ls", "-o", "wide"}, `(?m)^NETWORK .* HOLDS .*\n.* 9999:99 .* worm0 sends from 02:00:00:00:00:99 alone; painted blue `},
		{[]string{"ls", "-o", "json"}, `"plugin": "wormhole",\s+"kind": "colour",\s+"text": "painted blue",\s+"data": "c1"`},
		{[]string{"ls", "networks"}, `(?m)^deep +wormhole +bridge9 `},
		{[]string{"show", "c1"}, `(?m)^host side +worm0 on lo$\n^ports +9999/tcp -> 99$`},
		{[]string{"show", "c1"}, `(?m)^holds +wormhole: tcp port 9999$\n^ +wormhole: worm0 sends from 02:00:00:00:00:99 alone$\n^ +wormhole: painted blue$`},
		{[]string{"show", "c1", "-o", "json"}, `"data": {\s+"name": "worm0",\s+"master": "",\s+"parent": "lo"\s+}`},
		{[]string{"show", "tcp/9999"}, `^c1 +eth0 on network deep `},
		{[]string{"show", "worm0"}, `^c1 +eth0 on network deep `},
		{[]string{"tree"}, `(?m)^lo  .*\n\W+ worm0  c1  eth0  10\.5\.0\.2  9999:99$`},
		{[]string{"tree", "--dot"}, `"link lo" -- "netns [^"]*" \[label="worm0 - eth0\\n10\.5\.0\.2\\n9999:99"\];`},
	} {
		var out, stderr bytes.Buffer
		exit := run(t.Context(), applet.Process{
			Args:    append(tt.args, "--cache-dir", f.dir, "--conf-dir", conf),
			Applets: applet.Table{&external}, Getenv: noEnv, Stdout: &out, Stderr: &stderr,
		})
		if exit != exitOK || !regexp.MustCompile(tt.want).MatchString(out.String()) {
			t.Errorf("%v: exit code %d, want %s, got\n%s%s", tt.args, exit, tt.want, &out, &stderr)
		}
	}
}
