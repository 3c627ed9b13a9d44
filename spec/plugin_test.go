package spec

import (
	"context"
	"testing"
)

// all runs every verb and notes which it was.
func all(since Version, ran *Verb) Plugin {
	quiet := func(_ context.Context, r *Request) error { *ran = r.Call.Verb; return nil }
	loud := func(_ context.Context, r *Request) (*Result, error) { *ran = r.Call.Verb; return &Result{}, nil }
	return Plugin{Since: since, Add: loud, Get: loud, Check: quiet, Del: quiet, Status: quiet, GC: quiet}
}

const every = `["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]`

// The numbers are those of vectors A.1.
func TestDo(t *testing.T) {
	const prev, valid = `,"prevResult":{}`, `,"cni.dev/valid-attachments":[]`
	tests := []struct {
		name    string
		verb    Verb
		version string // and further members
		since   Version
		code    int // 0: the verb runs
		text    string
	}{
		{"4 no verb", "NOPE", `"1.0.0"`, V010, CodeEnv, "unknown CNI_COMMAND: NOPE"},
		{"4 small letters", "add", `"1.0.0"`, V010, CodeEnv, "unknown CNI_COMMAND: add"},
		{"no command", "", `"1.0.0"`, V010, CodeEnv, "[CNI_COMMAND] missing"},
		{"ADD", Add, `"1.1.0"`, V010, 0, ""},
		{"ADD without version", Add, `""`, V010, 0, ""},
		{"ADD short version", Add, `"1.0"`, V010, CodeVersion, `incompatible CNI versions; config is "1.0", plugin supports ` + every},
		{"ADD draft version", Add, `"0.4.0-dev"`, V010, CodeVersion, `config is "0.4.0-dev"`},
		{"16 DEL", Del, `"9.9.9"`, V010, 0, ""},
		{"DEL too old", Del, `"0.3.1"`, V040, 0, ""},
		{"16 ADD", Add, `"9.9.9"`, V010, CodeVersion, `config is "9.9.9", plugin supports ` + every},
		{"17 too old", Add, `"0.3.1"`, V040, CodeVersion, `config is "0.3.1", plugin supports ["0.4.0" "1.0.0" "1.1.0"]`},
		{"too old by default", Add, `""`, V040, CodeVersion, `config is "0.1.0"`},
		{"18 CHECK", Check, `"0.3.1"` + prev, V010, CodeVersion, "config version"},
		{"18 CHECK 1.0.5", Check, `"1.0.5"` + prev, V010, CodeVersion, "incompatible"},
		{"18 CHECK 1.2.0", Check, `"1.2.0"` + prev, V010, CodeVersion, "plugin version"},
		{"CHECK junk", Check, `"junk"` + prev, V010, CodeDecode, `version "junk"`},
		{"CHECK without prevResult", Check, `"1.0.0"`, V010, CodeConfig, "prevResult missing"},
		{"CHECK", Check, `"0.4.0"` + prev, V010, 0, ""},
		{"GET 0.3.1", Get, `"0.3.1"`, V010, CodeVersion, "config version does not allow GET"},
		{"GET", Get, `"0.4.0"`, V010, 0, ""},
		{"19 GC 1.0.0", GC, `"1.0.0"`, V010, CodeVersion, "allow GC"},
		{"19 STATUS 1.0.0", Status, `"1.0.0"`, V010, CodeVersion, "allow STATUS"},
		{"20 STATUS", Status, `"1.1.0"`, V010, 0, ""},
		{"20 GC", GC, `"1.1.0"` + valid, V010, 0, ""},
		{"GC without the list of what is attached", GC, `"1.1.0"`, V010, CodeConfig, "cni.dev/valid-attachments"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var ran Verb
			r := request(t, tt.verb, `{"name":"n","cniVersion":`+tt.version+`}`)
			_, err := all(tt.since, &ran).Do(context.Background(), r)
			wantError(t, err, tt.code, tt.text)
			if (ran != "") != (tt.code == 0) || ran != "" && ran != tt.verb {
				t.Errorf("%q ran for %q", ran, tt.verb)
			}
			// A plugin without functions refuses the same, but for what only its CHECK needs.
			if _, err := (Plugin{Since: tt.since}).Do(context.Background(), r); tt.name != "CHECK without prevResult" && tt.verb != Get {
				wantError(t, err, tt.code, tt.text)
			}
		})
	}
}

// Vector A.1 #3: the configuration is looked at before an unknown command.
func TestUnknownCommandAndNoConf(t *testing.T) {
	_, err := newRequest("NOPE", "")
	wantError(t, err, CodeDecode, "unexpected end")
}

func TestAbsentVerbs(t *testing.T) {
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
