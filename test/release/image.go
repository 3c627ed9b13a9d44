package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// A binary is the product for an architecture.
type binary struct {
	arch arch
	path string
}

// image writes cnibox-VERSION.oci.tar: an OCI layout with an index of one image for each
// architecture, with only the binary in /opt/cni/bin.
func (r *release) image(binaries []binary) (err error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, b := range binaries {
		img, err := r.imageOf(b)
		if err != nil {
			return fmt.Errorf("%s: %w", b.arch.name, err)
		}
		platform := &v1.Platform{OS: "linux", Architecture: b.arch.os, Variant: b.arch.variant}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: platform}})
	}
	dir := filepath.Join(r.stage, "oci")
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	name := map[string]string{"org.opencontainers.image.ref.name": r.version, "io.containerd.image.name": "ghcr.io/cnibox/cnibox:" + imageTag(r.version)}
	if err := to.AppendIndex(index, layout.WithAnnotations(name)); err != nil {
		return err
	}
	files, err := tree(dir)
	if err != nil {
		return err
	}
	f, err := r.create(fmt.Sprintf("cnibox-%s.oci.tar", r.version))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return writeTar(f, files, r.time)
}

// imageTag replaces "+" in a version, which a tag must not have.
func imageTag(version string) string {
	return string(bytes.ReplaceAll([]byte(version), []byte("+"), []byte("-")))
}

func (r *release) imageOf(b binary) (v1.Image, error) {
	data, err := os.ReadFile(b.path)
	if err != nil {
		return nil, err
	}
	var layer bytes.Buffer
	if err := writeTar(&layer, []file{{name: unitDir + "/cnibox", mode: 0o755, data: data}, {name: unitDir + "/cni-exec", target: "cnibox"}}, r.time); err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), l)
	if err != nil {
		return nil, err
	}
	conf, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	conf = conf.DeepCopy()
	conf.OS, conf.Architecture, conf.Variant = "linux", b.arch.os, b.arch.variant
	conf.Created, conf.History = v1.Time{Time: r.time}, nil
	conf.Config.Entrypoint = []string{unitDir + "/cnibox"}
	conf.Config.Env = []string{"PATH=" + unitDir}
	conf.Config.Labels = map[string]string{
		"org.opencontainers.image.title": "cnibox", "org.opencontainers.image.version": r.version,
		"org.opencontainers.image.revision": r.commit, "org.opencontainers.image.licenses": "Apache-2.0",
	}
	return mutate.ConfigFile(img, conf)
}

// tree reads the files of a directory.
func tree(dir string) (list []file, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		list = append(list, file{name: name, mode: 0o644, data: data})
		return err
	})
	return list, err
}
