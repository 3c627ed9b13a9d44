package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"

	archive "github.com/cnibox/cnibox/test/image"
)

// image is the name of the only image. It is also the CRI plugin's pause image, so each pod is a
// web server.
const image = "docker.io/library/cnibox-clients:1"

// page is the content that the image's command serves on port 80.
const page = "hello from a container\n"

// bigFile is the size of /big on the same server, in bytes.
const bigFile = 512 << 10

// serve is the web server. It traps SIGTERM, which the first process of a PID namespace otherwise
// ignores: CRI-O would wait until its client times out.
const serve = "#!/bin/sh\ntrap exit TERM\nhttpd -f -p 80 -h /www &\nwait\n"

// applets are those of busybox that the trials use.
var applets = []string{"sh", "sleep", "ip", "ping", "nc", "nslookup", "httpd", "cat", "printf"}

// writeImage writes an archive as `docker save` makes them: busybox, and a web
// server as the command.
func writeImage(to io.Writer) error {
	program, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	busybox, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	i := &archive.Image{Name: image, Cmd: []string{"httpd", "-f", "-p", "80", "-h", "/www"}}
	for _, name := range applets {
		i.Files = append(i.Files, archive.File{Name: "bin/" + name, Target: "busybox", Mode: 0o777})
	}
	i.Files = append(i.Files,
		archive.File{Name: "bin/busybox", Mode: 0o755, Body: busybox},
		archive.File{Name: "bin/serve", Mode: 0o755, Body: []byte(serve)},
		archive.File{Name: "www/index.html", Mode: 0o644, Body: []byte(page)},
		archive.File{Name: "www/big", Mode: 0o644, Body: make([]byte, bigFile)},
		archive.File{Name: "etc/hosts", Mode: 0o644, Body: []byte("127.0.0.1 localhost\n")})
	return i.Write(to)
}

// busyboxIn installs busybox and its links in a root directory, for programs without images.
func busyboxIn(root string) error {
	program, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	busybox, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	bin := filepath.Join(root, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(bin, "busybox"), busybox, 0o755); err != nil {
		return err
	}
	for _, name := range applets {
		if err := os.Symlink("busybox", filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	return nil
}
