package spec

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
)

// Unlike in the reference, an unknown key causes a warning, and a pair is invalid only without "="
// or without a key.
func TestParseArgs(t *testing.T) {
	tests := []struct {
		in   string
		want Args
		text string // part of the error
		warn string // warning of unknown keys
	}{
		{in: "", want: Args{}},
		{in: "IP=1", want: Args{"IP": "1"}},
		{in: "IP=", want: Args{"IP": ""}},
		{in: "IgnoreUnknown=1;X=2", want: Args{"IgnoreUnknown": "1", "X": "2"}},
		{in: "X=2;IgnoreUnknown=true", want: Args{"IgnoreUnknown": "true", "X": "2"}},
		{in: "IgnoreUnknown=TRUE;IP=x;IP=y", want: Args{"IgnoreUnknown": "TRUE", "IP": "y"}},
		{in: "ip=1", want: Args{"ip": "1"}, warn: `ARGS: unknown args ["ip"] ignored`},
		{in: " IP=1", want: Args{" IP": "1"}, warn: `ARGS: unknown args [" IP"] ignored`},
		{in: "IP=1;X=2", want: Args{"IP": "1", "X": "2"}, warn: `ARGS: unknown args ["X"] ignored`},
		{in: "ignoreunknown=1;X=1", want: Args{"ignoreunknown": "1", "X": "1"}, warn: `ARGS: unknown args ["X" "ignoreunknown"] ignored`},
		{in: "IP=a=b", want: Args{"IP": "a=b"}},
		{in: "IP=1;", want: Args{"IP": "1"}},
		{in: ";;IP=1", want: Args{"IP": "1"}},
		{in: "IP", text: `ARGS: invalid pair "IP"`},
		{in: "=x", text: `ARGS: invalid pair "=x"`},
		{in: "IgnoreUnknown=yes", text: `ARGS: IgnoreUnknown "yes"`},
		{in: "IgnoreUnknown=", text: `ARGS: IgnoreUnknown ""`},
		{in: "IgnoreUnknown=0;X=2", want: Args{"IgnoreUnknown": "0", "X": "2"}, warn: `ARGS: unknown args ["X"] ignored`},
		{in: "K8S_POD_NAME=x;MAC=m;GATEWAY=g;IgnoreUnknown=False",
			want: Args{"K8S_POD_NAME": "x", "MAC": "m", "GATEWAY": "g", "IgnoreUnknown": "False"}},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			r := request(t, Add, `{"name":"n"}`, "CNI_ARGS", tt.in)
			if tt.text != "" {
				wantError(t, r.badArgs, CodeEnv, tt.text)
				wantError(t, r.badArgs, CodeEnv, fmt.Sprintf("CNI_ARGS is %q", tt.in))
				return
			}
			if !maps.Equal(r.args, tt.want) {
				t.Errorf("got %q, want %q", r.args, tt.want)
			}
			warned := ""
			r.Invoker = external(nil)
			r.Warn = func(format string, args ...any) { warned += fmt.Sprintf(format, args...) }
			WarnUnknownArgs(r)
			if warned != tt.warn {
				t.Errorf("got warning %s\nwant %s", warned, tt.warn)
			}
		})
	}
}

// external is an invoker to which these plugins are external.
type external []string

func (s external) Invoke(context.Context, string, *Request) (*Result, error) { return nil, nil }
func (s external) Find(plugin string) (*Plugin, error) {
	if slices.Contains(s, plugin) {
		return nil, nil
	}
	return &Plugin{Facts: Facts{IPAM: true}}, nil
}
func (s external) Known(string) *Plugin { return nil }

// A key is unknown if no configuration of the list has it as a value, and no external plugin gets
// it.
func TestUnknownArgsOfList(t *testing.T) {
	const lan, from = `{"name":"n","type":"bridge","ipam":{"type":"%s"}}`, `{"name":"n","type":"x","provide":[{"fromArg":"HOST"}]}`
	tests := map[string]struct {
		ipam, second string
		foreign      external
		warn         string
	}{
		"all are ours":         {"host-local", `{"name":"n","type":"x"}`, nil, `ARGS: unknown args ["HOST" "OTHER"] ignored`},
		"one key is used":      {"host-local", from, nil, `ARGS: unknown args ["OTHER"] ignored`},
		"another plugin":       {"host-local", from, external{"x"}, ""},
		"another address pool": {"whereabouts", from, external{"whereabouts"}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var list []*Request
			warned := ""
			for _, conf := range []string{fmt.Sprintf(lan, tt.ipam), tt.second} {
				r := request(t, Add, conf, "CNI_ARGS", "HOST=a;OTHER=b")
				r.Invoker = tt.foreign
				r.Warn = func(format string, args ...any) { warned += fmt.Sprintf(format, args...) }
				list = append(list, r)
			}
			WarnUnknownArgs(list...)
			if warned != tt.warn {
				t.Errorf("got warning %s\nwant %s", warned, tt.warn)
			}
		})
	}
}

// Verbs without an attachment ignore CNI_ARGS and the other variables of one.
func TestArgsIgnoredWithoutAttachment(t *testing.T) {
	r := request(t, Status, `{"cniVersion":"1.1.0","name":"n"}`, "CNI_ARGS", "junk", "CNI_CONTAINERID", "../x")
	if r.ContainerID != "" || r.IfName != "" {
		t.Errorf("got attachment %v, want the network alone", r.Attachment)
	}
	if _, ok := r.Arg("IP"); ok {
		t.Error("an argument out of nothing")
	}
}
