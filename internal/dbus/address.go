package dbus

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
)

// Sockets returns the Unix sockets in a list of server addresses separated by ";", for [Dial]: D-Bus
// Specification, "Server Addresses". It skips addresses of other transports. A list without a Unix
// socket is an error.
func Sockets(address string) (sockets []string, err error) {
	for one := range strings.SplitSeq(address, ";") {
		transport, keys, _ := strings.Cut(one, ":")
		if transport != "unix" {
			continue
		}
		for pair := range strings.SplitSeq(keys, ",") {
			key, value, _ := strings.Cut(pair, "=")
			if value, err = url.PathUnescape(value); err != nil {
				return nil, fmt.Errorf("%q: bad escape in %q", address, pair)
			}
			switch {
			case strings.Contains(value, "\x00"):
				return nil, fmt.Errorf("%q: zero byte in %q", address, pair)
			case key == "path" && filepath.IsAbs(value):
				sockets = append(sockets, value)
			case key == "abstract" && value != "":
				sockets = append(sockets, "@"+value)
			}
		}
	}
	if sockets == nil {
		return nil, fmt.Errorf("%q has no Unix socket: it is as unix:path=/run/dbus/system_bus_socket, or unix:abstract=NAME", address)
	}
	return sockets, nil
}
