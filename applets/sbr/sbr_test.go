package sbr

import (
	"net/netip"
	"testing"

	"github.com/cnibox/cnibox/applets/frame"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/spec/spectest"
)

// A rule that selects by more than the source is of another program.
func TestIsSourceRule(t *testing.T) {
	r := sourceRule(netip.MustParseAddr("10.1.0.2"), 100)
	if !isSource(r) {
		t.Errorf("%+v is none", r)
	}
	if r.More = true; isSource(r) {
		t.Errorf("%+v is one", r)
	}
}

func TestSBRConf(t *testing.T) {
	for name, tt := range map[string]struct{ conf, err string }{
		"nothing":            {`{}`, ""},
		"all":                {`{"table":500,"gateways":["10.1.0.9","fd00::9"],"addSourceHints":true}`, ""},
		"table 0":            {`{"table":0}`, "not within"},
		"main":               {`{"table":254}`, "253 to 255"},
		"local":              {`{"table":255}`, "253 to 255"},
		"negative table":     {`{"table":-1}`, "not within"},
		"huge table":         {`{"table":4294967296}`, `"table"`}, // overflows a 32-bit int
		"three gateways":     {`{"gateways":["10.1.0.1","fd00::1","10.1.0.2"]}`, "more than 2 entries"},
		"two of one family":  {`{"gateways":["fd00::2","fd00::1"]}`, "multiple addresses"},
		"no address":         {`{"gateways":["10.1.0"]}`, "gateways"},
		"empty":              {`{"gateways":[""]}`, "invalid static gateway"},
		"unspecified":        {`{"gateways":["::"]}`, "invalid static gateway"},
		"IPv4 within IPv6":   {`{"gateways":["::ffff:10.1.0.1"]}`, "invalid static gateway"},
		"hints are not text": {`{"addSourceHints":"yes"}`, "addSourceHints"},
		"a link-local one":   {`{"gateways":["fe80::1"]}`, ""},
		"one with a zone":    {`{"gateways":["fe80::1%eth0"]}`, "invalid static gateway"},
		"gateways is a text": {`{"gateways":"10.1.0.1"}`, "gateways"},
	} {
		err := frame.Read(spectest.Request(t, spec.Add, tt.conf, ""), &conf{})
		if err != nil {
			t.Logf("%s: %v", name, err)
		}
		spectest.WantError(t, err, tt.err, spec.CodeConfig)
	}
}
