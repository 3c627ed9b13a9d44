//go:build !no_dhcp

package e2e

import "syscall"

// What dhcp changes its daemon does, whose faults are in dhcp_test.go.
func init() {
	goodConfs["dhcp"] = goodHead + `"type":"dhcp","ipam":{"type":"dhcp","daemonSocketPath":"$DIR/dhcp.sock"},` + goodPrev + `}`
	everyPlugin["dhcp"] = fixture{
		after: "bridge", idle: true, prepare: func(w *world) {
			p := furnishDHCP(w).daemon()
			w.stop = func() { p.kill(syscall.SIGKILL) }
		},
		takeAway: func(w *world) { w.dropLink("br0"); w.dropLink("port0") },
		invalid:  `"ipam":{"type":"dhcp","daemonSocketPath":"$DIR/dhcp.sock","priority":-1}`,
	}
}
