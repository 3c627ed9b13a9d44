package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// stateCommands are commands that print the kernel's state.
var stateCommands = [][]string{
	{"ip", "-o", "link"}, {"ip", "-o", "addr"}, {"ip", "route", "show", "table", "all"}, {"ip", "-6", "route", "show", "table", "all"},
	{"ip", "rule"}, {"ip", "-6", "rule"}, {"ip", "neigh", "show", "nud", "permanent"}, {"tc", "qdisc"}, {"nft", "-s", "list", "ruleset"}, {"ip", "netns"},
}

// dirs are directories with state.
var dirs = []string{"/var/lib/cni", "/var/lib/cnibox", "/run/cnibox", "/run/cni", "/run/netns"}

// settings are sysctls that plugins change.
var settings = []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/all/route_localnet", "net/ipv4/conf/up0/route_localnet"}

// volatile matches what changes by itself, such as lifetimes.
var volatile = regexp.MustCompile(`^\d+: |@if\d+|\b(used|expires) \S+|valid_lft \S+|preferred_lft \S+|# handle \d+`)

// held returns the state of the kernel and the disk in lines.
func held() ([]string, error) {
	var lines []string
	for _, argv := range stateCommands {
		out, err := command(argv...)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			lines = append(lines, argv[0]+" "+argv[len(argv)-1]+": "+strings.TrimRight(volatile.ReplaceAllString(line, ""), "\n"))
		}
	}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				lines = append(lines, "file "+path)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	for _, name := range settings {
		value, err := os.ReadFile("/proc/sys/" + name)
		if err != nil {
			return nil, err
		}
		lines = append(lines, name+"="+strings.TrimSpace(string(value)))
	}
	return lines, nil
}

// difference returns the lines that one of them lacks.
func difference(before, after []string) string {
	var b strings.Builder
	for _, line := range before {
		if !slices.Contains(after, line) {
			b.WriteString("- " + line + "\n")
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			b.WriteString("+ " + line + "\n")
		}
	}
	return b.String()
}
