package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"debug/buildinfo"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// build builds the product with its own flags only; an empty env means this machine.
func (r *release) build(ctx context.Context, env []string, path string) error {
	return r.compile(ctx, env, path, ".")
}

// compile is build for any program of the product's module.
func (r *release) compile(ctx context.Context, env []string, path, program string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags", fmt.Sprintf("-s -w -X github.com/cnibox/cnibox/applets/applet.Version=%s -X github.com/cnibox/cnibox/applets/applet.Commit=%s", r.version, r.commit),
		"-o", path, program)
	cmd.Dir, cmd.Stderr = r.root, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOOS=", "GOARCH=", "GOARM=", "GOMIPS=", "GOAMD64=", "GOEXPERIMENT=", "GOWORK=off")
	if env != nil {
		cmd.Env = append(append(cmd.Env, "GOOS=linux"), env...)
	}
	return cmd.Run()
}

// A file is the same for all architectures. A link has a target.
type file struct {
	name   string // within its group
	mode   fs.FileMode
	data   []byte
	target string
}

// common has the files by group.
type common struct {
	plugins     []string // names of the binary, besides cnibox itself
	man         []file   // NAME.8
	completions []file   // below share
	units       []file   // of systemd, with the path of the reference's plugins
	openrc      []file
	procd       []file
	examples    []file
	docs        []file   // README.md, LICENSE, ...
	licences    []file   // of the linked modules: MODULE/LICENSE
	bundled     []string // what an rpm provides for each of them
}

// unitDir is the directory of the binary in dist's units and scripts.
const unitDir = "/opt/cni/bin"

func (r *release) commonFiles(ctx context.Context) (c common, err error) {
	names, err := os.ReadFile(filepath.Join(r.root, "testdata/applets.golden"))
	if err != nil {
		return c, err
	}
	for _, name := range strings.Fields(string(names)) {
		if name != "cnibox" {
			c.plugins = append(c.plugins, name)
		}
	}
	if c.man, err = r.pages(ctx); err != nil {
		return c, fmt.Errorf("manual pages: %w", err)
	}
	groups := []struct {
		to      *[]file
		pattern string
		name    func(base string) string
		mode    fs.FileMode
	}{
		{&c.completions, "dist/completion/cni-exec.bash", func(string) string { return "bash-completion/completions/cni-exec" }, 0o644},
		{&c.completions, "dist/completion/_cni-exec", func(string) string { return "zsh/site-functions/_cni-exec" }, 0o644},
		{&c.completions, "dist/completion/cni-exec.fish", func(base string) string { return "fish/vendor_completions.d/" + base }, 0o644},
		{&c.units, "dist/*.service", nil, 0o644},
		{&c.units, "dist/*.socket", nil, 0o644},
		{&c.openrc, "dist/*.openrc", func(base string) string { return strings.TrimSuffix(base, ".openrc") }, 0o755},
		{&c.procd, "dist/*.procd", func(base string) string { return strings.TrimSuffix(base, ".procd") }, 0o755},
		{&c.examples, "examples/*", nil, 0o644},
		{&c.examples, "examples/initramfs/*", func(base string) string { return "initramfs/" + base }, 0o644},
		{&c.docs, "README.md", nil, 0o644},
		{&c.docs, "CHANGELOG.md", nil, 0o644},
		{&c.docs, "LICENSE", nil, 0o644},
		{&c.docs, "docs/*.md", func(base string) string { return "docs/" + base }, 0o644},
		{&c.docs, "docs/*.svg", func(base string) string { return "docs/" + base }, 0o644},
	}
	for _, g := range groups {
		paths, err := filepath.Glob(filepath.Join(r.root, g.pattern))
		if err != nil || len(paths) == 0 {
			return c, fmt.Errorf("%s: no such files: %w", g.pattern, err)
		}
		for _, path := range paths {
			if st, err := os.Stat(path); err == nil && st.IsDir() {
				continue
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return c, err
			}
			name := filepath.Base(path)
			if g.name != nil {
				name = g.name(name)
			}
			*g.to = append(*g.to, file{name: name, mode: g.mode, data: data})
		}
	}
	info, err := buildinfo.ReadFile(r.host)
	if err != nil {
		return c, err
	}
	for _, m := range info.Deps {
		c.bundled = append(c.bundled, fmt.Sprintf("bundled(golang(%s)) = %s", m.Path, strings.TrimPrefix(m.Version, "v")))
	}
	c.licences, err = r.licencesOf(ctx, info)
	return c, err
}

// pages returns the manual pages that the product's program writes.
func (r *release) pages(ctx context.Context) ([]file, error) {
	program, dir := filepath.Join(r.stage, "man"), filepath.Join(r.stage, "pages")
	if err := r.compile(ctx, nil, program, "./dist/man"); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	return tree(dir)
}

var licenceName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice)`)

// licencesOf returns the licences of Go and of the modules that a binary links.
func (r *release) licencesOf(ctx context.Context, info *buildinfo.BuildInfo) (list []file, err error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	dirs := map[string]string{"go": strings.TrimSpace(string(root))}
	order := []string{"go"}
	for _, m := range info.Deps {
		cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", m.Path)
		cmd.Dir, cmd.Env = r.root, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
		dir, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Path, err)
		}
		dirs[m.Path] = strings.TrimSpace(string(dir))
		order = append(order, m.Path)
	}
	for _, module := range order {
		entries, err := os.ReadDir(dirs[module])
		if err != nil {
			return nil, err
		}
		found := false
		for _, e := range entries {
			if !licenceName.MatchString(e.Name()) || e.IsDir() {
				continue
			}
			data, err := os.ReadFile(filepath.Join(dirs[module], e.Name()))
			if err != nil {
				return nil, err
			}
			list, found = append(list, file{name: module + "/" + e.Name(), mode: 0o644, data: data}), true
		}
		if !found {
			return nil, fmt.Errorf("%s has no licence", module)
		}
	}
	return list, nil
}

// withDir returns the files with dir instead of [unitDir].
func withDir(files []file, dir string) (list []file) {
	for _, f := range files {
		f.data = bytes.ReplaceAll(f.data, []byte(unitDir), []byte(dir))
		list = append(list, f)
	}
	return list
}

// gzipped compresses data as gzip -9n does.
func gzipped(data []byte) []byte {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	_, _ = z.Write(data)
	_ = z.Close()
	return b.Bytes()
}

// inDir puts files into a directory.
func inDir(dir string, files []file) (list []file) {
	for _, f := range files {
		f.name = dir + "/" + f.name
		list = append(list, f)
	}
	return list
}

// launchers returns the files of the plugins' names, for a binary in a directory: a line with its path,
// which the kernel starts.
func launchers(dir string, names []string) (list []file) {
	for _, name := range names {
		list = append(list, file{name: name, mode: 0o755, data: []byte("#!" + dir + "/cnibox\n")})
	}
	return list
}
