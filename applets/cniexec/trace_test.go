package cniexec

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"cnibox/applets/applet"
	"cnibox/applets/cniexec/trace"
)

func TestTraceTarget(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("fd00::7")
	for text, want := range map[string]traceTarget{
		"tcp/8080":          {port: 8080, proto: unix.IPPROTO_TCP},
		"53/udp":            {port: 53, proto: unix.IPPROTO_UDP},
		"192.0.2.7:443":     {four, 443, unix.IPPROTO_TCP},
		"192.0.2.7:53/udp":  {four, 53, unix.IPPROTO_UDP},
		"192.0.2.7:443/TCP": {four, 443, unix.IPPROTO_TCP},
		"192.0.2.7":         {addr: four},
		"sctp/36412":        {port: 36412, proto: unix.IPPROTO_SCTP},
		"192.0.2.7:5/sctp":  {four, 5, unix.IPPROTO_SCTP},
		"192.0.2.7/udp":     {addr: four, proto: unix.IPPROTO_UDP},
		"[fd00::7]:443":     {six, 443, unix.IPPROTO_TCP},
		"fd00::7":           {addr: six},
		"::ffff:192.0.2.7":  {addr: four},
	} {
		if got, err := parseTraceTarget(text); err != nil || got != want {
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
		c := &call{Process: applet.Process{Stdout: &out, Getenv: noEnv}, commandLine: &commandLine{flags: &flags{output: output}}}
		if exit, err := (&traceCall{call: c}).printTrace(found); exit != exitError || err != nil {
			t.Errorf("exit code %d, %v", exit, err)
		}
		golden(t, file, out.String())
	}
}
