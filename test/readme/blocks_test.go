package main

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

func TestBlocks(t *testing.T) {
	tests := map[string]struct {
		text string
		want []block
		err  string // part of the error; "": none
	}{
		"commands":            {"a\n```sh\nmake\nls\n```\n\n\n\n\n\n\n", []block{{3, "make\nls\n"}}, ""},
		"another language":    {"```json\n{}\n```\n\n\n\n\n", nil, ""},
		"begins in the half":  {"1\n2\n```sh\nmake\nls\n```\n", []block{{4, "make\nls\n"}}, ""},
		"the second half":     {"1\n2\n3\n4\n```sh\nmake\n```\n", nil, ""},
		"without a language":  {"```\nmake\n```\n\n\n\n", nil, "README.md:1: the block has no language"},
		"indented":            {"a\n\n    make\n\n\n\n", nil, "README.md:3: an indented block"},
		"indented and behind": {"a\n\n\n\n    make\n", nil, ""},
		"without an end":      {"```sh\nmake\n", nil, "README.md:2: the block has no end"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := blocks(tt.text)
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// The README's own blocks can be parsed.
func TestReadmeBlocks(t *testing.T) {
	list, err := read("../../" + readme)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(list[0].text, "make demo") {
		t.Errorf("the first commands are %q, want make demo before all", list[0].text)
	}
	text, err := os.ReadFile("../../" + readme)
	if want := "`apt-get install " + strings.Join(testPackages, " ") + "`"; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("%v; the tests of the README are tried with %s", err, want)
	}
}
