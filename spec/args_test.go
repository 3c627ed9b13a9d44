package spec

import (
	"fmt"
	"maps"
	"testing"
)

// Vectors A.5. Where the reference fails for an unknown key, we warn, and what
// it calls an invalid pair is one only without "=" or without a key.
func TestParseArgs(t *testing.T) {
	tests := []struct {
		in   string
		want Args
		text string // of the error
		warn string // for the keys nobody knows
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
			r, err := newRequest(Add, `{"name":"n"}`, "CNI_ARGS", tt.in)
			if tt.text != "" {
				wantError(t, err, CodeEnv, tt.text)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !maps.Equal(r.args, tt.want) {
				t.Errorf("got %q, want %q", r.args, tt.want)
			}
			warned := ""
			r.Warn = func(format string, args ...any) { warned += fmt.Sprintf(format, args...) }
			r.WarnUnknownArgs()
			if warned != tt.warn {
				t.Errorf("got warning %s\nwant %s", warned, tt.warn)
			}
		})
	}
}

// A runtime's environment may hold anything when the verb is not about an
// attachment.
func TestArgsOfOtherVerbs(t *testing.T) {
	r := request(t, Status, `{"cniVersion":"1.1.0","name":"n"}`, "CNI_ARGS", "junk", "CNI_CONTAINERID", "../x")
	if r.ContainerID != "" || r.IfName != "" {
		t.Errorf("got attachment %v, want the network alone", r.Attachment)
	}
	if _, ok := r.Arg("IP"); ok {
		t.Error("an argument out of nothing")
	}
}
