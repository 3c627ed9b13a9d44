package tuning

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/frame"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/spec/spectest"
)

// The reference replaces every dot by a slash, so names of interfaces cannot have dots.
func TestTuningSysctlPath(t *testing.T) {
	tests := map[string]struct{ key, ifName, want string }{
		"dots":                            {"net.ipv4.ip_forward", "eth0", "net/ipv4/ip_forward"},
		"slashes":                         {"net/ipv4/ip_forward", "eth0", "net/ipv4/ip_forward"},
		"IFNAME":                          {"net.ipv4.conf.IFNAME.arp_filter", "eth0", "net/ipv4/conf/eth0/arp_filter"},
		"IFNAME with dots":                {"net.ipv4.conf.IFNAME.arp_filter", "eth0.5", "net/ipv4/conf/eth0.5/arp_filter"},
		"first IFNAME alone":              {"net/ipv4/conf/IFNAME/IFNAME", "eth0", "net/ipv4/conf/eth0/IFNAME"},
		"dotted name after slashes":       {"net/ipv4/conf/eth0.5/arp_filter", "x", "net/ipv4/conf/eth0.5/arp_filter"},
		"dotted name after dots":          {"net.ipv4.conf.eth0/5.arp_filter", "x", "net/ipv4/conf/eth0.5/arp_filter"},
		"slash in front":                  {"/net/core/somaxconn", "x", "net/core/somaxconn"},
		"twice a dot is not a way up":     {"net..core.somaxconn", "x", "net/core/somaxconn"},
		"outside net":                     {"kernel.hostname", "x", ""},
		"net is not a file":               {"net", "x", ""},
		"name begins with net":            {"network.x", "x", ""},
		"up with slashes":                 {"net/../kernel/hostname", "x", ""},
		"up with dots that change places": {"net.//.kernel.hostname", "x", ""},
		"up and down inside net":          {"net/ipv4/../core/somaxconn", "x", ""},
		"here":                            {"net/./core/somaxconn", "x", ""},
		"NUL":                             {"net.core.some\x00thing", "x", ""},
		"empty":                           {"", "x", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := sysctlPath(tt.key, tt.ifName)
			if got != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
			if err != nil && !strings.Contains(err.Error(), "sysctl key") {
				t.Errorf("the reference's words are missing: %v", err)
			}
		})
	}
}

