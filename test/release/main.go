// Command release makes the files of a release, for each architecture: an archive, packages of
// distributions, an SBOM, one image for all of them, the source and recipes that build it, and
// their checksums.
//
//	go run -C test/release . -out DIR [-arches amd64,arm64] [-version 0.2.0] [-commit HASH] [-epoch SECONDS] [-sign COMMAND]
//
// It is a module of its own, since the tests need none of its libraries. The files do not depend on
// directory, user, umask, time and GOFLAGS; `make reproduce` compares them.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A release has the values of the command line.
type release struct {
	out        string // directory of the files
	version    string // as in "cnibox version", without a "v"
	commit     string
	time       time.Time // of all files
	maintainer string
	sign       string // shell command that gets the path of SHA256SUMS as argument; "": none

	root  string // of the repository
	stage string // temporary
	host  string // binary for this machine; the release has the licences of its modules
}

func main() {
	var r release
	var arches string
	var epoch int64
	flag.StringVar(&r.out, "out", "", "directory of the files, relative to the root of the repository; it must be empty or missing")
	flag.StringVar(&arches, "arches", "", "architectures, separated by commas (default all)")
	flag.StringVar(&r.version, "version", "", "version")
	flag.StringVar(&r.commit, "commit", "", "commit")
	flag.Int64Var(&epoch, "epoch", 0, "time of all files, in seconds since 1970")
	flag.StringVar(&r.maintainer, "maintainer", "cnibox maintainers <maintainers@cnibox.invalid>", "who maintains the packages")
	flag.StringVar(&r.sign, "sign", "", "shell command that signs: it gets the path of SHA256SUMS behind it")
	flag.Parse()
	r.time = time.Unix(epoch, 0).UTC()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := r.run(ctx, arches)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL release:", err)
		os.Exit(1)
	}
}

// run makes everything in a temporary directory beside out, and renames it at the end.
func (r *release) run(ctx context.Context, arches string) (err error) {
	if r.out == "" || r.version == "" || r.commit == "" {
		return errors.New("-out, -version and -commit are required: `make release OUT=DIR` gives them")
	}
	chosen, err := choose(arches)
	if err != nil {
		return err
	}
	syscall.Umask(0o022)
	if r.root, err = filepath.Abs("../.."); err != nil {
		return err
	}
	if !filepath.IsAbs(r.out) {
		r.out = filepath.Join(r.root, r.out)
	}
	if list, err := os.ReadDir(r.out); err == nil && len(list) > 0 {
		return fmt.Errorf("%s is not empty", r.out)
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	if r.stage, err = os.MkdirTemp("", "cnibox-release-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.stage)) }()

	r.host = filepath.Join(r.stage, "cnibox")
	if err := r.build(ctx, nil, r.host); err != nil {
		return err
	}
	common, err := r.commonFiles(ctx)
	if err != nil {
		return err
	}
	var binaries []binary
	for _, a := range chosen {
		path := filepath.Join(r.stage, a.name, "cnibox")
		if err := r.build(ctx, a.env, path); err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		binaries = append(binaries, binary{a, path})
		if err := errors.Join(r.archive(a, path, common), r.packages(a, path, common), r.sbom(a, path)); err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
	}
	if err := r.image(binaries); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if err := r.source(ctx); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	return r.sums(ctx)
}

// sums writes SHA256SUMS in the format of sha256sum(1), and signs it.
func (r *release) sums(ctx context.Context) error {
	list, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, e := range list {
		data, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%x  %s\n", sha256.Sum256(data), e.Name())
	}
	path := filepath.Join(r.out, "SHA256SUMS")
	if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil || r.sign == "" {
		return err
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", r.sign+` "$1"`, "sign", path)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("sign: %s: %w", r.sign, err)
	}
	return nil
}

// create opens a file of the release for writing, and prints its name.
func (r *release) create(name string) (*os.File, error) {
	fmt.Println(name)
	return os.OpenFile(filepath.Join(r.out, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
}

// choose returns architectures by name; "": all.
func choose(names string) (list []arch, err error) {
	if names == "" {
		return arches, nil
	}
	for name := range strings.FieldsFuncSeq(names, func(c rune) bool { return c == ',' || c == ' ' }) {
		i := slices.IndexFunc(arches, func(a arch) bool { return a.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no architecture %q: there are %v", name, arches)
		}
		list = append(list, arches[i])
	}
	return list, nil
}
