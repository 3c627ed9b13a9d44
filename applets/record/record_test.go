package record_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/spec"
)

type speed struct {
	Up    bool `json:"up"`
	Limit int  `json:"limit,omitempty"`
}

// The members of the data are on the level of those of the head, as in records of the reference and
// of earlier versions.
func TestRecordFormat(t *testing.T) {
	dir := record.Dir(t.TempDir())
	a := spec.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}
	head := record.Head{Attachment: a, NetNS: "/run/netns/a", LinkID: record.LinkID{ID: netns.ID{Dev: 4, Ino: 5}, Cookie: 6, Index: 7, Parent: 8}}
	const names = `"network":"net1","containerID":"c1","ifName":"eth0"`
	const all = names + `,"netns":"/run/netns/a","dev":4,"ino":5,"cookie":6,"index":7,"parent":8`
	for name, tt := range map[string]struct {
		rec  record.Record[speed]
		text string
	}{
		"all":     {record.Record[speed]{Head: head, Data: speed{true, 9}}, `{` + all + `,"up":true,"limit":9}`},
		"no head": {record.Record[speed]{Head: record.Head{Attachment: a}, Data: speed{}}, `{` + names + `,"up":false}`},
	} {
		if err := dir.Write(record.Name(a), &tt.rec); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(string(dir), record.Name(a))); err != nil || string(b) != tt.text {
			t.Errorf("%s: got %s, %v, want %s", name, b, err, tt.text)
		}
		if got := record.Find[speed](dir, a); got == nil || *got != tt.rec {
			t.Errorf("%s: read %+v, want %+v", name, got, tt.rec)
		}
		if got := dir.Head(a); got == nil || *got != tt.rec.Head {
			t.Errorf("%s: read head %+v, want %+v", name, got, tt.rec.Head)
		}
	}
	bare := record.Record[struct{}]{Head: head}
	if err := dir.Write(record.Name(a), &bare); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(string(dir), record.Name(a))); err != nil || string(b) != `{`+all+`}` {
		t.Errorf("without data: got %s, %v", b, err)
	}
	var of record.Record[speed] // of the reference
	if err := dir.Replace("ref", []byte(`{"limit":3}`)); err != nil {
		t.Fatal(err)
	}
	if err := dir.Read("ref", &of); err != nil || !reflect.DeepEqual(of, record.Record[speed]{Data: speed{Limit: 3}}) {
		t.Errorf("the reference's: got %+v, %v", of, err)
	}
}

// The record of another attachment is not read, whatever the name of the file.
func TestFindIgnoresRecordOfOther(t *testing.T) {
	dir := record.Dir(t.TempDir())
	a, b := spec.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}, spec.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth1"}
	if err := dir.Write(record.Name(b), &record.Record[speed]{Head: record.Head{Attachment: a}}); err != nil {
		t.Fatal(err)
	}
	if got := record.Find[speed](dir, b); got != nil {
		t.Errorf("got %+v", got)
	}
	if err := dir.Replace(record.Name(a), []byte(`{"network"`)); err != nil {
		t.Fatal(err)
	}
	if got := record.Find[speed](dir, a); got != nil {
		t.Errorf("of a broken one: got %+v", got)
	}
}

// Each skips files that it cannot read, and continues after an error.
func TestEachContinues(t *testing.T) {
	dir := record.Dir(t.TempDir())
	for _, ifName := range []string{"eth0", "eth1"} {
		rec := record.Record[speed]{Head: record.Head{Attachment: spec.Attachment{Network: "net1", ContainerID: "c1", IfName: ifName}}, Data: speed{Limit: 9}}
		if err := rec.Write(dir); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"broken": `{"network"`, "of another type": `{"limit":"much"}`} {
		if err := dir.Replace(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	var seen []string
	err := record.Each(dir, func(name string, rec *record.Record[speed]) error {
		if name != record.Name(rec.Attachment) || rec.Data.Limit != 9 {
			t.Errorf("%s has %+v", name, rec)
		}
		seen = append(seen, rec.IfName)
		return os.ErrInvalid
	})
	slices.Sort(seen)
	if !errors.Is(err, os.ErrInvalid) || !slices.Equal(seen, []string{"eth0", "eth1"}) {
		t.Errorf("seen %q, %v", seen, err)
	}
	if err := record.Each(dir, func(string, *record.Record[speed]) error { return nil }); err != nil {
		t.Errorf("with files that cannot be read: %v", err)
	}
	if err := record.Each(dir+"/none", func(string, *record.Record[speed]) error { return os.ErrInvalid }); err != nil {
		t.Errorf("without a directory: %v", err)
	}
}
