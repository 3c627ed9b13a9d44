package ipam

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/spec"
)

// maxResolvConf is the largest resolv.conf that is read, in bytes.
const maxResolvConf = 64 << 10

// ReadResolvConf reads the file at path, which may be a symbolic link, as on hosts
// with systemd-resolved. It never waits for a pipe.
func ReadResolvConf(path string) (spec.DNS, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return spec.DNS{}, fmt.Errorf("resolvConf %s: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errOdd
	}
	if err != nil {
		return spec.DNS{}, fmt.Errorf("resolvConf %s: %w", path, err)
	}
	buf := make([]byte, maxResolvConf+1)
	n, err := file(fd).ReadAt(buf, 0)
	switch {
	case err != nil && err != io.EOF:
		return spec.DNS{}, &os.PathError{Op: "resolvConf", Path: path, Err: err}
	case n > maxResolvConf:
		return spec.DNS{}, fmt.Errorf("resolvConf %s: %w", path, unix.EFBIG)
	}
	return ParseResolvConf(buf[:n]), nil
}

// ParseResolvConf reads resolv.conf(5) as the reference does: nameserver, domain,
// search and options, of which the last domain counts and all others add up.
func ParseResolvConf(text []byte) spec.DNS {
	var dns spec.DNS
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) < 2 || f[0][0] == '#' || f[0][0] == ';' {
			continue
		}
		switch f[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, f[1])
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
