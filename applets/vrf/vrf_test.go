package vrf

import (
	"testing"

	"github.com/cnibox/cnibox/applets/frame"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/spec/spectest"
)

func TestVRFConf(t *testing.T) {
	for name, tt := range map[string]struct{ conf, err string }{
		"name":            {`{"vrfname":"blue"}`, ""},
		"name and table":  {`{"vrfname":"blue","table":1001}`, ""},
		"no name":         {`{}`, "VRF name"},
		"empty name":      {`{"vrfname":""}`, "VRF name"},
		"long name":       {`{"vrfname":"0123456789abcdef"}`, "too long"},
		"a path":          {`{"vrfname":"../x"}`, "contains /"},
		"a pattern":       {`{"vrfname":"vrf%d"}`, "contains %"},
		"main":            {`{"vrfname":"blue","table":254}`, "253 to 255"},
		"default":         {`{"vrfname":"blue","table":253}`, "253 to 255"},
		"local":           {`{"vrfname":"blue","table":255}`, "253 to 255"},
		"negative":        {`{"vrfname":"blue","table":-1}`, "not within"},
		"table is a text": {`{"vrfname":"blue","table":"7"}`, "table"},
	} {
		err := frame.Read(spectest.Request(t, spec.Add, tt.conf, ""), &conf{})
		if err != nil {
			t.Logf("%s: %v", name, err)
		}
		spectest.WantError(t, err, tt.err, spec.CodeConfig)
	}
}
