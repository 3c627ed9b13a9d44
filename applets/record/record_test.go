package record_test

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"cnibox/applets/record"
	"cnibox/internal/netns"
	"cnibox/spec"
)

type speed struct {
	Up    bool `json:"up"`
	Limit int  `json:"limit,omitempty"`
}

// The members of a plugin's data are beside those of the head, so that an earlier version and the reference
// find them, and their records are read.
func TestRecord(t *testing.T) {
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
		if got := record.Of[speed](dir, a); got == nil || *got != tt.rec {
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
	var of record.Record[speed] // the reference's
	if err := dir.Replace("ref", []byte(`{"limit":3}`)); err != nil {
		t.Fatal(err)
	}
	if err := dir.Read("ref", &of); err != nil || !reflect.DeepEqual(of, record.Record[speed]{Data: speed{Limit: 3}}) {
		t.Errorf("the reference's: got %+v, %v", of, err)
	}
}

// The record of an attachment is not read for another one, whatever its file is named.
func TestRecordOfOther(t *testing.T) {
	dir := record.Dir(t.TempDir())
	a, b := spec.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}, spec.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth1"}
	if err := dir.Write(record.Name(b), &record.Record[speed]{Head: record.Head{Attachment: a}}); err != nil {
		t.Fatal(err)
	}
	if got := record.Of[speed](dir, b); got != nil {
		t.Errorf("got %+v", got)
	}
	if err := dir.Replace(record.Name(a), []byte(`{"network"`)); err != nil {
		t.Fatal(err)
	}
	if got := record.Of[speed](dir, a); got != nil {
		t.Errorf("of a broken one: got %+v", got)
	}
}
