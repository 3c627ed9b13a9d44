package chain_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

const cachedList = `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec"}]}`

// libcniEntry returns the entry that libcni writes for ADD of the recorder.
func libcniEntry(extra string) string {
	return `{"kind":"cniCacheV1","containerId":"c","config":"` + base64.StdEncoding.EncodeToString([]byte(cachedList)) +
		`","ifName":"eth0","networkName":"n","netns":"` + ownNS + `","cniArgs":[["A","1"]],"capabilityArgs":{"mac":"x"},` +
		`"result":{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24"}]}` + extra + `}`
}

// An entry begins with the bytes that libcni writes, followed by members of cnibox.
func TestCacheBytes(t *testing.T) {
	w := newFixture(t, "rec")
	tg := target("c")
	tg.Args = [][2]string{{"A", "1"}}
	tg.Capabilities = caps(t, `{"mac":"x"}`)
	if _, err := w.Add(t.Context(), w.parse(cachedList), tg); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(w.Cache.Dir, "results", "n-c-eth0")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.TrimSuffix(libcniEntry(""), "}")
	if got := string(b); !strings.HasPrefix(got, want+`,"cniboxBootID":"`) {
		t.Errorf("got  %s\nwant %s…", got, want)
	}
	for path, mode := range map[string]os.FileMode{file: 0o600, filepath.Dir(file): os.ModeDir | 0o700} {
		if st, err := os.Stat(path); err != nil || st.Mode() != mode {
			t.Errorf("%s: mode %v, %v, want %v", path, st.Mode(), err, mode)
		}
	}
	left, _ := filepath.Glob(filepath.Join(w.Cache.Dir, "*", ".*"))
	if len(left) > 0 {
		t.Errorf("temporary files are left: %q", left)
	}
}

// Entries written by other programs, and damaged ones.
func TestEntriesOfOthers(t *testing.T) {
	const prev = "10.1.2.3/24"
	tests := map[string]struct {
		text       string
		args, prev string // of DEL
		check      int    // code of CHECK; -1: no error
	}{
		"libcni's":        {libcniEntry(""), "A=1", prev, -1},
		"members of ours": {libcniEntry(`,"x":{"y":1}`), "A=1", prev, -1},
		"earlier boot":    {libcniEntry(`,"cniboxBootID":"another"`), "A=1", prev, spec.CodeUnknown},
		"other namespace": {libcniEntry(`,"cniboxNetNS":"4:1"`), "A=1", prev, spec.CodeNetNS},
		"only a result":   {`{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24"}]}`, "", "", spec.CodeUnknown},
		"empty":           {``, "", "", spec.CodeUnknown},
		"half":            {libcniEntry("")[:100], "", "", spec.CodeUnknown},
		"null":            {`null`, "", "", spec.CodeUnknown},
		"of another":      {strings.Replace(libcniEntry(""), `"containerId":"c"`, `"containerId":"d"`, 1), "", "", spec.CodeUnknown},
		"path in a name":  {strings.Replace(libcniEntry(""), `"ifName":"eth0"`, `"ifName":"../x"`, 1), "", "", spec.CodeUnknown},
		"broken result":   {strings.Replace(libcniEntry(""), "10.1.2.3/24", "nonsense", 1), "A=1", "", spec.CodeConfig},
		"broken config":   {strings.Replace(libcniEntry(""), `"config":"`, `"config":"AAAA`, 1), "A=1", prev, -1},
		"list of another": {strings.Replace(libcniEntry(""), base64.StdEncoding.EncodeToString([]byte(cachedList)),
			base64.StdEncoding.EncodeToString([]byte(`{"name":"m","plugins":[{"type":"evil"}]}`)), 1), "A=1", prev, -1},
		"single": {strings.Replace(libcniEntry(""), base64.StdEncoding.EncodeToString([]byte(cachedList)),
			base64.StdEncoding.EncodeToString([]byte(`{"name":"n","cniVersion":"1.0.0","type":"rec"}`)), 1), "A=1", prev, -1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, "rec")
			l := w.parse(cachedList)
			dir := filepath.Join(w.Cache.Dir, "results")
			os.MkdirAll(dir, 0o700)
			if err := os.WriteFile(filepath.Join(dir, "n-c-eth0"), []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			bare := chain.RuntimeConf{ContainerID: "c", IfName: "eth0", NetNSOverride: true}
			check := bare
			if tt.args == "" {
				check.NetNS = ownNS
			}
			if err := w.Check(t.Context(), l, check); code(err) != tt.check {
				t.Errorf("CHECK: got %v, want code %d", err, tt.check)
			}
			w.records()
			if err := w.Del(t.Context(), l, bare); err != nil {
				t.Fatal(err)
			}
			calls := w.wantCalls("DEL rec")
			if calls[0].Args != tt.args || !strings.Contains(member(t, calls[0].Stdin, "prevResult"), tt.prev) {
				t.Errorf("DEL: %+v", calls[0])
			}
			if strings.HasPrefix(name, "earlier") || strings.HasPrefix(name, "other") {
				if calls[0].NetNS != "" {
					t.Errorf("DEL works in a namespace that is not the attachment's: %s", calls[0].NetNS)
				}
			}
		})
	}
}

