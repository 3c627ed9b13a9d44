package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
)

// image is the name of the only one. The CRI plugin takes it for the pause image,
// too, so each pod is a web server by itself.
const image = "docker.io/library/cnibox-clients:1"

// page is what the image's command serves on port 80.
const page = "hello from a container\n"

// bigFile is the length of /big on the same server, in bytes.
const bigFile = 512 << 10

// applets are those of busybox that the trial uses.
var applets = []string{"sh", "sleep", "ip", "ping", "nc", "nslookup", "httpd", "cat", "printf"}

// A node is a file or, with a target, a symbolic link of an archive.
type node struct {
	name, target string
	mode         int64
	body         []byte
}

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
	layer, err := archive(append(links(),
		node{name: "bin/busybox", mode: 0o755, body: busybox},
		node{name: "www/index.html", mode: 0o644, body: []byte(page)},
		node{name: "www/big", mode: 0o644, body: make([]byte, bigFile)},
		node{name: "etc/hosts", mode: 0o644, body: []byte("127.0.0.1 localhost\n")})...)
	if err != nil {
		return err
	}
	files := []node{{name: "layer.tar", mode: 0o644, body: layer}}
	for name, value := range map[string]any{
		"config.json": map[string]any{
			"architecture": runtime.GOARCH, "os": "linux",
			"config": map[string]any{"Env": []string{"PATH=/bin"}, "Cmd": []string{"httpd", "-f", "-p", "80", "-h", "/www"}},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
		},
		"manifest.json": []any{map[string]any{
			"Config": "config.json", "RepoTags": []string{image}, "Layers": []string{"layer.tar"},
		}},
	} {
		body, err := json.Marshal(value)
		if err != nil {
			return err
		}
		files = append(files, node{name: name, mode: 0o644, body: body})
	}
	whole, err := archive(files...)
	if err != nil {
		return err
	}
	_, err = to.Write(whole)
	return err
}

// links gives each applet its name.
func links() (nodes []node) {
	for _, name := range applets {
		nodes = append(nodes, node{name: "bin/" + name, target: "busybox", mode: 0o777})
	}
	return nodes
}

// archive makes a tar archive of them, in their order. Folders are made by those who
// unpack it.
func archive(nodes ...node) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, n := range nodes {
		h := &tar.Header{Name: n.name, Mode: n.mode, Size: int64(len(n.body)), Typeflag: tar.TypeReg}
		if n.target != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, n.target
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(n.body); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}
