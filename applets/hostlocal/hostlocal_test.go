package hostlocal_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/spec"
)

// A leaseHost is a data directory for configurations.
type leaseHost struct{ dir string }

// conf returns a configuration of version 1.1.0 with members of ipam and of the top level.
func (h leaseHost) conf(ipam, more string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"demo","type":"bridge"%s,"ipam":{"type":"host-local","dataDir":%q%s}}`, more, h.dir, ipam)
}

// run calls a verb; code is 0 or that of the error object.
func (h leaseHost) run(t *testing.T, verb spec.Verb, id, conf, args string) (code int, out string) {
	t.Helper()
	return applettest.AnswerIPAM(t, verb, "host-local", id, conf, args)
}

func (h leaseHost) want(t *testing.T, verb spec.Verb, id, conf, args string, code int, text string) {
	t.Helper()
	applettest.WantIPAM(t, verb, "host-local", id, conf, args, code, text)
}

const subnet4 = `,"subnet":"10.1.0.0/24"`

func TestHostLocalResult(t *testing.T) {
	h := leaseHost{t.TempDir()}
	resolv := filepath.Join(h.dir, "resolv.conf")
	os.WriteFile(resolv, []byte("# c\nnameserver 1.1.1.1\n;x y\nnameserver 9.9.9.9\ndomain d\nsearch a b\noptions ndots:5\nbad\n"), 0o600)
	conf := h.conf(fmt.Sprintf(`,"subnet":"10.1.0.0/24","ranges":[[{"subnet":"fd00:1::/64","gateway":"fd00:1::9"}]],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"fd00::/8","gw":"fd00:1::7","mtu":1400}],"resolvConf":%q`, resolv),
		`,"runtimeConfig":{"ipRanges":[[{"subnet":"10.9.0.0/16","rangeStart":"10.9.1.1","rangeEnd":"","gateway":""}]]}`)
	want := `{"cniVersion":"1.1.0",
		"dns":{"domain":"d","nameservers":["1.1.1.1","9.9.9.9"],"options":["ndots:5"],"search":["a","b"]},
		"ips":[{"address":"10.9.1.1/16","gateway":"10.9.0.1"},{"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"address":"fd00:1::1/64","gateway":"fd00:1::9"}],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"fd00::/8","gw":"fd00:1::7","mtu":1400}]}`
	h.want(t, "ADD", "a", conf, "", 0, want)
	h.want(t, "ADD", "a", conf, "", 100, "range 0: 10.9.1.1 has been allocated to a, duplicate allocation is not allowed")
	h.want(t, "GET", "a", conf, "", 0, want)
	h.want(t, "GET", "b", conf, "", 3, "container b")
	h.want(t, "DEL", "a", conf, "", 0, "")
	h.want(t, "DEL", "a", conf, "", 0, "")
	h.want(t, "GET", "a", conf, "", 3, "")
	link := filepath.Join(h.dir, "null")
	if err := os.Symlink("/dev/null", link); err != nil {
		t.Fatal(err)
	}
	for i, none := range []string{"/dev/null", link} {
		h.want(t, "ADD", fmt.Sprint("null", i), h.conf(subnet4+fmt.Sprintf(`,"resolvConf":%q`, none), ""), "", 0,
			fmt.Sprintf(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.%d/24","gateway":"10.1.0.1"}]}`, 2+i))
	}
	old := strings.Replace(h.conf(subnet4, ""), "1.1.0", "0.2.0", 1)
	h.want(t, "ADD", "b", old, "", 0, `"ip4":{"gateway":"10.1.0.1","ip":"10.1.0.4/24"}`)
}

// A lease of host-local up to 0.7 has the container's ID alone. GET, CHECK and DEL find it, and GC keeps it while an
// interface of the container is valid.
func TestHostLocalLeaseWithoutInterface(t *testing.T) {
	h := leaseHost{t.TempDir()}
	conf := h.conf(subnet4+`,"ranges":[[{"subnet":"fd00:1::/64"}]]`, "")
	prev := h.conf(subnet4, `,"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.9/24"}]}`)
	gc := func(valid string) string { return h.conf("", `,"cni.dev/valid-attachments":[`+valid+`]`) }
	files := map[string]string{"10.1.0.9": "a", "fd00:1::9": "a\n", "10.1.0.20": "two", "10.1.0.21": "two"}
	write := func() {
		t.Helper()
		for a, content := range files {
			if err := os.MkdirAll(filepath.Join(h.dir, "demo"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(h.dir, "demo", a), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	there := func(want ...string) {
		t.Helper()
		for a := range files {
			if _, err := os.Stat(filepath.Join(h.dir, "demo", a)); (err == nil) != slices.Contains(want, a) {
				t.Errorf("%s: %v, want %q", a, err, want)
			}
		}
	}
	write()
	h.want(t, "GET", "a", conf, "", 0, `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.9/24","gateway":"10.1.0.1"},{"address":"fd00:1::9/64","gateway":"fd00:1::1"}]}`)
	h.want(t, "CHECK", "a", prev, "", 0, "")
	h.want(t, "CHECK", "b", prev, "", 102, "10.1.0.9 is leased to container a")
	h.want(t, "GC", "a", gc(`{"containerID":"a","ifname":"net7"},{"containerID":"two","ifname":"eth0"}`), "", 0, "")
	there("10.1.0.9", "fd00:1::9", "10.1.0.20", "10.1.0.21")
	h.want(t, "DEL", "b", conf, "", 0, "")
	h.want(t, "DEL", "two", conf, "", 0, "")
	h.want(t, "DEL", "a", conf, "", 0, "")
	there("10.1.0.20", "10.1.0.21")
	h.want(t, "GET", "a", conf, "", 3, "")
	h.want(t, "GC", "a", gc(`{"containerID":"a","ifname":"eth0"}`), "", 0, "")
	there()
}

func TestHostLocalRequested(t *testing.T) {
	h := leaseHost{t.TempDir()}
	two := `,"subnet":"10.1.0.0/24","ranges":[[{"subnet":"fd00:1::/64"}],[{"subnet":"10.2.0.0/24"}]]`
	all := h.conf(two, `,"args":{"cni":{"ips":["fd00:1::77"]}},"runtimeConfig":{"ips":["10.2.0.7/24","",  "10.1.0.7"]}`)
	h.want(t, "ADD", "a", all, "IP=10.1.0.7/8;IgnoreUnknown=1;K8S_POD_NAME=p", 0,
		`"ips":[{"address":"10.1.0.7/24","gateway":"10.1.0.1"},{"address":"fd00:1::77/64","gateway":"fd00:1::1"},{"address":"10.2.0.7/24"`)
	conf := h.conf(subnet4, "")
	for _, text := range []string{"IP address 10.1.0.7 is not", "range set 10.1.0.1-10.1.0.254; ", "container a, interface eth0: "} {
		h.want(t, "ADD", "b", conf, "IP=10.1.0.7", 100, text)
	}
	h.want(t, "ADD", "b", conf, "IP=10.1.0.1", 7, "requested ip 10.1.0.1 is subnet's gateway")
	h.want(t, "ADD", "b", conf, "IP=10.7.0.1", 7, `requested IPs: 10.7.0.1; `)
	h.want(t, "ADD", "b", conf, "IP=ten", 4, `"ten"`)
	h.want(t, "ADD", "b", h.conf(subnet4, `,"runtimeConfig":{"ips":["fe80::1%eth0"]}`), "", 7, `runtimeConfig.ips: invalid IP address "fe80::1%eth0"`)
	h.want(t, "ADD", "b", h.conf(subnet4, `,"runtimeConfig":{"ips":["10.1.0.8","10.1.0.9"]}`), "", 7, `requested IPs: 10.1.0.9; `)
}

// ADD refuses invalid configurations before any change.
func TestHostLocalConfig(t *testing.T) {
	h := leaseHost{filepath.Join(t.TempDir(), "data")}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	fault.Hook = func(what string) error { t.Errorf("wanted to %s", what); return nil }
	defer func() { fault.Hook = nil }()
	tests := map[string]struct {
		conf string
		code int
		text string
	}{
		"no ipam":        {`{"cniVersion":"1.0.0","name":"demo","type":"bridge"}`, 7, "ipam"},
		"no range":       {h.conf("", ""), 7, "IP ranges"},
		"rangeStart":     {h.conf(`,"rangeStart":"10.1.0.5"`, ""), 7, "IP ranges"},
		"bad subnet":     {h.conf(`,"subnet":"10.1.0.0"`, ""), 7, "ipam"},
		"subnet type":    {h.conf(`,"subnet":5`, ""), 7, "subnet"},
		"too small":      {h.conf(`,"subnet":"10.1.0.0/31"`, ""), 7, "10.1.0.0/31"},
		"overlap":        {h.conf(subnet4+`,"ranges":[[{"subnet":"10.1.0.0/16"}]]`, ""), 7, "range set 0 overlaps with 1"},
		"empty set":      {h.conf(`,"ranges":[[]]`, ""), 7, "invalid range set 0: empty range set"},
		"relative dir":   {strings.Replace(h.conf(subnet4, ""), h.dir, "var/lib", 1), 7, `"dataDir" "var/lib" is not an absolute path`},
		"NUL dir":        {strings.Replace(h.conf(subnet4, ""), h.dir, `/a\u0000b`, 1), 7, "dataDir"},
		"routes":         {h.conf(subnet4+`,"routes":[{"dst":"x"}]`, ""), 7, "routes"},
		"routes type":    {h.conf(subnet4+`,"routes":{}`, ""), 7, "routes"},
		"no resolv.conf": {h.conf(subnet4+`,"resolvConf":"/nonexistent/resolv.conf"`, ""), 5, "no such"},
		"device":         {h.conf(subnet4+`,"resolvConf":"/dev/zero"`, ""), 5, "regular file"},
		"fifo":           {h.conf(subnet4+fmt.Sprintf(`,"resolvConf":%q`, fifo), ""), 5, "regular file"},
		"name":           {strings.Replace(h.conf(subnet4, ""), "demo", "../x", 1), 7, "network name"},
		"two of a family": {strings.Replace(h.conf(subnet4+`,"ranges":[[{"subnet":"10.2.0.0/16"}]]`, ""), "1.1.0", "0.2.0", 1), 7,
			"0.2.0"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h.want(t, "ADD", "a", tt.conf, "", tt.code, tt.text)
			if _, err := os.Lstat(h.dir); err == nil {
				t.Error("the data directory was made")
			}
		})
	}
}

func TestHostLocalCheck(t *testing.T) {
	h := leaseHost{t.TempDir()}
	prev := func(ips string) string {
		return h.conf(subnet4, `,"prevResult":{"cniVersion":"1.1.0","ips":[`+ips+`]}`)
	}
	mine := `{"address":"10.1.0.2/24"}`
	h.want(t, "CHECK", "a", prev(mine), "", 102, "container a")
	if left, _ := os.ReadDir(h.dir); len(left) > 0 {
		t.Errorf("CHECK made %v", left)
	}
	h.run(t, "ADD", "a", h.conf(subnet4, ""), "")
	h.run(t, "ADD", "b", h.conf(subnet4, ""), "")
	h.want(t, "CHECK", "a", prev(mine), "", 0, "")
	h.want(t, "CHECK", "a", prev(mine+`,{"address":"192.0.2.1/24"}`), "", 0, "") // of another plugin
	h.want(t, "CHECK", "a", prev(`{"address":"10.1.0.3/24"}`), "", 102, `container a; 10.1.0.3 is leased to container b, interface eth0`)
	h.want(t, "CHECK", "a", prev(mine+`,{"address":"10.1.0.9/24"}`), "", 102, "container a")
	h.want(t, "CHECK", "c", prev(mine), "", 102, "container c")
	os.Remove(filepath.Join(h.dir, "demo", "10.1.0.2"))
	h.want(t, "CHECK", "a", prev(mine), "", 102, "container a")
	h.want(t, "CHECK", "a", prev(mine), "", 102, "container a")
}

// DEL accepts configurations that ADD refuses.
func TestHostLocalDel(t *testing.T) {
	h := leaseHost{t.TempDir()}
	for i, conf := range []string{
		h.conf("", ""),
		h.conf(`,"subnet":"rubbish","ranges":17,"routes":"x","resolvConf":"/nonexistent"`, `,"runtimeConfig":{"ips":5},"args":{"cni":7}`),
		strings.Replace(h.conf("", ""), "1.1.0", "0.1.0", 1),
	} {
		h.want(t, "ADD", "a", h.conf(subnet4, ""), "", 0, fmt.Sprint("10.1.0.", 2+i))
		h.want(t, "DEL", "a", conf, "garbage=1", 0, "")
		h.want(t, "GET", "a", h.conf(subnet4, ""), "", 3, "")
	}
	// DEL reads the valid keys that locate the leases.
	t.Chdir(filepath.Dir(h.dir))
	for _, conf := range []string{
		h.conf(`,"keepAcrossBoots":"yes"`, ""),
		strings.Replace(h.conf("", ""), h.dir, filepath.Base(h.dir), 1),
	} {
		h.run(t, "ADD", "a", h.conf(subnet4, ""), "")
		h.want(t, "GC", "", strings.Replace(conf, "{", `{"cni.dev/valid-attachments":[],`, 1), "", 7, "")
		h.want(t, "DEL", "a", conf, "", 0, "ignored for DEL: ")
		h.want(t, "GET", "a", h.conf(subnet4, ""), "", 3, "")
	}
	t.Run("usual directory", func(t *testing.T) {
		const usual = "/var/lib/cni/networks"
		if _, err := os.ReadDir(usual); errors.Is(err, os.ErrPermission) {
			t.Skipf("SKIPPED: this user may not read %s", usual)
		}
		for _, dir := range []string{"5", `"/a\u0000b"`} {
			conf := strings.Replace(h.conf("", ""), fmt.Sprintf("%q", h.dir), dir, 1)
			conf = strings.Replace(conf, "demo", fmt.Sprint("cnibox-test-", os.Getpid()), 1)
			h.want(t, "DEL", "a", conf, "", 0, "ignored for DEL: ")
		}
	})
	empty := leaseHost{filepath.Join(t.TempDir(), "none")}
	empty.want(t, "DEL", "a", empty.conf(subnet4, ""), "", 0, "")
	empty.want(t, "GC", "", empty.conf(subnet4, `,"cni.dev/valid-attachments":[]`), "", 0, "")
	if _, err := os.Lstat(empty.dir); err == nil {
		t.Error("DEL made the data directory")
	}
}

func TestHostLocalGC(t *testing.T) {
	h := leaseHost{t.TempDir()}
	conf := h.conf(subnet4, "")
	for _, id := range []string{"a", "b", "c"} {
		h.run(t, "ADD", id, conf, "")
	}
	for ip, content := range map[string]string{"10.1.0.50": "a", "10.1.0.51": "gone", "10.1.0.52": ""} {
		os.WriteFile(filepath.Join(h.dir, "demo", ip), []byte(content), 0o600)
	}
	h.want(t, "GC", "", conf, "", 7, "")
	h.want(t, "GC", "", h.conf("", `,"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"},{"containerID":"b","ifname":"eth1"}]`), "", 0, "")
	var left []string
	files, _ := filepath.Glob(filepath.Join(h.dir, "demo", "10.*"))
	for _, f := range files {
		left = append(left, filepath.Base(f))
	}
	if got := strings.Join(left, " "); got != "10.1.0.2 10.1.0.50" {
		t.Errorf("left: %s", got)
	}
	h.want(t, "GC", "", h.conf("", `,"cni.dev/valid-attachments":null`), "", 0, "")
	if files, _ = filepath.Glob(filepath.Join(h.dir, "demo", "10.*")); len(files) > 0 {
		t.Errorf("left: %v", files)
	}
}

func TestHostLocalStatus(t *testing.T) {
	h := leaseHost{t.TempDir()}
	conf := h.conf(`,"subnet":"10.1.0.0/30"`, "")
	h.want(t, "STATUS", "", conf, "", 0, "")
	h.want(t, "STATUS", "", h.conf("", ""), "", 0, "") // runtimes pass ranges with ADD
	if left, _ := os.ReadDir(h.dir); len(left) > 0 {
		t.Errorf("STATUS made %v", left)
	}
	h.run(t, "ADD", "a", conf, "")
	h.want(t, "STATUS", "", conf, "", 50, "10.1.0.1-10.1.0.2")
	h.want(t, "STATUS", "", h.conf(`,"subnet":"10.1.0.0/29"`, ""), "", 0, "")
	h.want(t, "ADD", "b", conf, "", 101, "10.1.0.1-10.1.0.2")
	h.run(t, "DEL", "a", conf, "")
	h.want(t, "STATUS", "", conf, "", 0, "")
	h.want(t, "STATUS", "", h.conf(`,"subnet":"10.1.0.0/32"`, ""), "", 7, "10.1.0.0/32")
	blocked := leaseHost{filepath.Join(h.dir, "demo", "lock")}
	blocked.want(t, "STATUS", "", blocked.conf(subnet4, ""), "", 50, "not a directory")
	blocked.want(t, "ADD", "a", blocked.conf(subnet4, ""), "", 5, "not a directory")
}

// If the lock is a socket, verbs fail, and do not wait for it.
func TestHostLocalLockIsSocket(t *testing.T) {
	h := leaseHost{t.TempDir()}
	if err := os.Mkdir(filepath.Join(h.dir, "demo"), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(h.dir, "demo", "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h.want(t, "ADD", "a", h.conf(subnet4, ""), "", 5, "lock")
	h.want(t, "DEL", "a", h.conf(subnet4, ""), "", 5, "lock")
	h.want(t, "STATUS", "", h.conf(subnet4, ""), "", 50, "lock")
}

// Leases end with the boot recorded in the index, unless keepAcrossBoots is set.
func TestHostLocalKeepAcrossBoots(t *testing.T) {
	for keep, noted := range map[string]bool{"": true, `,"keepAcrossBoots":false`: true, `,"keepAcrossBoots":true`: false} {
		h := leaseHost{t.TempDir()}
		h.want(t, "ADD", "a", h.conf(subnet4+keep, ""), "", 0, `"address":"10.1.0.2/24"`)
		_, err := os.Lstat(filepath.Join(h.dir, ".cnibox/demo/by-boot/kept"))
		if (err != nil) != noted {
			t.Errorf("%q: the boot is noted: %t, want %t", keep, err != nil, noted)
		}
	}
}