// A valid entry that this process may not read is an error, neither absent nor deleted.
func TestUnreadableEntryIsKept(t *testing.T) {
	w := newFixture(t, "rec")
	if _, err := w.Add(t.Context(), w.parse(cachedList), target("c")); err != nil {
		t.Fatal(err)
	}
	a := spec.Attachment{Network: "n", ContainerID: "c", IfName: "eth0"}
	file := filepath.Join(w.Cache.Dir, "results", "n-c-eth0")
	if err := os.Chmod(file, 0); err != nil {
		t.Fatal(err)
	}
	done := make(chan [2]error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread without capabilities ends
		var none [2]unix.CapUserData
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
			t.Error(err)
		}
		_, err := w.Cache.Lookup(a)
		done <- [2]error{err, w.Cache.Remove(a)}
	}()
	for i, err := range <-done {
		if !errors.Is(err, os.ErrPermission) {
			t.Errorf("call %d: got %v, want that it is forbidden", i, err)
		}
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Cache.Lookup(a); err != nil {
		t.Error(err)
	}
}

// A symbolic link in place of an entry is not followed, and empty and temporary files do not stop a
// verb.
func TestEntryIsNoRegularFile(t *testing.T) {
	w := newFixture(t, "rec")
	dir := filepath.Join(w.Cache.Dir, "results")
	os.MkdirAll(dir, 0o700)
	precious := filepath.Join(w.dir, "precious")
	os.WriteFile(precious, []byte(libcniEntry("")), 0o600)
	os.Symlink(precious, filepath.Join(dir, "n-c-eth0"))
	if _, err := w.Cache.Lookup(spec.Attachment{Network: "n", ContainerID: "c", IfName: "eth0"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a symbolic link is read: %v", err)
	}
	if _, err := w.Add(t.Context(), w.parse(cachedList), target("c")); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(precious); string(b) != libcniEntry("") {
		t.Error("written through a symbolic link")
	}
	old := filepath.Join(dir, "n-empty-eth0")
	os.WriteFile(old, nil, 0o600)
	young := filepath.Join(dir, "n-young-eth0")
	os.WriteFile(young, nil, 0o600)
	os.Chtimes(young, time.Time{}, time.Now().Add(time.Hour)) // even if the test is suspended
	temporary := filepath.Join(dir, ".cnibox-123")
	os.WriteFile(temporary, nil, 0o600)
	for _, f := range []string{old, temporary} {
		os.Chtimes(f, time.Unix(1, 0), time.Unix(1, 0))
	}
	l := w.parse(cachedList)
	if _, err := w.GC(t.Context(), l, chain.GCOptions{}); err != nil {
		t.Error(err)
	}
	if got := strings.Join(w.entries(), " "); got != "n-empty-eth0 n-young-eth0" {
		t.Errorf("after GC the cache has %q", got)
	}
	if _, err := os.Stat(temporary); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a temporary file stays: %v", err)
	}
}

