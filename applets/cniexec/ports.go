package cniexec

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/applets/hostport"
	"github.com/cnibox/cnibox/spec"
)

// parsePublished reads a value of --publish: a port, or those of a range.
func parsePublished(s string) ([]spec.Port, error) {
	ports, err := parsePorts(s)
	if errors.Is(err, errPorts) || err == nil && ports[0].ContainerPort == 0 {
		return nil, errors.New("it must be [IP:]HOST:CONTAINER[/tcp|udp|sctp], with ports from 1 to 65535, or ranges of them")
	}
	return ports, err
}

// protocols are those with ports that can be published.
var protocols = []string{"tcp", "udp", "sctp"}

// errPorts is the error of a text that parsePorts cannot read.
var errPorts = errors.New("a port is a number from 1 to 65535")

// parsePorts reads [IP:]HOST[:CONTAINER][/PROTOCOL], PROTOCOL/HOST, or IP[/PROTOCOL]; IPv6 addresses
// with a port are in brackets. HOST and CONTAINER are ports, or ranges of the same length. What is not there is zero, but tcp
// for a port without a protocol. There is one port at least.
func parsePorts(s string) (all []spec.Port, err error) {
	text, protocol, ok := cutProtocol(s)
	p := spec.Port{Protocol: protocol}
	if p.HostIP, err = parseIP(text); err == nil && ok {
		return []spec.Port{p}, nil
	}
	if protocol == "" {
		p.Protocol = "tcp"
	}
	rest, container, found := cutLast(text, ":")
	ip, host, hasIP := cutLast(rest, ":")
	_, err = parseIP(rest)
	switch {
	case !found:
		host = text
	case err == nil:
		ip, host, hasIP, found = rest, container, true, false
	}
	var errs [3]error
	if hasIP {
		p.HostIP, errs[0] = parseIP(ip)
	}
	var last, containerLast uint16
	p.HostPort, last, errs[1] = parseRange(host)
	if found {
		p.ContainerPort, containerLast, errs[2] = parseRange(container)
	}
	switch {
	case !ok || errors.Join(errs[:]...) != nil:
		return nil, errPorts
	case found && last-p.HostPort != containerLast-p.ContainerPort:
		return nil, fmt.Errorf("the ranges must have the same length: %s are %d ports, %s are %d",
			host, int(last-p.HostPort)+1, container, int(containerLast-p.ContainerPort)+1)
	}
	for all = []spec.Port{p}; p.HostPort < last; all = append(all, p) {
		p.HostPort++
		if found {
			p.ContainerPort++
		}
	}
	return all, nil
}

// cutProtocol splits PROTOCOL/PORT, PORT/PROTOCOL as ls prints it, or a PORT alone. It is false for another word
// than a protocol.
func cutProtocol(s string) (port, protocol string, ok bool) {
	before, after, slash := strings.Cut(s, "/")
	known := func(s string) bool { return slices.Contains(protocols, strings.ToLower(s)) }
	if slash && known(before) {
		return after, strings.ToLower(before), true
	}
	return before, strings.ToLower(after), !slash || known(after)
}

// parseIP reads an address, which may be in brackets.
func parseIP(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return a.Unmap(), err
}

// parseRange reads a port or a range, FIRST-LAST.
func parseRange(s string) (first, last uint16, err error) {
	from, to, isRange := strings.Cut(s, "-")
	first, err = parsePort(from)
	if last = first; isRange && err == nil {
		last, err = parsePort(to)
	}
	if last < first {
		err = strconv.ErrRange
	}
	return first, last, err
}

// parsePort reads 1 to 65535. Zero is not a port here.
func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if n == 0 && err == nil {
		err = strconv.ErrRange
	}
	return uint16(n), err
}

// cutLast cuts at the last sep; without sep, after is all of s.
func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return "", s, false
	}
	return s[:i], s[i+len(sep):], true
}

// publishAdvice says what a list needs for published ports.
func (c *call) publishAdvice() string {
	plugins := c.linter().Decoding(spec.CapPorts)
	if len(plugins) == 0 {
		return ""
	}
	return fmt.Sprintf(`: add {"type": %q, "capabilities": {%q: true}} to its list`, plugins[0], spec.CapPorts)
}

// listening returns the error for ports on which processes of the host listen; nil: none.
func listening(ports []spec.Port) error {
	var found []string
	for _, l := range hostport.Listening(ports) {
		found = append(found, l.String())
	}
	if len(found) == 0 {
		return nil
	}
	return spec.Errorf(spec.CodeBusy, "in use on this host: %s: publish another port, stop that process, or take the port from it with --force",
		strings.Join(found, ", "))
}
