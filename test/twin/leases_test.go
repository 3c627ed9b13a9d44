package twin_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// leased is a directory with leases that host-local of both sides share.
type leased struct{ dir string }

// run runs a verb of a directory's host-local for a container and returns the address that ADD gave.
// The range is small, so that each address is reused many times.
func (l leased) run(plugins, verb, id string) (string, error) {
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net1","type":"host-local",
		"ipam":{"type":"host-local","subnet":"10.1.0.0/26","dataDir":%q}}`, l.dir)
	cmd := exec.Command(filepath.Join(plugins, "host-local"))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0", "CNI_NETNS=/dev/null", "CNI_PATH=/"}
	cmd.Stdin = strings.NewReader(conf)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s of %s: %w: %s", verb, id, plugins, err, out)
	}
	if verb != "ADD" {
		return "", nil
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal(out, &result); err != nil || len(result.IPs) != 1 {
		return "", fmt.Errorf("%s: %s: %w", plugins, out, err)
	}
	return result.IPs[0].Address.Addr().String(), nil
}

// owner returns who has an address, or "".
func (l leased) owner(ip string) string {
	b, _ := os.ReadFile(filepath.Join(l.dir, "net1", ip))
	id, _, _ := strings.Cut(string(bytes.TrimSpace(b)), "\r\n")
	return id
}

// rounds runs ADD and DEL, with two leases at a time. For each lease there is a file, so that an
// address that is leased twice is detected.
func (l leased) rounds(plugins, name string, n int) error {
	id := func(i int) string { return fmt.Sprint(name, "-", i) }
	ips := make([]string, n)
	for i := range n + 1 {
		if i < n {
			ip, err := l.run(plugins, "ADD", id(i))
			if err != nil {
				return err
			}
			f, err := os.OpenFile(l.claim(ip), os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return fmt.Errorf("an address was given out twice: %w", err)
			}
			f.Close()
			ips[i] = ip
		}
		if i == 0 {
			continue
		}
		ip := ips[i-1]
		if err := os.Remove(l.claim(ip)); err != nil { // first, since it may be leased again at once
			return err
		}
		if _, err := l.run(plugins, "DEL", id(i-1)); err != nil {
			return err
		}
		if l.owner(ip) == id(i-1) {
			return fmt.Errorf("%s keeps its lease of %s after DEL", id(i-1), ip)
		}
	}
	return nil
}

// claim returns the file that exists while an address is leased.
func (l leased) claim(ip string) string { return filepath.Join(l.dir, "claim-"+ip) }

// Each side's host-local honours and releases what the other has leased, one after the other and at
// the same time.
func TestKernelTwinLeases(t *testing.T) {
	needReference(t)
	lab := newLab(t)
	l := leased{t.TempDir()}
	for _, s := range []struct{ plugins, verb, id, ip string }{
		{lab.Ours, "ADD", "ours", "10.1.0.2"},
		{lab.Reference, "ADD", "theirs", "10.1.0.3"},
		{lab.Reference, "CHECK", "ours", ""},
		{lab.Reference, "DEL", "ours", ""},
		{lab.Ours, "DEL", "theirs", ""},
		{lab.Ours, "ADD", "next", "10.1.0.4"},
		{lab.Ours, "DEL", "next", ""},
	} {
		if ip, err := l.run(s.plugins, s.verb, s.id); err != nil || ip != s.ip {
			t.Fatalf("%s %s: got %q, %v; want %q", s.verb, s.id, ip, err, s.ip)
		}
	}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			if err := l.rounds(lab.Ours, fmt.Sprint("ours", i), 50); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if err := l.rounds(lab.Reference, fmt.Sprint("theirs", i), 50); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if left, _ := filepath.Glob(filepath.Join(l.dir, "net1", "10.*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
