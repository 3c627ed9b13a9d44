package cniexec

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

// A requested address is passed through the capability that a plugin declares, otherwise in
// CNI_ARGS if a plugin reads it. It is an error if neither is possible.
func TestCapabilitiesBeforeCNIArgs(t *testing.T) {
	table := applet.Table{
		{Name: "maker", Plugin: func() spec.Plugin { return spec.Plugin{Facts: spec.Facts{Args: true}} }},
		{Name: "plain", Plugin: func() spec.Plugin { return spec.Plugin{} }},
		{Name: "giver", Plugin: func() spec.Plugin { return spec.Plugin{Facts: spec.Facts{IPAM: true, Args: true, ArgIP: true}} }},
		{Name: "leaser", Plugin: func() spec.Plugin { return spec.Plugin{Facts: spec.Facts{IPAM: true, Args: true}} }},
	}
	const (
		caps   = `{"type":"plain","capabilities":{"ips":true,"mac":true,"dns":true}}`
		args   = `{"type":"x-maker","ipam":{"type":"giver"}}`
		leases = `{"type":"maker","ipam":{"type":"leaser"}}`
		ports  = `{"type":"plain","capabilities":{"portMappings":true}}`
	)
	tests := map[string]struct {
		flags   string
		plugins []string // one for each of the networks a, b…
		want    string   // CNI_ARGS and capabilities of each network, or the prefix of the error
		code    int
	}{
		"capabilities":          {"--ip 10.0.0.2 --ip fd00::2/64 --mac 02:00:00:00:00:01", []string{caps}, `[] {"ips":["10.0.0.2","fd00::2/64"],"mac":"02:00:00:00:00:01"}`, 0},
		"CNI_ARGS":              {"--ip 10.0.0.2 --mac 02:00:00:00:00:01", []string{args}, `[[IP 10.0.0.2] [MAC 02:00:00:00:00:01]] null`, 0},
		"another network":       {"--ip b=10.0.0.2 --ip 10.0.0.3", []string{args, caps}, `[[IP 10.0.0.3]] null; [] {"ips":["10.0.0.2"]}`, 0},
		"dns":                   {"--dns 10.0.0.1", []string{args, caps}, `[] null; [] {"dns":{"servers":["10.0.0.1"]}}`, 0},
		"ports once":            {"-p 65533:1", []string{args, ports, ports}, `[] {"portMappings":[P]}; [] {"portMappings":[P]}; [] {}`, 0},
		"no capability":         {"--ip 10.0.0.2", []string{leases}, "--ip: no plugin", spec.CodeConfig},
		"no MAC":                {"--mac 02:00:00:00:00:01", []string{ports}, "--mac: no plugin", spec.CodeConfig},
		"two of CNI_ARGS":       {"--ip 10.0.0.2 --ip 10.0.0.3", []string{args}, "--ip: without a capability", spec.CodeConfig},
		"two MACs":              {"--mac 02:00:00:00:00:01 --mac 02:00:00:00:00:02", []string{caps}, "--mac: 02:00:00:00:00:01, 02:00:00:00:00:02 is more", spec.CodeEnv},
		"unknown network":       {"--ip x=10.0.0.2", []string{caps}, `x=10.0.0.2: this call attaches to no network "x"`, spec.CodeEnv},
		"only the second":       {"--ip b=10.0.0.2", []string{caps, leases}, "--ip: no plugin", spec.CodeConfig},
		"ports without portmap": {"-p 65533:1", []string{caps}, "--publish: no plugin", spec.CodeConfig},
		"no flags":              {"", []string{leases, ports}, `[] null; [] null`, 0},
		"type with a prefix":    {"--mac 02:00:00:00:00:01", []string{args}, `[[MAC 02:00:00:00:00:01]] null`, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, a, err := parse(applet.Process{Args: append([]string{"run"}, strings.Fields(tt.flags)...), Getenv: noEnv, Applets: table})
			if err != nil {
				t.Fatal(err)
			}
			asked := &a.(*runCall).asked
			if c.target.Capabilities, err = asked.capabilities(nil); err != nil {
				t.Fatal(err)
			}
			var networks []*chain.List
			for i, p := range tt.plugins {
				list, err := chain.Parse([]byte(`{"name":"` + string(rune('a'+i)) + `","plugins":[` + p + `]}`))
				if err != nil {
					t.Fatal(err)
				}
				networks = append(networks, list)
			}
			if err := asked.canHonour(c, networks...); err != nil || tt.code != 0 {
				if err == nil || spec.AsError(err).Code != tt.code || !strings.HasPrefix(err.Error(), tt.want) {
					t.Errorf("got %v, want code %d and %q", err, tt.code, tt.want)
				}
				return
			}
			var got []string
			for i := range networks {
				args, caps := asked.arguments(&c.target.RuntimeConf, networks, i)
				doc, _ := json.Marshal(caps)
				got = append(got, fmt.Sprint(args, " ", strings.ReplaceAll(string(doc), `{"hostPort":65533,"containerPort":1,"protocol":"tcp"}`, "P")))
			}
			if text := strings.Join(got, "; "); text != tt.want {
				t.Errorf("got %s, want %s", text, tt.want)
			}
			if !reflect.DeepEqual(c.target.Args, [][2]string(nil)) {
				t.Error("the target of all networks is changed")
			}
		})
	}
}

func TestParseAddressFlags(t *testing.T) {
	for args, ok := range map[string]bool{
		"--ip 10.0.0.2": true, "--ip 10.0.0.2/24": true, "--ip net=fd00::2": true, "--ip fd00::2/64": true,
		"--ip 10.0.0": false, "--ip net=": false, "--ip =10.0.0.2": false, "--ip 224.0.0.1": false, "--ip 0.0.0.0": false, "--ip fe80::1%eth0": false, "--ip host": false,
		"--mac 02:00:00:00:00:01": true, "--mac net=02-00-00-00-00-01": true, "--mac 01:00:00:00:00:01": false, "--mac 00:00:00:00:00:00": false, "--mac x": false,
		"--dns 10.0.0.1": true, "--dns fd00::1": true, "--dns host": false, "--dns 10.0.0.1:53": false,
	} {
		if _, _, err := parse(applet.Process{Args: append([]string{"run"}, strings.Fields(args)...), Getenv: noEnv}); (err == nil) != ok {
			t.Errorf("%s: %v", args, err)
		}
	}
}
