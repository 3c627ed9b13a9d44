package cniexec

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/cniexec/trace"
	"github.com/cnibox/cnibox/spec"
)

func TestTraceTarget(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("fd00::7")
	for text, want := range map[string]spec.Port{
		"tcp/8080":          {HostPort: 8080, Protocol: "tcp"},
		"53/udp":            {HostPort: 53, Protocol: "udp"},
		"192.0.2.7:443":     {HostIP: four, HostPort: 443, Protocol: "tcp"},
		"192.0.2.7:53/udp":  {HostIP: four, HostPort: 53, Protocol: "udp"},
		"192.0.2.7:443/TCP": {HostIP: four, HostPort: 443, Protocol: "tcp"},
		"192.0.2.7":         {HostIP: four},
		"sctp/36412":        {HostPort: 36412, Protocol: "sctp"},
		"192.0.2.7:5/sctp":  {HostIP: four, HostPort: 5, Protocol: "sctp"},
		"192.0.2.7/udp":     {HostIP: four, Protocol: "udp"},
		"[fd00::7]:443":     {HostIP: six, HostPort: 443, Protocol: "tcp"},
		"fd00::7":           {HostIP: six},
		"::ffff:192.0.2.7":  {HostIP: four},
	} {
		if got, err := parseTraceTarget(text); err != nil || got.Port != want {
			t.Errorf("%s: got %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "c1", "tcp/0", "tcp/70000", "icmp/80", "sctp/0", "tcp/", "192.0.2.7:0", "192.0.2.7:443/dccp", "192.0.2.7/", "192.0.2.7/24", "fe80::1%eth0", "192.0.2.7:x"} {
		if got, err := parseTraceTarget(text); err == nil {
			t.Errorf("%q: got %+v, want an error", text, got)
		}
	}
}

func TestTraceText(t *testing.T) {
	priority := int32(-150)
	zero := int32(0)
	found := &trace.Trace{
		Outcome: "dropped in host by the policy of ip filter FORWARD", Advice: "accept it there",
		Steps: []trace.Step{
			{Place: "host", Kind: "prerouting", In: "up0", Source: "192.0.2.9:40000", Destination: "192.0.2.2:8080", Text: "tcp 192.0.2.9:40000 to 192.0.2.2:8080", Rules: []trace.Rule{
				{Family: "ip", Table: "raw", Chain: "PREROUTING", Priority: &zero, Handle: 2, Verdict: "continue"},
				{Family: "ip", Table: "hj", Chain: "pre", Priority: &priority, Handle: 4, Verdict: "accept", NAT: "dnat to 10.90.0.3:81"},
			}},
			{Place: "host", Kind: "route", Text: "10.90.0.0/24 dev edge0", Rules: []trace.Rule{}},
			{Place: "host", Kind: "forward", In: "up0", Out: "edge0", Source: "192.0.2.9:40000", Destination: "10.90.0.3:81", Rules: []trace.Rule{
				{Family: "inet", Table: "cnibox", Chain: "forward", Priority: &zero, Verdict: "accept", Policy: true},
				{Family: "ip", Table: "filter", Chain: "FORWARD", Priority: &zero, Verdict: "drop", Policy: true},
			}},
		},
	}
	for file, output := range map[string]string{"testdata/trace.json": outputJSON, "testdata/trace.txt": ""} {
		var out bytes.Buffer
		c := &call{Process: applet.Process{Stdout: &out, Getenv: noEnv}, options: options{flags: flags{output: output}}}
		if exit, err := (&traceCall{call: c}).printTrace(found); exit != exitError || err != nil {
			t.Errorf("exit code %d, %v", exit, err)
		}
		golden(t, file, out.String())
	}
}
