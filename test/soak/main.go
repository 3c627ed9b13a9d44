// Command soak makes attachments come and go for some time, at random and concurrently, on a cnibox
// binary, while verbs are killed, rules are flushed, links are deleted, and namespaces are deleted
// or replaced.
//
//	go run -C test ./soak [-bin ../bin/cnibox] [-time 10m] [-seed N] [-workers 3]
//
// Meanwhile each new attachment must have addresses that no other has. From time to time all verbs
// pause: then gc and reload must succeed, CHECK must find no fault, and state without a namespace must
// be gone. At the end all is detached, and the state of the kernel and the disk is compared with that
// after one attachment had come and gone. It runs in a sandbox, as any user who may make one.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/cnibox/cnibox/test/sandbox"
)

func main() {
	bin := flag.String("bin", "../bin/cnibox", "the binary to try")
	limit := flag.Duration("time", 10*time.Minute, "how long")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the random numbers; the run says which it was")
	workers := flag.Int("workers", 3, "how many verbs run at once")
	flag.Parse()
	code, err := run(*bin, *limit, *seed, *workers)
	if errors.Is(err, sandbox.ErrPrivilege) {
		fmt.Println("SKIPPED: soak:", err)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		fmt.Println("soak: FAIL")
		code = 1
	}
	os.Exit(code)
}

// run runs the program in a sandbox, and the soak in there.
func run(bin string, limit time.Duration, seed uint64, workers int) (code int, err error) {
	if !sandbox.Inside() {
		for _, program := range []string{"ip", "nft"} {
			if _, err := exec.LookPath(program); err != nil {
				fmt.Printf("SKIPPED: soak: no %s here\n", program)
				return 0, nil
			}
		}
		return sandbox.Start()
	}
	if err := sandbox.Setup(); err != nil {
		return 0, err
	}
	if bin, err = filepath.Abs(bin); err != nil {
		return 0, err
	}
	s, err := newSoak(bin, seed)
	if err != nil {
		return 0, err
	}
	fmt.Printf("soak: seed %d, %v, %d workers\n", seed, limit, workers)
	return 0, s.run(limit, workers)
}
