// Command gotest runs `go test` over packages of both modules, and prints what a person needs of it: each
// failure when it happens, a line for each package, each reason to skip once, and the numbers at the end.
//
//	gotest [-log FILE] [-pkg ./nft,./test/e2e] -- FLAGS OF GO TEST
//
// The current directory is the root of the repository. Packages of both modules run beside one another. All that the tests say is in the log, of which a run that is killed says
// where it is.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cnibox/cnibox/test/proctree"
)

// module is the directory of the test module.
const module = "./test"

func main() {
	log := flag.String("log", "bin/test.log", "what the tests say")
	pkgs := flag.String("pkg", "./...,./test/...", "packages, from the root of the repository, separated by commas or spaces")
	flag.Parse()
	status, err := run(*log, strings.FieldsFunc(*pkgs, func(c rune) bool { return c == ',' || c == ' ' }), flag.Args())
	if err != nil {
		fmt.Println("FAIL gotest:", err)
		status = 1
	}
	os.Exit(status)
}

func run(path string, pkgs, flags []string) (status int, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return 1, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return 1, err
	}
	log, err := os.Create(path)
	if err != nil {
		return 1, err
	}
	defer log.Close()
	tree, err := proctree.New()
	if err != nil {
		return 1, err
	}
	var product, tests []string
	for _, p := range pkgs {
		if in, ok := strings.CutPrefix(p, module); ok && (in == "" || in[0] == '/') {
			tests = append(tests, "."+in)
		} else {
			product = append(product, p)
		}
	}
	r := newReport(os.Stdout, log)
	killed := make(chan os.Signal, 1)
	signal.Notify(killed, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ended := make(chan struct{})
	go func() {
		select {
		case s := <-killed:
			r.printf("FAIL: %v; what the tests said until then: %s\n", s, path)
			tree.Kill(5 * time.Second)
		case <-ended:
		}
	}()
	var all sync.WaitGroup
	for dir, pkgs := range map[string][]string{".": product, module: tests} {
		if len(pkgs) == 0 {
			continue
		}
		argv := append(append([]string{"test", "-json"}, flags...), pkgs...)
		if err := start(tree, &all, r, dir, argv); err != nil {
			return 1, err
		}
	}
	all.Wait()
	close(ended)
	r.end(path)
	return r.status(), nil
}

// start runs go test in a directory; all waits for its end.
func start(tree *proctree.Tree, all *sync.WaitGroup, r *report, dir string, argv []string) error {
	events, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close()
	cmd := exec.Command("go", argv...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, w, w
	done, err := tree.Start(cmd)
	if err != nil {
		events.Close()
		return err
	}
	all.Go(func() {
		defer events.Close()
		r.read(events)
		if code := <-done; code != 0 {
			r.failed(fmt.Sprintf("go test: exit status %d", code))
		}
	})
	return nil
}
