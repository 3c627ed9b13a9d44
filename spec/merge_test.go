package spec

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestMerge(t *testing.T) {
	tests := map[string]struct {
		obj    string
		set    map[string]any
		remove []string
		want   string
		text   string
	}{
		"nothing":         {obj: ` { } `, want: `{}`},
		"into nothing":    {obj: `{}`, set: map[string]any{"a": 1, "b": []string{}}, want: `{"a":1,"b":[]}`},
		"numbers stay":    {obj: `{"i" : 9007199254740993, "f":1.10,"e":1E+2 ,"s":"\u003c<\/","d":1,"d":2}`, want: `{"d":2,"e":1E+2,"f":1.10,"i":9007199254740993,"s":"\u003c\u003c\/"}`},
		"nested text":     {obj: `{"a":{"prevResult":"}]\",\"prevResult\":1"},"prevResult":{"a":["\\",{"b":"]"}]},"z":0}`, remove: []string{"prevResult"}, want: `{"a":{"prevResult":"}]\",\"prevResult\":1"},"z":0}`},
		"any case, often": {obj: `{"Name":1,"x":null,"NAME":{},"na\u006de":true}`, set: map[string]any{"name": "n"}, want: `{"name":"n","x":null}`},
		"long s":          {obj: `{"prevRe\u017fult":1,"prevReſult":2}`, remove: []string{"prevResult"}, want: `{}`},
		"set and removed": {obj: `{"a":1}`, set: map[string]any{"a": 2}, remove: []string{"A"}, want: `{"a":2}`},
		"key to escape":   {obj: `{}`, set: map[string]any{`a"<`: 2}, want: `{"a\"\u003c":2}`},
		"not JSON":        {obj: `{"a":}`, text: "invalid character"},
		"not an object":   {obj: ` "a"`, text: "a string where an object is expected"},
		"value not JSON":  {obj: `{}`, set: map[string]any{"a": json.RawMessage("")}, text: "unexpected end"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Merge([]byte(tt.obj), tt.set, tt.remove...)
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

func TestMergeKeepsArguments(t *testing.T) {
	remove := append(make([]string, 0, 4), "a", "b")
	obj := []byte(`{"a":1,"c":2}`)
	if _, err := Merge(obj, map[string]any{"c": 3}, remove[:1]...); err != nil {
		t.Fatal(err)
	}
	if remove[1] != "b" || string(obj) != `{"a":1,"c":2}` {
		t.Errorf("got %q, %s", remove, obj)
	}
}
