package json_test

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"cnibox/internal/json"
)

type inner struct {
	Deep  int            `json:"deep"`
	Same  string         `json:"same"`
	Limit *int8          `json:"limit,omitempty"`
	More  map[string]int `json:"more,omitempty"`
}

// A both is of both packages: what is raw is a plain type here, so that one value can
// be compared with the other.
type both struct {
	inner
	Same    string                `json:"same"`
	Name    string                `json:"name"`
	Untaged []string              // a key of the field's own name
	Flag    bool                  `json:"flag,omitempty"`
	Small   int8                  `json:"small"`
	Count   uint32                `json:"count"`
	Pair    [2]string             `json:"pair"`
	Pairs   [][2]string           `json:"pairs,omitempty"`
	Addr    netip.Addr            `json:"addr,omitzero"`
	Prefix  *netip.Prefix         `json:"prefix"`
	Inner   inner                 `json:"inner"`
	Ptr     *inner                `json:"ptr"`
	List    []inner               `json:"list"`
	Ptrs    []*inner              `json:"ptrs,omitempty"`
	Map     map[string]inner      `json:"map"`
	Maps    map[string][]string   `json:"maps"`
	Deeper  map[string]*[]*uint16 `json:"deeper"`
	Bytes   []byte                `json:"bytes"`
	Hidden  string                `json:"-"`
}

