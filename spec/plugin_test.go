package spec

import (
	"context"
	"testing"
)

// recordingPlugin returns a plugin in which each verb records that it ran.
func recordingPlugin(since Version, ran *Verb) Plugin {
	quiet := func(_ context.Context, r *Request) error { *ran = r.Call.Verb; return nil }
	loud := func(_ context.Context, r *Request) (*Result, error) { *ran = r.Call.Verb; return &Result{}, nil }
	return Plugin{Facts: Facts{Since: since}, Add: loud, Get: loud, Check: quiet, Del: quiet, Status: quiet, GC: quiet}
}

const every = `["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]`

// Codes and messages are those of the reference, as observed.
func TestDoChecksRequest(t *testing.T) {
	const prev, valid = `,"prevResult":{"interfaces":[{"name":"a"}]}`, `,"cni.dev/valid-attachments":[]`
	tests := []struct {
		name    string
		verb    Verb
		version string // and further members
		since   Version
		code    int // 0: the verb runs
		text    string
	}{
		{"no verb", "NOPE", `"1.0.0"`, V010, CodeEnv, "unknown CNI_COMMAND: NOPE"},
		{"small letters", "add", `"1.0.0"`, V010, CodeEnv, "unknown CNI_COMMAND: add"},
		{"no command", "", `"1.0.0"`, V010, CodeEnv, "[CNI_COMMAND] missing"},
		{"ADD", Add, `"1.1.0"`, V010, 0, ""},
		{"ADD without version", Add, `""`, V010, 0, ""},
		{"ADD short version", Add, `"1.0"`, V010, CodeVersion, `versions; config is "1.0", plugin supports ` + every},
		{"ADD draft version", Add, `"0.4.0-dev"`, V010, CodeVersion, `config is "0.4.0-dev"`},
		{"DEL", Del, `"9.9.9"`, V010, 0, ""},
		{"DEL too old", Del, `"0.3.1"`, V040, 0, ""},
		{"ADD", Add, `"9.9.9"`, V010, CodeVersion, `config is "9.9.9", plugin supports ` + every},
		{"too old", Add, `"0.3.1"`, V040, CodeVersion, `config is "0.3.1", plugin supports ["0.4.0" "1.0.0" "1.1.0"]`},
		{"too old by default", Add, `""`, V040, CodeVersion, `config is "0.1.0"`},
		{"CHECK 0.3.1", Check, `"0.3.1"` + prev, V010, CodeVersion, "config version"},
		{"CHECK 1.0.5", Check, `"1.0.5"` + prev, V010, CodeVersion, "incompatible"},
		{"CHECK 1.2.0", Check, `"1.2.0"` + prev, V010, CodeVersion, "plugin version"},
		{"CHECK junk", Check, `"junk"` + prev, V010, CodeDecode, `version "junk"`},
		{"CHECK without prevResult", Check, `"1.0.0"`, V010, CodeConfig, "prevResult missing"},
		{"CHECK", Check, `"0.4.0"` + prev, V010, 0, ""},
		{"GET 0.3.1", Get, `"0.3.1"`, V010, CodeVersion, "config version does not allow GET"},
		{"GET", Get, `"0.4.0"`, V010, 0, ""},
		{"GC 1.0.0", GC, `"1.0.0"`, V010, CodeVersion, "allow GC"},
		{"STATUS 1.0.0", Status, `"1.0.0"`, V010, CodeVersion, "allow STATUS"},
		{"STATUS", Status, `"1.1.0"`, V010, 0, ""},
		{"GC", GC, `"1.1.0"` + valid, V010, 0, ""},
		{"GC without the list of what is attached", GC, `"1.1.0"`, V010, CodeConfig, "cni.dev/valid-attachments"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var ran Verb
			r := request(t, tt.verb, `{"name":"n","cniVersion":`+tt.version+`}`)
			_, err := recordingPlugin(tt.since, &ran).Do(context.Background(), r)
			wantError(t, err, tt.code, tt.text)
			if (ran != "") != (tt.code == 0) || ran != "" && ran != tt.verb {
				t.Errorf("%q ran for %q", ran, tt.verb)
			}
			// A plugin without functions refuses the same, except CHECK without prevResult.
			if _, err := (Plugin{Facts: Facts{Since: tt.since}}).Do(context.Background(), r); tt.name != "CHECK without prevResult" && tt.verb != Get {
				wantError(t, err, tt.code, tt.text)
			}
		})
	}
}

// An unreadable configuration is reported before an unknown command.
func TestConfBeforeUnknownCommand(t *testing.T) {
	_, err := newRequest("NOPE", "")
	wantError(t, err, CodeDecode, "unexpected end")
}

func TestPluginWithoutFunctions(t *testing.T) {
	with := `{"name":"n","cniVersion":"1.1.0","prevResult":{"interfaces":[{"name":"a"}]}}`
	none := `{"name":"n","cniVersion":"1.1.0"}`
	do := func(v Verb, conf string) (*Result, error) {
		return Plugin{}.Do(context.Background(), request(t, v, conf))
	}
	for _, v := range []Verb{Add, Get} {
		if res, err := do(v, with); err != nil || len(res.Interfaces) != 1 {
			t.Errorf("%s: got %v, %v, want prevResult", v, res, err)
		}
	}
	if res, err := do(Add, none); err != nil || res == nil {
		t.Errorf("ADD without prevResult: got %v, %v, want an empty result", res, err)
	}
	_, err := do(Get, none)
	wantError(t, err, CodeUnknown, "c1")
	for _, v := range []Verb{Check, Del, Status} {
		if res, err := do(v, none); res != nil || err != nil {
			t.Errorf("%s: got %v, %v, want nothing", v, res, err)
		}
	}
}
