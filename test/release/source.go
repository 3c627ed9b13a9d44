package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// source writes cnibox-VERSION.tar.gz, with the files that git tracks and the product's modules in
// vendor, so that it builds without a network, and the recipes with its checksums.
func (r *release) source(ctx context.Context) error {
	files, err := r.tracked(ctx)
	if err != nil {
		return err
	}
	vendor := filepath.Join(r.stage, "vendor")
	cmd := exec.CommandContext(ctx, "go", "mod", "vendor", "-o", vendor)
	cmd.Dir, cmd.Stderr, cmd.Env = r.root, os.Stderr, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go mod vendor: %w", err)
	}
	modules, err := tree(vendor)
	if err != nil {
		return err
	}
	name := "cnibox-" + r.version
	var archive bytes.Buffer
	z, err := gzip.NewWriterLevel(&archive, gzip.BestCompression)
	if err != nil {
		return err
	}
	err = errors.Join(writeTar(z, inDir(name, slices.Concat(files, inDir("vendor", modules))), r.time), z.Close(),
		r.write(name+".tar.gz", archive.Bytes()))
	if err != nil {
		return err
	}
	recipes, err := r.recipes(archive.Bytes())
	if err != nil {
		return err
	}
	var b bytes.Buffer
	z = gzip.NewWriter(&b)
	return errors.Join(writeTar(z, inDir(name+"-recipes", recipes), r.time), z.Close(), r.write(name+"-recipes.tar.gz", b.Bytes()))
}

// tracked returns the files that git tracks, with their current contents. Without git, as in an
// archive, it returns all files.
func (r *release) tracked(ctx context.Context) (list []file, err error) {
	var names []string
	if _, err := os.Stat(filepath.Join(r.root, ".git")); err == nil {
		out, err := exec.CommandContext(ctx, "git", "-C", r.root, "ls-files", "-z").Output()
		if err != nil {
			return nil, fmt.Errorf("git ls-files: %w", err)
		}
		names = strings.FieldsFunc(string(out), func(c rune) bool { return c == 0 })
	} else {
		all, err := tree(r.root)
		if err != nil {
			return nil, err
		}
		for _, f := range all {
			names = append(names, f.name)
		}
	}
	for _, name := range names {
		path := filepath.Join(r.root, name)
		st, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		f := file{name: name, mode: 0o644}
		if st.Mode()&0o100 != 0 {
			f.mode = 0o755
		}
		if f.data, err = os.ReadFile(path); err != nil {
			return nil, err
		}
		list = append(list, f)
	}
	return list, nil
}

var (
	kernelOption = regexp.MustCompile(`(?m)^(CONFIG_\w+)=y$`)
	placeholder  = regexp.MustCompile(`@[A-Z][A-Z0-9_]*@`)
)

// recipes returns dist/recipes with version, checksums and kernel options in place of words such as
// @VERSION@.
func (r *release) recipes(archive []byte) (list []file, err error) {
	licence, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	kernel, err := os.ReadFile(filepath.Join(r.root, "docs/kernel.md"))
	if err != nil {
		return nil, err
	}
	var options []string
	for _, m := range kernelOption.FindAllStringSubmatch(string(kernel), -1) {
		options = append(options, "\t$(call KCONFIG_ENABLE_OPT,"+m[1]+")")
	}
	words := map[string]string{
		"@VERSION@": r.version, "@COMMIT@": r.commit,
		"@SHA256@": fmt.Sprintf("%x", sha256.Sum256(archive)), "@SHA512@": fmt.Sprintf("%x", sha512.Sum512(archive)),
		"@LICENSE_SHA256@": fmt.Sprintf("%x", sha256.Sum256(licence)), "@LICENSE_MD5@": fmt.Sprintf("%x", md5.Sum(licence)),
		"@KERNEL@": strings.Join(options, "\n"),
	}
	if list, err = tree(filepath.Join(r.root, "dist/recipes")); err != nil {
		return nil, err
	}
	for i := range list {
		f := &list[i]
		if filepath.Ext(f.name) == ".bb" { // BitBake takes the version from the file's name
			f.name = strings.TrimSuffix(f.name, ".bb") + "_" + r.version + ".bb"
		}
		var unknown error
		f.data = placeholder.ReplaceAllFunc(f.data, func(word []byte) []byte {
			text, ok := words[string(word)]
			if !ok {
				unknown = fmt.Errorf("dist/recipes/%s: %s is not a word of a recipe", f.name, word)
			}
			return []byte(text)
		})
		if unknown != nil {
			return nil, unknown
		}
	}
	return list, nil
}

// write writes a file of the release.
func (r *release) write(name string, data []byte) error {
	f, err := r.create(name)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