// The documents of the table, and the seeds of the fuzzer.
var documents = []string{
	`{}`, ` { } `, `[]`, `null`, `true`, `3`, `"x"`, ``, ` `, `{`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{"a" 1}`, `{1:2}`, `[1,]`, `[1 2]`, `nul`, `nulL`, `tru`, `01`, `-`, `-0`, `1.`, `1.5`, `1e`, `1e5`, `1E+2`, `.5`,
	`"\u00e9\ud83d\ude00\ud83d\"\/\\\b\f\n\r\t"`, "\"\xff\"", `"\x"`, `"\u12"`, "\"\n\"", `{} x`, `{}{}`, "\x00", `{"name":"<&>\u2028"}`, "{\"name\":\"\u2029 \x7f\"}",
	`{"NAME":"upper","name":"lower"}`, `{"name":"lower","NAME":"upper"}`, `{"name":null,"small":null,"ptr":null,"list":null,"map":null,"addr":null,"prefix":null,"pair":null}`,
	`{"deep":3,"same":"outer","inner":{"deep":4,"same":"in","limit":-128,"more":{"b":1,"a":2}}}`,
	`{"small":128}`, `{"small":-129,"count":7}`, `{"count":-1}`, `{"count":4294967296}`, `{"count":1.0}`, `{"small":1e1}`, `{"small":"1"}`, `{"name":1}`, `{"flag":0}`, `{"flag":"true"}`,
	`{"pair":["a"]}`, `{"pair":["a","b","c"]}`, `{"pairs":[["a","b"],[]]}`, `{"addr":"10.0.0.1","prefix":"fd00::/64"}`, `{"addr":"x"}`, `{"addr":5}`, `{"prefix":{}}`,
	`{"inner":[],"name":"after"}`, `{"inner":{"deep":"x"},"name":"after"}`, `{"list":[{"deep":1},{"deep":[]},{"deep":3}]}`, `{"ptrs":[null,{},{"limit":5}]}`, `{"ptr":{"deep":5}}`,
	`{"map":{"b":{"deep":1},"a":null,"<":{}}}`, `{"maps":{"x":["1"],"y":null,"z":[]}}`, `{"deeper":{"k":[1,null,65536]}}`, `{"Untaged":["a"],"untaged":["b","c"]}`, `{"Hidden":"x","-":"y","inner":{}}`,
	`{"bytes":"eA=="}`, `{"bytes":""}`, `{"bytes":"e"}`, `{"bytes":null}`, `{"bytes":[120,300]}`, `{"bytes":"e","small":"x"}`,
	`{"list":{},"map":[],"name":{}}`, `{"unknown":{"a":[1,{"b":"}"}]},"name":"kept"}`, strings.Repeat("[", 10001) + strings.Repeat("]", 10001), strings.Repeat("[", 9000) + strings.Repeat("]", 9000),
}

// compare decodes with both packages and encodes what came out.
func compare(t *testing.T, doc []byte) {
	t.Helper()
	var want, got both
	wantErr, gotErr := stdjson.Unmarshal(doc, &want), json.Unmarshal(doc, &got)
	if (wantErr == nil) != (gotErr == nil) {
		t.Fatalf("%.200q: error %v, want %v", doc, gotErr, wantErr)
	}
	if json.Valid(doc) != stdjson.Valid(doc) {
		t.Fatalf("%.200q: Valid is %t", doc, json.Valid(doc))
	}
	compareErrors(t, doc, gotErr, wantErr)
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%.200q:\ngot  %.300v\nwant %.300v", doc, got, want)
	}
	wantDoc, _ := stdjson.Marshal(want)
	gotDoc, err := json.Marshal(got)
	if err != nil || !bytes.Equal(gotDoc, wantDoc) {
		t.Fatalf("%.200q: %v\ngot  %.300s\nwant %.300s", doc, err, gotDoc, wantDoc)
	}
	compareText(t, doc)
}

// compareErrors wants the same place and, of broken JSON, the same words.
func compareErrors(t *testing.T, doc []byte, got, want error) {
	t.Helper()
	var wantSyntax *stdjson.SyntaxError
	if errors.As(want, &wantSyntax) {
		var syntax *json.SyntaxError
		if !errors.As(got, &syntax) || syntax.Error() != wantSyntax.Error() || syntax.Offset != wantSyntax.Offset {
			t.Fatalf("%.200q: got %v %+v, want %v at %d", doc, got, syntax, want, wantSyntax.Offset)
		}
	}
	var wantType *stdjson.UnmarshalTypeError
	if errors.As(want, &wantType) {
		var typ *json.UnmarshalTypeError
		// Ours does not name the embedded struct, of which the document knows nothing.
		field := strings.TrimPrefix(wantType.Field, "inner.")
		if !errors.As(got, &typ) || typ.Field != wantType.Field && typ.Field != field || typ.Value != wantType.Value || typ.Type != wantType.Type {
			t.Fatalf("%.200q: got %v %+v, want %+v", doc, got, typ, wantType)
		}
	}
}

// compareText indents and compacts the document as it is.
func compareText(t *testing.T, doc []byte) {
	t.Helper()
	if !stdjson.Valid(doc) || len(doc) > 1000 { // indented, its size may be the square
		return
	}
	var want, got bytes.Buffer
	stdjson.Indent(&want, bytes.TrimSpace(doc), ">", "  ")
	if err := json.Indent(&got, doc, ">", "  "); err != nil || got.String() != want.String() {
		t.Fatalf("%.200q: %v\ngot  %q\nwant %q", doc, err, got.String(), want.String())
	}
	wantRaw, _ := stdjson.Marshal(stdjson.RawMessage(doc))
	if gotRaw, err := json.Marshal(json.RawMessage(doc)); err != nil || !bytes.Equal(gotRaw, wantRaw) {
		t.Fatalf("%.200q: %v\ngot  %q\nwant %q", doc, err, gotRaw, wantRaw)
	}
}

func TestLikeEncodingJSON(t *testing.T) {
	for _, doc := range documents {
		compare(t, []byte(doc))
	}
}

func FuzzLikeEncodingJSON(f *testing.F) {
	for _, doc := range documents {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) { compare(t, doc) })
}

// What is there already is kept, or goes, as with encoding/json.
func TestIntoWhatIsThere(t *testing.T) {
	for _, doc := range documents {
		old := func() both {
			n := int8(5)
			return both{Name: "old", Untaged: []string{"1", "2", "3"}, Pair: [2]string{"x", "y"}, Ptr: &inner{Deep: 9, Limit: &n},
				List: []inner{{Deep: 1, Same: "s"}, {Deep: 2}}, Map: map[string]inner{"old": {Deep: 7}, "b": {Same: "b"}}}
		}
		want, got := old(), old()
		stdjson.Unmarshal([]byte(doc), &want)
		json.Unmarshal([]byte(doc), &got)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%.200q:\ngot  %.300v\nwant %.300v", doc, got, want)
		}
	}
}

// Raw values, values of unknown type, and types that read or write themselves.
func TestOwn(t *testing.T) {
	var v struct {
		Raw  json.RawMessage            `json:"raw"`
		Raws map[string]json.RawMessage `json:"raws"`
		Any  any                        `json:"any"`
		Num  json.Number                `json:"num"`
	}
	doc := `{"raw": [1, "<"], "raws":{"a": null, "b":{ }}, "any":{"n":1.50,"l":[true,null,"s"]}, "num": 7e9}`
	if err := json.Unmarshal([]byte(doc), &v); err != nil {
		t.Fatal(err)
	}
	want := `{"raw":[1,"\u003c"],"raws":{"a":null,"b":{}},"any":{"l":[true,null,"s"],"n":1.50},"num":7e9}`
	if got, err := json.Marshal(v); err != nil || string(got) != want {
		t.Errorf("%v\ngot  %.300s\nwant %.300s", err, got, want)
	}
	if got, err := json.Marshal(struct{ R json.RawMessage }{}); err != nil || string(got) != `{"R":null}` {
		t.Errorf("nil: %s, %v", got, err)
	}
}

// What it does not know is an error and not a wrong document.
func TestUnsupported(t *testing.T) {
	for _, v := range []any{1.5, map[int]string{1: "x"}, make(chan int), func() {}, json.RawMessage("{")} {
		if b, err := json.Marshal(v); err == nil {
			t.Errorf("%T became %s", v, b)
		}
	}
	for _, v := range []any{new(float64), new(map[int]string), new(chan int), inner{}, (*inner)(nil), nil} {
		if err := json.Unmarshal([]byte(`["eA=="]`), v); err == nil {
			t.Errorf("%T took a string", v)
		}
	}
}