func TestTuningConf(t *testing.T) {
	tests := map[string]struct {
		conf, args string
		want       string // the plan; "" for an error
		err        string
		code       int
	}{
		"nothing":    {conf: `{}`, want: `{"link":{}}`},
		"every key":  {conf: `{"sysctl":{"net.core.somaxconn":"9","net.ipv4.conf.IFNAME.arp_filter":"1"},"mac":"02:00:00:00:00:AA","promisc":true,"mtu":1400,"allmulti":false,"txQLen":0,"dataDir":"/d"}`, want: `{"sysctls":["net/core/somaxconn=9","net/ipv4/conf/eth0/arp_filter=1"],"link":{"mac":"02:00:00:00:00:aa","promisc":true,"mtu":1400,"allmulti":false,"txQLen":0},"mac":"02:00:00:00:00:AA","dir":"/d"}`},
		"any case":   {conf: `{"MTU":1400,"TXQLEN":5,"Promisc":false}`, want: `{"link":{"mtu":1400,"txQLen":5},"off":true}`},
		"mtu 0":      {conf: `{"mtu":0}`, want: `{"link":{}}`},
		"args alone": {conf: `{"args":{"cni":{"sysctl":{"net.core.somaxconn":"7"},"mac":"02:00:00:00:00:03","promisc":true,"mtu":1300,"allmulti":true,"txQLen":3}}}`, want: `{"sysctls":["net/core/somaxconn=7"],"link":{"mac":"02:00:00:00:00:03","promisc":true,"mtu":1300,"allmulti":true,"txQLen":3},"mac":"02:00:00:00:00:03"}`},
		"args before keys, sysctls one by one": {conf: `{"sysctl":{"net.core.somaxconn":"1","net.core.optmem_max":"2"},"promisc":true,"mtu":1,"args":{"cni":{"sysctl":{"net/core/somaxconn":"7"},"promisc":false,"mtu":1300}}}`,
			want: `{"sysctls":["net/core/optmem_max=2","net/core/somaxconn=7"],"link":{"mtu":1300},"off":true}`},
		"runtimeConfig first": {conf: `{"mac":"02:00:00:00:00:01","args":{"cni":{"mac":"02:00:00:00:00:02"}},"runtimeConfig":{"mac":"02:00:00:00:00:0C"}}`, args: "MAC=02:00:00:00:00:04", want: `{"link":{"mac":"02:00:00:00:00:0c"},"mac":"02:00:00:00:00:0C"}`},
		"args.cni second":     {conf: `{"mac":"02:00:00:00:00:01","args":{"cni":{"mac":"02:00:00:00:00:02"}}}`, args: "MAC=02:00:00:00:00:04", want: `{"link":{"mac":"02:00:00:00:00:02"},"mac":"02:00:00:00:00:02"}`},
		"CNI_ARGS third":      {conf: `{"mac":"02:00:00:00:00:01"}`, args: "IgnoreUnknown=1;MAC=02:00:00:00:00:0D;K8S=x", want: `{"link":{"mac":"02:00:00:00:00:0d"},"mac":"02:00:00:00:00:0D"}`},
		"dashes":              {conf: `{"mac":"02-00-00-00-00-0A"}`, want: `{"link":{"mac":"02:00:00:00:00:0a"},"mac":"02:00:00:00:00:0a"}`},

		"duplicate":               {conf: `{"sysctl":{"net.core.somaxconn":"1","net.core.somaxconn":"2"}}`, err: "duplicated sysctl keys are not allowed", code: 7},
		"duplicate, escaped":      {conf: `{"sysctl":{"net.core.somaxconn":"1","net.core.som\u0061xconn":"2"}}`, err: "duplicated sysctl keys are not allowed", code: 7},
		"duplicate, other style":  {conf: `{"sysctl":{"net.core.somaxconn":"1","net/core/somaxconn":"2"}}`, err: "duplicated sysctl keys are not allowed", code: 7},
		"duplicate in args":       {conf: `{"args":{"cni":{"sysctl":{"net.a":"1","net.a":"1"}}}}`, err: "duplicated sysctl keys are not allowed", code: 7},
		"sysctl not an object":    {conf: `{"sysctl":["net.a"]}`, err: "sysctl", code: 7},
		"value not a string":      {conf: `{"sysctl":{"net.a":1}}`, err: "net.a", code: 7},
		"outside net":             {conf: `{"sysctl":{"kernel.hostname":"x"}}`, err: "sysctl key", code: 7},
		"mac":                     {conf: `{"mac":"nonsense"}`, err: "nonsense", code: 7},
		"multicast mac":           {conf: `{"mac":"01:00:00:00:00:01"}`, err: "multicast", code: 7},
		"mac in CNI_ARGS":         {conf: `{}`, args: "MAC=x", err: "CNI_ARGS", code: 4},
		"mtu below 0":             {conf: `{"mtu":-1}`, err: `"mtu" -1`, code: 7},
		"mtu too big":             {conf: `{"mtu":4294967296}`, err: `"mtu"`, code: 7}, // overflows a 32-bit int
		"txQLen below 0":          {conf: `{"txQLen":-1}`, err: `"txQLen" -1`, code: 7},
		"promisc not a bool":      {conf: `{"promisc":"yes"}`, err: "promisc", code: 7},
		"args.cni.mtu not an int": {conf: `{"args":{"cni":{"mtu":"big"}}}`, err: "mtu", code: 7},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := spectest.Request(t, spec.Add, tt.conf, tt.args)
			p := &conf{}
			err := frame.Read(r, p)
			spectest.WantError(t, err, tt.err, tt.code)
			if err == nil {
				if got := planText(p); got != tt.want {
					t.Errorf("got  %s\nwant %s", got, tt.want)
				}
			}
		})
	}
}

// planText formats a plan for comparison.
func planText(p *conf) string {
	var out struct {
		Sysctls []string   `json:"sysctls,omitempty"`
		Link    attributes `json:"link"`
		MAC     string     `json:"mac,omitempty"`
		Off     bool       `json:"off,omitempty"`
		Dir     string     `json:"dir,omitempty"`
	}
	for _, s := range p.sysctls {
		out.Sysctls = append(out.Sysctls, s.Key+"="+s.Value)
	}
	out.Link, out.MAC, out.Off = p.link, p.mac, p.off
	out.Dir = p.DataDir
	b, _ := json.Marshal(out)
	return string(b)
}

