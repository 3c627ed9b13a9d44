package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"

	archive "cnibox/test/image"
)

// image is the name of the only one. The CRI plugin takes it for the pause image,
// too, so each pod is a web server by itself.
const image = "docker.io/library/cnibox-clients:1"

// page is what the image's command serves on port 80.
const page = "hello from a container\n"

// bigFile is the length of /big on the same server, in bytes.
const bigFile = 512 << 10

// serve is the web server as a program that SIGTERM ends, which the first of a PID namespace must ask
// for. CRI-O waits for that until its client does not any more.
const serve = "#!/bin/sh\ntrap exit TERM\nhttpd -f -p 80 -h /www &\nwait\n"

// applets are those of busybox that the trial uses.
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

// busyboxIn lays out a root directory with busybox and its names, for programs that take no image.
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
