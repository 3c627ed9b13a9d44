package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
)

func TestPlace(t *testing.T) {
	const doc = "{\n  \"name\" : \"demo\",\n  \"ipam\": {\"ranges\": [[{}, {\"Subnet\":\n    \"10.1.0.0/33\"}]]}\n}"
	for key, want := range map[string]string{
		"":                         "1:1",
		"name":                     "2:12",
		"ipam":                     "3:11",
		"ipam.ranges":              "3:22",
		"ipam.ranges[0][0]":        "3:24",
		"ipam.ranges[0][1]":        "3:28",
		"ipam.ranges[0][1].subnet": "4:5",
		"ipam.ranges[0][2]":        "3:23",
		"ipam.ranges[1]":           "3:22",
		"ipam.subnet":              "3:11",
		"name.first":               "2:12",
		"mtu":                      "1:1",
		"runtimeConfig.mac":        "",
		"args.cni.ips[0]":          "",
	} {
		err := fmt.Errorf("plugin: %w", Errorf(CodeConfig, "invalid").AtKey(key))
		if got := placeText(doc, "", err); got != want {
			t.Errorf("%q is at %q, want %q", key, got, want)
		}
	}
	if got := placeText(doc, "ipam.ranges", KeyErrorf("[0][0]", "invalid")); got != "3:24" {
		t.Errorf("below a prefix: %q", got)
	}
	if got := placeText(doc, "ipam", Invalid(errors.New("invalid"), "mtu")); got != "3:11" {
		t.Errorf("the key otherwise: %q", got)
	}
	if got := placeText(doc, "", Invalid(KeyErrorf("name", "invalid"), "ipam")); got != "2:12" {
		t.Errorf("a key: %q", got)
	}
	if got := placeText(doc, "", Errorf(CodeEnv, "invalid").AtKey("IP in CNI_ARGS")); got != "" {
		t.Errorf("a variable: %q", got)
	}
	for doc, want := range map[string]string{
		"":                 "1:1",
		"{":                "1:2",
		"{}}":              "1:3",
		"{\n \"a\": 1,}":   "2:8",
		"{\n\"a\": [\n":    "3:1",
		"{\n\"a\": 'b'\n}": "2:6",
	} {
		var into map[string]any
		if got := placeText(doc, "", NotJSON([]byte(doc), json.Unmarshal([]byte(doc), &into))); got != want {
			t.Errorf("the error of %q is at %q, want %q", doc, got, want)
		}
	}
	if got := placeText(doc, "", errors.New("another")); got != "" {
		t.Errorf("an error about no place is at %q", got)
	}
}

func placeText(doc, prefix string, err error) string {
	line, column, found := Place([]byte(doc), prefix, err)
	if !found {
		return ""
	}
	return fmt.Sprintf("%d:%d", line, column)
}

// The outermost key is returned, but none for an error in the JSON syntax.
func TestKeyOf(t *testing.T) {
	inner := KeyErrorf("dst", "no address")
	for name, tt := range map[string]struct {
		err  error
		key  string
		text string // error below the key; "": no key
	}{
		"none":    {Errorf(CodeConfig, "a"), "", ""},
		"nil":     {nil, "", ""},
		"wrapped": {fmt.Errorf("a: %w", Errorf(CodeConfig, "b: %w", inner)), "dst", "no address"},
		"twice":   {fmt.Errorf("a: %w", Errorf(CodeConfig, "b: %w", inner).AtKey("ipam.dst")), "ipam.dst", "b: no address"},
		"whole":   {AtKey("", inner), "", "no address"},
		"syntax":  {AtKey("ipam", NotJSON([]byte("{"), json.Unmarshal([]byte("{"), new(any)))), "", ""},
	} {
		key, keyed := KeyOf(tt.err)
		if key != tt.key || (keyed != nil) != (tt.text != "") || keyed != nil && keyed.Error() != tt.text {
			t.Errorf("%s: got %q, %v, want %q, %q", name, key, keyed, tt.key, tt.text)
		}
	}
}
