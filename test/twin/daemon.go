package twin

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// A daemon is the DHCP daemon of a directory of plugins.
type daemon struct {
	plugins string
	cmd     *exec.Cmd
	said    bytes.Buffer
}

// socket is the path of the daemon's socket.
func (w *world) socket() string { return filepath.Join(w.dir, "run", "dhcp.sock") }

// startDaemon starts the daemon of a directory if the case needs one, instead of another directory's,
// and waits until it listens.
func (w *world) startDaemon(plugins string) error {
	if !w.c.DHCP || w.daemon != nil && w.daemon.plugins == plugins {
		return nil
	}
	w.stopDaemon()
	d := &daemon{plugins: plugins, cmd: exec.Command(filepath.Join(plugins, "dhcp"), "daemon", "-socketpath", w.socket())}
	d.cmd.Env, d.cmd.Stderr = []string{searchPath}, &d.said
	if err := w.host.Do(d.cmd.Start); err != nil {
		return err
	}
	w.daemon = d
	for end := time.Now().Add(endTime); ; time.Sleep(2 * time.Millisecond) {
		conn, err := net.Dial("unix", w.socket())
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(end) {
			w.stopDaemon()
			return fmt.Errorf("daemon of %s: %w: %s", plugins, err, &d.said)
		}
	}
}

// stopDaemon stops the daemon, as for an update, and deletes its socket.
func (w *world) stopDaemon() {
	if w.daemon == nil {
		return
	}
	late := time.AfterFunc(endTime, func() { w.daemon.cmd.Process.Kill() })
	w.daemon.cmd.Process.Signal(syscall.SIGTERM)
	w.daemon.cmd.Wait()
	late.Stop()
	w.said = append(w.said, "daemon: "+w.daemon.said.String())
	os.Remove(w.socket())
	w.daemon = nil
}
