package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
)

func TestAsError(t *testing.T) {
	typed := &Error{Code: 7, Msg: "m", Details: "d"}
	notJSON := NotJSON(nil, json.Unmarshal(nil, new(int)))
	tests := map[string]struct {
		err  error
		want Error
	}{
		"untyped":        {errors.New("x"), Error{Code: 999, Msg: "x"}},
		"typed":          {typed, Error{Code: 7, Msg: "m", Details: "d"}},
		"wrapped":        {fmt.Errorf("plugin a: %w", typed), Error{Code: 7, Msg: "plugin a: m", Details: "d"}},
		"in the middle":  {fmt.Errorf("a: %w (b)", typed), Error{Code: 7, Msg: "a: m; d (b)"}},
		"twice":          {fmt.Errorf("a: %w", Errorf(103, "b: %w", typed)), Error{Code: 7, Msg: "a: b: m", Details: "d"}},
		"typed in typed": {Errorf(103, "b: %w", typed), Error{Code: 7, Msg: "b: m", Details: "d"}},
		"phrase":         {Errorf(7, "p").WithDetails("a %d", 1).WithDetails("").WithDetails("b"), Error{Code: 7, Msg: "p", Details: "a 1; b"}},
		"phrase wrapped": {Errorf(5, "x: %w", Errorf(7, "p").WithDetails("a")).WithDetails("b"), Error{Code: 7, Msg: "x: p", Details: "a; b"}},
		"keyed":          {KeyErrorf("mtu", "x"), Error{Code: 999, Msg: "x"}},
		"keyed in typed": {Errorf(4, "a: %w", KeyErrorf("mtu", "x")), Error{Code: 4, Msg: "a: x"}},
		"typed in keyed": {Errorf(4, "a: %w", AtKey("mtu", typed)), Error{Code: 7, Msg: "a: m", Details: "d"}},
		"not JSON":       {Errorf(6, "a: %w", notJSON), Error{Code: 6, Msg: "a: " + notJSON.Error()}},
		"joined":         {errors.Join(errors.New("x"), Errorf(4, "y"), typed), Error{Code: 4, Msg: "x\ny\nm; d"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := AsError(tt.err)
			if got.Code != tt.want.Code || got.Msg != tt.want.Msg || got.Details != tt.want.Details {
				t.Errorf("got %d %q %q\nwant %d %q %q", got.Code, got.Msg, got.Details, tt.want.Code, tt.want.Msg, tt.want.Details)
			}
			if !errors.Is(got, tt.err) {
				t.Error("the cause is lost")
			}
		})
	}
	if AsError(nil) != nil {
		t.Error("an error out of nothing")
	}
	if err := AsError(Errorf(5, "open: %w", os.ErrNotExist)); !errors.Is(err, os.ErrNotExist) {
		t.Error("the cause of a typed error is lost")
	}
}

func TestEncodeError(t *testing.T) {
	got := string((&Error{Code: 7, Msg: "a <b>", Details: "d"}).Encode(V040))
	want := "{\n    \"cniVersion\": \"0.4.0\",\n    \"code\": 7,\n    \"msg\": \"a \\u003cb\\u003e\",\n    \"details\": \"d\"\n}"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	got = string(AsError(errors.New("x")).Encode(Version{9, 9, 9}))
	want = "{\n    \"cniVersion\": \"1.1.0\",\n    \"code\": 999,\n    \"msg\": \"x\"\n}"
	if got != want {
		t.Errorf("unknown version: got  %s\nwant %s", got, want)
	}
}
