// Package image writes container images as archives of `docker save`.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
)

// A File is a file of an image, or with a Target a symbolic link. Directories above it are created
// on unpacking.
type File struct {
	Name, Target string
	Mode         int64
	Body         []byte
}

// An Image is an image with one layer.
type Image struct {
	Name string   // with its tag
	Cmd  []string // command, or arguments of Entrypoint if that is set

	Entrypoint []string
	Files      []File
}

// Write writes the archive, uncompressed.
func (i *Image) Write(to io.Writer) error {
	layer, err := archive(i.Files)
	if err != nil {
		return err
	}
	files := []File{{Name: "layer.tar", Mode: 0o644, Body: layer}}
	for _, part := range []struct {
		name  string
		value any
	}{
		{"config.json", map[string]any{
			"architecture": runtime.GOARCH, "os": "linux",
			"config": map[string]any{"Env": []string{"PATH=/bin"}, "Cmd": i.Cmd, "Entrypoint": i.Entrypoint},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
		}},
		{"manifest.json", []any{map[string]any{"Config": "config.json", "RepoTags": []string{i.Name}, "Layers": []string{"layer.tar"}}}},
	} {
		body, err := json.Marshal(part.value)
		if err != nil {
			return err
		}
		files = append(files, File{Name: part.name, Mode: 0o644, Body: body})
	}
	whole, err := archive(files)
	if err != nil {
		return err
	}
	_, err = to.Write(whole)
	return err
}

// archive makes a tar archive of the files, in their order.
func archive(files []File) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.Name, Mode: f.Mode, Size: int64(len(f.Body)), Typeflag: tar.TypeReg}
		if f.Target != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.Target
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.Body); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}