// Network a-b with container c has the same libcni file name as network a with container b-c.
func TestSharedEntryNames(t *testing.T) {
	w := newFixture(t, "rec")
	long := strings.Repeat("x", 200)
	ids, lists := []string{"c", "b-c", long}, map[string]*chain.List{
		"c":   w.parse(`{"name":"a-b","cniVersion":"1.0.0","plugins":[{"type":"rec"}]}`),
		"b-c": w.parse(`{"name":"a","cniVersion":"1.0.0","plugins":[{"type":"rec"}]}`),
		long:  w.parse(`{"name":"` + strings.Repeat("y", 200) + `","cniVersion":"1.0.0","plugins":[{"type":"rec"}]}`),
	}
	for _, id := range ids {
		l, tg := lists[id], target(id)
		tg.Args = [][2]string{{"ID", id}}
		if _, err := w.Add(t.Context(), l, tg); err != nil {
			t.Fatal(err)
		}
	}
	a := spec.Attachment{Network: "a", ContainerID: "b-c", IfName: "eth0"}
	longest := spec.Attachment{Network: strings.Repeat("y", 200), ContainerID: long, IfName: "eth0"}
	want := []string{"a-b-c-eth0", "a-b-c-eth0~" + a.Key(), "cnibox-" + longest.Key() + "-eth0"}
	if names := w.entries(); !slices.Equal(names, want) {
		t.Errorf("the cache has %q, want %q", names, want)
	}
	for id, l := range lists {
		if _, err := w.GC(t.Context(), l, chain.GCOptions{Live: true}); err != nil {
			t.Error(err)
		}
		if names := w.entries(); !slices.Equal(names, want) {
			t.Errorf("after a GC of the network of %s the cache has %q", id, names)
		}
	}
	for id, l := range lists {
		w.records()
		if err := w.Del(t.Context(), l, chain.RuntimeConf{ContainerID: id, IfName: "eth0", NetNSOverride: true}); err != nil {
			t.Error(err)
		}
		if calls := w.wantCalls("DEL rec"); calls[0].Args != "ID="+id {
			t.Errorf("DEL of %s got %q", id, calls[0].Args)
		}
	}
	if names := w.entries(); len(names) != 0 {
		t.Errorf("the cache has %q", names)
	}
}

// A file has the name that libcni's tools expect, also with dashes.
func TestFileNames(t *testing.T) {
	for _, a := range []spec.Attachment{
		{Network: "n", ContainerID: "c", IfName: "eth0"},
		{Network: "k8s-pod-network", ContainerID: "0123abcd", IfName: "net1"},
		{Network: "a-cnitool", ContainerID: "77383ca0a0715733ca6f", IfName: "eth0"},
		{Network: "n", ContainerID: "8f3e2a1c-0c9d-4a51-8d7e-5a0e7b6f2c11", IfName: "veth-1"},
	} {
		w := newFixture(t, "rec")
		tg := target(a.ContainerID)
		tg.IfName = a.IfName
		if _, err := w.Add(t.Context(), w.parse(`{"name":"`+a.Network+`","cniVersion":"1.0.0","plugins":[{"type":"rec"}]}`), tg); err != nil {
			t.Fatal(err)
		}
		want := a.Network + "-" + a.ContainerID + "-" + a.IfName
		if got := strings.Join(w.entries(), " "); got != want {
			t.Errorf("%s: %q, want %q", a, got, want)
		}
	}
}

