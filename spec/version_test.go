package spec

import "testing"

func TestParseVersion(t *testing.T) {
	tests := map[string]string{ // "": an error
		"": "0.1.0", "0.3.1": "0.3.1", "1": "1.0.0", "1.1": "1.1.0", "01.0.0": "1.0.0", "9.9.9": "9.9.9",
		"1.0.0.0": "", "v1.0.0": "", "1.0.0-rc1": "", "0.4.0-dev": "", " 1.0.0": "", "1..0": "", "junk": "", "99999999999.0": "",
	}
	for in, want := range tests {
		v, err := ParseVersion(in)
		if (err != nil) != (want == "") || err == nil && v.String() != want {
			t.Errorf("%q: got %v, %v, want %q", in, v, err, want)
		}
	}
}

func TestVersions(t *testing.T) {
	if got := Versions(V040); len(got) != 3 || got[0] != V040 || got[2] != Newest {
		t.Errorf("since 0.4.0: got %v", got)
	}
	if got := Versions(Version{2, 0, 0}); got != nil {
		t.Errorf("since 2.0.0: got %v", got)
	}
	for i, v := range versions {
		if i > 0 && versions[i-1].AtLeast(v) {
			t.Errorf("%v is not newer than %v", v, versions[i-1])
		}
		if v.NeedsAddress() != (i < 2) {
			t.Errorf("%v needs an address: got %v", v, v.NeedsAddress())
		}
	}
}

func TestVersionAnswer(t *testing.T) {
	const since040 = `,"supportedVersions":["0.4.0","1.0.0","1.1.0"]}` + "\n"
	tests := map[string]string{
		`{"cniVersion":"1.0.0"}`:            `{"cniVersion":"1.0.0"` + since040,
		`{"CNIVersion":"0.4.0","name":"n"}`: `{"cniVersion":"0.4.0"` + since040,
		`{"cniVersion":"0.3.1"}`:            `{"cniVersion":"1.1.0"` + since040,
		`{"cniVersion":"9.9.9"}`:            `{"cniVersion":"1.1.0"` + since040,
		`{"cniVersion":1}`:                  `{"cniVersion":"1.1.0"` + since040,
		``:                                  `{"cniVersion":"1.1.0"` + since040,
		`{}`:                                `{"cniVersion":"1.1.0"` + since040,
		"\x00garbage":                       `{"cniVersion":"1.1.0"` + since040,
	}
	for in, want := range tests {
		if got := string(VersionAnswer([]byte(in), V040)); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}
