// Command readme runs the command blocks of the first half of README.md, word for word and in their
// order, as root of a bare Debian 12: what debootstrap's variant minbase installs, and the README's
// prerequisites, which are make, Go and the modules of go.mod.
//
//	cd test/readme && go run . [-require] [-tests]
//
// It needs root and debootstrap; without them it prints that and exits with 0, or with -require fails.
// With -tests it runs `make test` instead, in a Debian that also has the packages that the README
// names for it. The Debian is unpacked into a temporary directory from a tar file beside Go's cache
// (delete the file to rebuild it), the checkout is copied into it, and the blocks run in new mount,
// network and process ID namespaces, without a network outside. Go's toolchain, module cache and
// build cache are those of this machine.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/cnibox/cnibox/test/debian"
)

// errReported is returned if the process has already printed what failed.
var errReported = errors.New("reported")

// inside is the first argument of the process in new namespaces.
const inside = "--inside"

func main() {
	if len(os.Args) == 3 && os.Args[1] == inside {
		exit(debian.Enter(os.Args[2], []string{os.Getenv("GOROOT"), os.Getenv("GOMODCACHE")}, []string{os.Getenv("GOCACHE")}))
		exit(runBlocks())
		return
	}
	tests := flag.Bool("tests", false, "run `make test` instead, with the packages that the README names for it")
	require := flag.Bool("require", false, "fail where root or debootstrap is missing")
	flag.Parse()
	if missing := debian.Missing(); missing != "" {
		exit(debian.Skip("readme", missing, *require))
		return
	}
	root, err := filepath.Abs("../..")
	exit(err)
	list, err := read(filepath.Join(root, readme))
	exit(err)
	if *tests {
		exit(bare(root, debian.System{Name: "tests", Packages: append([]string{"make"}, testPackages...)}, testsVar+"=1"))
		fmt.Println("readme: PASS: make test, in a Debian 12 with", testPackages)
		return
	}
	exit(bare(root, debian.System{Name: "minbase", Packages: []string{"make"}}))
	fmt.Printf("readme: PASS: %d command blocks of the first half of %s, in a bare Debian 12\n", len(list), readme)
}

// testPackages are the packages that the tests need according to the README.
var testPackages = []string{"iproute2", "iptables", "nftables", "procps"}

// testsVar is set to run `make test` instead of the blocks.
const testsVar = "CNIBOX_README_TESTS"

// bare unpacks a Debian, copies the checkout into it and runs the blocks there.
func bare(checkout string, system debian.System, more ...string) error {
	env, err := goEnv()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "cnibox-readme-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) // its mounts are gone with the namespace
	if err := system.Unpack(env["GOCACHE"], dir); err != nil {
		return err
	}
	if err := copyCheckout(checkout, filepath.Join(dir, home)); err != nil {
		return fmt.Errorf("copy the checkout: %w", err)
	}
	if err := debian.Write(dir, map[string]string{"etc/hosts": "127.0.0.1 localhost\n"}); err != nil { // as an installer writes it
		return err
	}
	cmd := command("/proc/self/exe", inside, dir)
	cmd.Env = append(environ(env), more...)
	cmd.SysProcAttr = debian.Namespaces()
	err = cmd.Run()
	if errors.As(err, new(*exec.ExitError)) {
		return errReported
	}
	return err
}

// runBlocks runs each block in its own shell, which exits at the first command that fails, in the
// Debian.
func runBlocks() error {
	list, err := read(filepath.Join("/", home, readme))
	if err != nil {
		return err
	}
	if os.Getenv(testsVar) != "" {
		list = []block{{text: "make test\n"}}
	}
	for _, b := range list {
		fmt.Printf("readme: %s:%d\n%s", readme, b.line, b.text)
		cmd := command("bash", "-ec", b.text)
		cmd.Dir = filepath.Join("/", home)
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s:%d: %w", readme, b.line, err)
		}
	}
	return nil
}

// command returns a command with the streams of this process.
func command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

// exit ends the process with status 1 if there is an error.
func exit(err error) {
	if err == nil {
		return
	}
	if !errors.Is(err, errReported) {
		fmt.Fprintln(os.Stderr, "readme: FAIL:", err)
	}
	os.Exit(1)
}
