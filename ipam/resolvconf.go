package ipam

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/spec"
)

// maxResolvConf is the largest resolv.conf that is read, in bytes.
const maxResolvConf = 64 << 10

// ReadResolvConf reads the file at path, which may be a symbolic link, as on hosts with
// systemd-resolved. It never blocks on a pipe. A missing file is an error, as in the reference,
// since the configuration names it. /dev/null, which some configurations use to have no DNS, is
// empty.
func ReadResolvConf(path string) (spec.DNS, error) {
	null, _ := os.Stat(os.DevNull)
	if file, err := os.Stat(path); err == nil && os.SameFile(file, null) {
		return spec.DNS{}, nil
	}
	text, err := disk.Read(path, unix.O_NOCTTY, maxResolvConf)
	if err != nil {
		return spec.DNS{}, fmt.Errorf("\"ipam.resolvConf\": %w", err)
	}
	return ParseResolvConf(text), nil
}

// ParseResolvConf parses resolv.conf(5) as the reference does: nameserver, domain, search and
// options. The last domain counts; the other lines are accumulated. Values other than addresses are
// not checked; each is one word.
func ParseResolvConf(text []byte) spec.DNS {
	var dns spec.DNS
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) < 2 || f[0][0] == '#' || f[0][0] == ';' {
			continue
		}
		switch f[0] {
		case "nameserver":
			if _, err := netip.ParseAddr(f[1]); err == nil { // as the resolver parses it
				dns.Nameservers = append(dns.Nameservers, f[1])
			}
		case "domain":
			dns.Domain = f[1]
		case "search":
			dns.Search = append(dns.Search, f[1:]...)
		case "options":
			dns.Options = append(dns.Options, f[1:]...)
		}
	}
	return dns
}