// Entries under names that two attachments share, and under names with a key, which versions up to
// 0.1.0 added.
func TestEntryNamesOfEarlierVersions(t *testing.T) {
	const id = "b-c"
	list := `{"name":"a","cniVersion":"1.0.0","plugins":[{"type":"rec"}]}`
	entry := strings.NewReplacer(`"containerId":"c"`, `"containerId":"`+id+`"`, `"networkName":"n"`, `"networkName":"a"`, ownNS, "/proc/0/ns/net",
		base64.StdEncoding.EncodeToString([]byte(cachedList)), base64.StdEncoding.EncodeToString([]byte(list))).Replace(libcniEntry(""))
	c := strings.Replace(strings.Replace(libcniEntry(""), ownNS, "/proc/0/ns/net", 1), `"A"`, `"C"`, 1)
	bare := chain.RuntimeConf{ContainerID: id, IfName: "eth0", NetNSOverride: true}
	prepare := func(t *testing.T) *fixture {
		w := newFixture(t, "rec")
		results := filepath.Join(w.Cache.Dir, "results")
		err := os.MkdirAll(results, 0o700)
		if err == nil {
			err = os.WriteFile(filepath.Join(results, "a-b-c-eth0"), []byte(entry), 0o600)
		}
		if err == nil {
			key := spec.Attachment{Network: "n", ContainerID: "c", IfName: "eth0"}.Key()
			err = os.WriteFile(filepath.Join(results, "n-c-eth0~"+key), []byte(c), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	t.Run("DEL", func(t *testing.T) {
		w := prepare(t)
		for l, tg := range map[string]chain.RuntimeConf{list: bare, cachedList: {ContainerID: "c", IfName: "eth0", NetNSOverride: true}} {
			if err := w.Del(t.Context(), w.parse(l), tg); err != nil {
				t.Error(err)
			}
			if calls := w.wantCalls("DEL rec"); calls[0].Args == "" {
				t.Errorf("DEL of %s without the arguments of its ADD", tg.ContainerID)
			}
		}
		if names := w.entries(); len(names) > 0 {
			t.Errorf("the cache has %q", names)
		}
	})
	t.Run("ADD", func(t *testing.T) {
		w := prepare(t)
		tg := target(id)
		if _, err := w.Add(t.Context(), w.parse(list), tg); err != nil {
			t.Fatal(err)
		}
		w.wantCalls("DEL rec, ADD rec")
		if got := strings.Join(w.entries(), " "); !strings.HasPrefix(got, "a-b-c-eth0 n-c-") {
			t.Errorf("the cache has %q", got)
		}
	})
	t.Run("ADD, DEL of the old one fails", func(t *testing.T) {
		w := prepare(t)
		failing := strings.Replace(list, `"rec"`, `"rec","doDEL":"fail {\"code\":100,\"msg\":\"busy\"}"`, 1)
		name := filepath.Join(w.Cache.Dir, "results", "a-b-c-eth0")
		b64 := base64.StdEncoding.EncodeToString
		os.WriteFile(name, []byte(strings.Replace(entry, b64([]byte(list)), b64([]byte(failing)), 1)), 0o600)
		if _, err := w.Add(t.Context(), w.parse(list), target(id)); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(w.entries(), " "); !strings.HasPrefix(got, "a-b-c-eth0 n-c-") {
			t.Errorf("the cache has %q: a GC would delete the older entry, and what is attached now", got)
		}
	})
	t.Run("ADD of one with the key", func(t *testing.T) {
		w := prepare(t)
		if _, err := w.Add(t.Context(), w.parse(cachedList), target("c")); err != nil {
			t.Fatal(err)
		}
		w.wantCalls("DEL rec, ADD rec")
		if got := strings.Join(w.entries(), " "); got != "a-b-c-eth0 n-c-eth0" {
			t.Errorf("the cache has %q", got)
		}
	})
	t.Run("ADD of another", func(t *testing.T) {
		w := prepare(t)
		l := w.parse(`{"name":"a-b","cniVersion":"1.0.0","plugins":[{"type":"rec"}]}`)
		if _, err := w.Add(t.Context(), l, target("c")); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(w.Cache.Dir, "results", "a-b-c-eth0")); string(b) != entry {
			t.Errorf("another attachment's entry: %s, %v", b, err)
		}
		if err := w.Del(t.Context(), l, target("c")); err != nil {
			t.Error(err)
		}
		if names := w.entries(); len(names) != 2 {
			t.Errorf("the cache has %q", names)
		}
	})
}

// The namespace of a stale attachment ended without DEL.
func TestStaleEntry(t *testing.T) {
	w := newFixture(t, "rec")
	l := w.parse(cachedList)
	c := exec.Command("sleep", "60")
	if err := c.Start(); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	tg := target("c")
	tg.NetNS = "/proc/" + strconv.Itoa(c.Process.Pid) + "/ns/net"
	if _, err := w.Add(t.Context(), l, tg); err != nil {
		t.Fatal(err)
	}
	a := spec.Attachment{Network: "n", ContainerID: "c", IfName: "eth0"}
	dry := chain.GCOptions{Live: true, DryRun: true}
	if stale, err := w.GC(t.Context(), l, dry); err != nil || len(stale) != 0 {
		t.Errorf("stale while it lives: %v, %v", stale, err)
	}
	c.Process.Kill()
	c.Wait()
	if stale, err := w.GC(t.Context(), l, dry); err != nil || len(stale) != 1 || stale[0] != a {
		t.Errorf("stale after its end: %v, %v", stale, err)
	}
	w.records()
	if err := w.DeleteStale(t.Context(), func(o spec.Attachment) bool { return o == a }); err != nil {
		t.Error(err)
	}
	w.wantCalls("DEL rec")
	if names := w.entries(); len(names) != 0 {
		t.Errorf("the cache has %q", names)
	}
}

// overlapping is an invoker that counts concurrent calls, by container and in total.
type overlapping struct {
	sync.Mutex
	now, most map[string]int
	untilTwo  bool // each call waits until another one runs
}

func (o *overlapping) count(key string, by int) {
	o.Lock()
	defer o.Unlock()
	o.now[key] += by
	o.most[key] = max(o.most[key], o.now[key])
}

// overlapped reports whether two calls have overlapped.
func (o *overlapping) overlapped() bool {
	o.Lock()
	defer o.Unlock()
	return o.most["all"] > 1
}

func (o *overlapping) Invoke(_ context.Context, _ string, r *spec.Request) (*spec.Result, error) {
	keys := []string{r.ContainerID, "all"}
	for _, k := range keys {
		o.count(k, 1)
	}
	time.Sleep(30 * time.Millisecond)
	for o.untilTwo && !o.overlapped() {
		time.Sleep(time.Millisecond)
	}
	for _, k := range keys {
		o.count(k, -1)
	}
	return &spec.Result{}, nil
}

func (o *overlapping) Find(string) (*spec.Plugin, error) { return nil, nil }

func (o *overlapping) Known(string) *spec.Plugin { return nil }

// One verb runs at a time for a container, over all its interfaces, several for different
// containers, and none during GC.
func TestLocksExclude(t *testing.T) {
	w := newFixture(t)
	o := &overlapping{now: map[string]int{}, most: map[string]int{}, untilTwo: true}
	w.Invoker = o
	l := w.parse(`{"name":"n","cniVersion":"1.1.0","plugins":[{"type":"x"}]}`)
	var wg sync.WaitGroup
	for _, id := range []string{"a", "b"} {
		for _, ifName := range []string{"eth0", "eth1", "eth2"} {
			wg.Go(func() {
				tg := target(id)
				tg.IfName = ifName
				if _, err := w.Add(t.Context(), l, tg); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	if o.most["a"] != 1 || o.most["b"] != 1 || o.most["all"] < 2 {
		t.Errorf("at the same time: %v", o.most)
	}
	o.most, o.untilTwo = map[string]int{}, false
	for range 3 {
		wg.Go(func() {
			if _, err := w.GC(t.Context(), l, chain.GCOptions{Live: true}); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if err := w.Del(t.Context(), l, target("other")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if o.most[""] != 1 || o.most["all"] != 1 {
		t.Errorf("beside GC: %v", o.most)
	}
}

func TestLockEndsWithContext(t *testing.T) {
	w := newFixture(t, "rec")
	l := w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec","doADD":"sleep"}]}`)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Add(ctx, l, target("c")) }()
	kerneltest.Until(w, "an ADD that has the lock", func() bool { return len(w.entries()) > 0 })
	short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	err := w.Del(short, l, target("c"))
	wantErr(t, err, "another verb runs for container c")
	cancel()
	<-done
	if err := w.Del(t.Context(), l, target("c")); err != nil {
		t.Errorf("after the lock was given up: %v", err)
	}
}

// A lock file that cannot be opened is an I/O error, code 5, and not a lock in use. No plugin runs,
// and the other lock is released.
func TestLockFileCannotBeOpened(t *testing.T) {
	for kind, name := range map[string]string{"network": "n", "container": "c"} {
		w := newFixture(t, "rec")
		l := w.parse(cachedList)
		file := filepath.Join(w.Cache.Dir, "cnibox", "locks", kind+"-"+name)
		os.MkdirAll(file, 0o700)
		_, err := w.Add(t.Context(), l, target("c"))
		wantErr(t, err, kind+" "+name+" in the cache: lock "+file+": is a directory")
		if code(err) != spec.CodeIO || strings.Contains(err.Error(), "in use") {
			t.Errorf("%s: got code %d, %v", kind, code(err), err)
		}
		w.wantCalls("")
		if names := w.entries(); len(names) > 0 {
			t.Errorf("%s: the cache has %q", kind, names)
		}
		os.Remove(file)
		w.Cache.LockTimeout = 10 * time.Second
		if _, err := w.GC(t.Context(), l, chain.GCOptions{}); err != nil { // needs the network's lock exclusively
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// For each disk call of ADD that fails, either no plugin runs, or DEL follows and no entry remains.
func TestAddUndoneAfterDiskFault(t *testing.T) {
	for n := 1; ; n++ {
		w := newFixture(t, "rec")
		l := w.parse(cachedList)
		calls := 0
		fault.Hook = func(what string) error {
			if calls++; calls == n {
				return errors.New("fault at " + what)
			}
			return nil
		}
		_, err := w.Add(t.Context(), l, target("c"))
		fault.Hook = nil
		if err == nil {
			if n < 3 {
				t.Errorf("only %d calls could fail", n)
			}
			return
		}
		_, text := w.records()
		if text != "" && text != "ADD rec, DEL rec" {
			t.Errorf("fault %d (%v): calls %q", n, err, text)
		}
		if names := w.entries(); len(names) > 0 {
			t.Errorf("fault %d (%v): the cache has %q", n, err, names)
		}
	}
}

func FuzzEntry(f *testing.F) {
	f.Add([]byte(libcniEntry("")))
	f.Add([]byte(libcniEntry(`,"cniboxBootID":"x","cniboxNetNS":"1:2"`)))
	f.Add([]byte(`{"cniVersion":"0.2.0","ip4":{"ip":"10.1.2.3/24"}}`))
	f.Add([]byte(strings.Replace(libcniEntry(""), "cniCacheV1", "cniboxIntentV1", 1)))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, doc []byte) {
		w := &fixture{T: t, Runner: &chain.Runner{
			Invoker: noPlugin{}, Cache: &chain.Cache{Dir: dir}, KeepGoing: true, Warn: func(string, ...any) {},
		}}
		os.MkdirAll(filepath.Join(dir, "results"), 0o700)
		file, old := filepath.Join(dir, "results", "n-c-eth0"), time.Now().Add(-time.Hour)
		// An entry written less than a second ago is read again, since it may be incomplete.
		if err := errors.Join(os.WriteFile(file, doc, 0o600), os.Chtimes(file, old, old)); err != nil {
			t.Fatal(err)
		}
		bare := chain.RuntimeConf{ContainerID: "c", IfName: "eth0"}
		l := w.parse(cachedList)
		w.Check(t.Context(), l, bare)
		w.Get(t.Context(), l, bare)
		w.GC(t.Context(), l, chain.GCOptions{Live: true, DryRun: true})
		w.Del(t.Context(), l, bare)
	})
}

// noPlugin is an invoker whose plugins do nothing.
type noPlugin struct{}

func (noPlugin) Find(string) (*spec.Plugin, error) { return nil, nil }

func (noPlugin) Known(string) *spec.Plugin { return nil }

func (noPlugin) Invoke(_ context.Context, _ string, r *spec.Request) (*spec.Result, error) {
	if _, err := r.Wire(); err != nil {
		return nil, err
	}
	if !json.Valid(r.Conf()) {
		return nil, errors.New("a configuration that is not JSON")
	}
	return r.Prev, nil
}

// The base64 of a list may make its entry larger than the maximal configuration.
func TestEntryLargerThanConf(t *testing.T) {
	w := newFixture(t, "rec")
	l := w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec","pad":"` + strings.Repeat("x", 7<<19) + `"}]}`)
	if _, err := w.Add(t.Context(), l, target("c")); err != nil {
		t.Fatal(err)
	}
	e, err := w.Cache.Lookup(spec.Attachment{Network: "n", ContainerID: "c", IfName: "eth0"})
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Config) < 7<<19 {
		t.Errorf("the entry has %d bytes of configuration", len(e.Config))
	}
}

// The directory of entries may be on another file system than the cache, to which nothing can be
// linked or renamed.
func TestResultsOtherFileSystem(t *testing.T) {
	w := newFixture(t, "rec")
	shm, err := os.MkdirTemp("/dev/shm", "cnibox-test-")
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(shm) })
	os.Mkdir(w.Cache.Dir, 0o700)
	if err := os.Symlink(shm, filepath.Join(w.Cache.Dir, "results")); err != nil {
		t.Fatal(err)
	}
	l := w.parse(cachedList)
	if _, err := w.Add(t.Context(), l, target("c")); err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(shm, "n-old-eth0")
	os.WriteFile(old, nil, 0o600)
	os.Chtimes(old, time.Unix(1, 0), time.Unix(1, 0))
	if _, err := w.GC(t.Context(), l, chain.GCOptions{Live: true}); err != nil {
		t.Error(err)
	}
	if got := strings.Join(w.warned, "\n"); !strings.Contains(got, "n-old-eth0") || !strings.Contains(got, "is kept") {
		t.Errorf("warned %q", got)
	}
	for _, id := range []string{"c", "old"} {
		if err := w.Del(t.Context(), l, target(id)); err != nil {
			t.Error(err)
		}
	}
	if names := w.entries(); len(names) != 0 {
		t.Errorf("the cache has %q", names)
	}
}
