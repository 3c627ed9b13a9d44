package spec

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestSplice(t *testing.T) {
	set := func(pairs ...string) (ms []Member) {
		for i := 0; i < len(pairs); i += 2 {
			ms = append(ms, Member{Name: pairs[i], Value: json.RawMessage(pairs[i+1])})
		}
		return ms
	}
	tests := map[string]struct {
		obj    string
		set    []Member
		remove []string
		want   string
		text   string
	}{
		"nothing":         {obj: ` { } `, want: `{}`},
		"into nothing":    {obj: `{}`, set: set("a", "1", "b", "[]"), want: `{"a":1,"b":[]}`},
		"bytes stay":      {obj: `{"i" : 9007199254740993, "f":1.10,"e":1E+2 ,"s":"\u003c<\/","d":1,"d":2}`, want: `{"i" : 9007199254740993,"f":1.10,"e":1E+2,"s":"\u003c<\/","d":1,"d":2}`},
		"nested text":     {obj: `{"a":{"prevResult":"}]\",\"prevResult\":1"},"prevResult":{"a":["\\",{"b":"]"}]},"z":0}`, remove: []string{"prevResult"}, want: `{"a":{"prevResult":"}]\",\"prevResult\":1"},"z":0}`},
		"any case, often": {obj: `{"Name":1,"x":null,"NAME":{},"na\u006de":true}`, set: set("name", `"n"`), want: `{"x":null,"name":"n"}`},
		"long s":          {obj: `{"prevRe\u017fult":1,"prevReſult":2}`, remove: []string{"prevResult"}, want: `{}`},
		"set and removed": {obj: `{"a":1}`, set: set("a", "2"), remove: []string{"A"}, want: `{"a":2}`},
		"key to escape":   {obj: `{}`, set: set(`a"<`, "2"), want: `{"a\"\u003c":2}`},
		"not JSON":        {obj: `{"a":}`, text: "invalid character"},
		"not an object":   {obj: ` "a"`, text: "a string where an object is due"},
		"value not JSON":  {obj: `{}`, set: set("a", ""), text: `the value of "a" is not JSON`},
		"no key":          {obj: `{}`, set: set("", "1"), text: "without a key"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Splice([]byte(tt.obj), tt.set, tt.remove...)
			if tt.text != "" {
				if err == nil || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("got %s, %v, want error …%s…", got, err, tt.text)
				}
				return
			}
			if err != nil || string(got) != tt.want {
				t.Errorf("got  %s, %v\nwant %s", got, err, tt.want)
			}
		})
	}
}

func TestSpliceLeavesItsArguments(t *testing.T) {
	remove := append(make([]string, 0, 4), "a", "b")
	obj := []byte(`{"a":1,"c":2}`)
	if _, err := Splice(obj, []Member{{Name: "c", Value: json.RawMessage("3")}}, remove[:1]...); err != nil {
		t.Fatal(err)
	}
	if remove[1] != "b" || string(obj) != `{"a":1,"c":2}` {
		t.Errorf("got %q, %s", remove, obj)
	}
}