// Numbers are as C has them; the kernel has forms of its own for masks and lists of ports.
func TestTuningValueMeans(t *testing.T) {
	for _, tt := range []struct {
		key, value, now string
		want            bool
	}{
		{"net/ipv4/x", "+1", "1", true},
		{"net/ipv4/x", "010", "8", true},
		{"net/ipv4/x", "0x10 -1", "16\t-1", true},
		{"net/ipv4/x", "10", "8", false},
		{"net/ipv4/x", "reno cubic", "cubic reno", false},
		{"net/ipv4/ip_local_reserved_ports", "0x50,3,2,1,65535", "1-3,80,65535", true},
		{"net/ipv4/ip_local_reserved_ports", "", "", true},
		{"net/ipv4/ip_local_reserved_ports", "1-3", "1,3", false},
		{"net/ipv4/ip_local_reserved_ports", "70000", "4464", false},
		{"net/core/rps_default_mask", "F", "00000000,0000000f", true},
		{"net/core/rps_default_mask", "1,00000000", "00000001,00000000", true},
		{"net/core/rps_default_mask", "f", "1f", false},
	} {
		s := sysctl{Sysctl: netns.Sysctl{Key: tt.key, Value: tt.value}}
		if got := s.means(tt.now); got != tt.want {
			t.Errorf("%s = %q and %q: got %v", tt.key, tt.value, tt.now, got)
		}
	}
}

func TestTuningAllowlist(t *testing.T) {
	keys := []sysctl{{written: "net.ipv4.conf.IFNAME.arp_filter"}, {written: "net/core/somaxconn"}}
	tests := map[string]struct{ list, want string }{
		"both, unanchored":           {"arp_filter\nsomax", ""},
		"anchored":                   {"^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$\n^net/core/(somaxconn|optmem_max)$\n", ""},
		"comments, blanks, CR":       {"# what we allow\r\n\r\n  .* \r\n", ""},
		"one is missing":             {"arp_filter\n", "Sysctl net/core/somaxconn is not allowed"},
		"empty list allows nothing":  {"", "is not allowed"},
		"unreadable line":            {"net.(\n", "tuning-list:1: cannot read"},
		"unreadable line, not asked": {"net.(\n.", ""},
		"counts, classes, flags":     {`^net.ip[v]4{1}.conf\.IFNAME\.[[:lower:]_]{3,20}$` + "\n" + `(?i)^NET/core/\w+\b`, ""},
		"other letters":              {`ARP_filter` + "\n" + "é|somaxconn", "arp_filter is not allowed"},
		"end of the key":             {"^net.ipv4.conf.IFNAME.arp$\nsomaxconn", "arp_filter is not allowed"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "tuning-list")
			if err := os.WriteFile(file, []byte(tt.list), 0o600); err != nil {
				t.Fatal(err)
			}
			spectest.WantError(t, checkAllowed(file, keys), tt.want, spec.CodeConfig)
		})
	}
	if err := checkAllowed(filepath.Join(t.TempDir(), "none"), keys); err != nil {
		t.Errorf("without a list: %v", err)
	}
	if err := checkAllowed(t.TempDir(), keys); err == nil {
		t.Error("a list that cannot be read allows all")
	}
}

func FuzzTuningConf(f *testing.F) {
	f.Add(`{"sysctl":{"net.ipv4.conf.IFNAME.x":"1"},"mtu":5,"args":{"cni":{"sysctl":{"net/a":"b"}}}}`, "MAC=02:00:00:00:00:01")
	f.Fuzz(func(t *testing.T, text, args string) {
		r, err := spectest.TryRequest(spec.Add, text, args)
		if err != nil {
			return
		}
		p := &conf{}
		if frame.Read(r, p) != nil {
			return
		}
		for _, s := range p.sysctls {
			if !strings.HasPrefix(s.Key, "net/") || strings.Contains(s.Key+"/", "/../") || strings.Contains(s.Key, "\x00") {
				t.Errorf("%q leads to %q", s.written, s.Key)
			}
		}
	})
}
