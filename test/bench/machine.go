package main

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// A machine is what the figures depend on besides the code. Ratios can be compared between
// machines, times cannot.
type machine struct {
	Kernel string `json:"kernel"`
	CPUs   int    `json:"cpus"`
	Go     string `json:"go"`
	Arch   string `json:"arch"`
	HZ     string `json:"hz,omitempty"` // CONFIG_HZ; removal of links waits for the tick
}

// String formats the line above the table.
func (m machine) String() string {
	s := fmt.Sprintf("kernel %s, %d CPUs, %s, %s", m.Kernel, m.CPUs, m.Arch, m.Go)
	if m.HZ != "" {
		s += ", HZ " + m.HZ
	}
	return s
}

// thisMachine leaves empty what the kernel does not report.
func thisMachine() machine {
	m := machine{CPUs: runtime.NumCPU(), Go: runtime.Version(), Arch: runtime.GOARCH}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	m.HZ = configured("CONFIG_HZ=")
	return m
}

// configured returns a value of /proc/config.gz, or "" without CONFIG_IKCONFIG_PROC, as on many
// distributions.
func configured(prefix string) string {
	f, err := os.Open("/proc/config.gz")
	if err != nil {
		return ""
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return ""
	}
	for lines := bufio.NewScanner(z); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), prefix); ok {
			return value
		}
	}
	return ""
}
