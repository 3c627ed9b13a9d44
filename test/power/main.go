// Command power cuts the power of a machine at random moments while attachments come and go on a
// cnibox binary, and checks that the system works after the next boot.
//
//	go run -C test ./power [-bin ../bin/cnibox] [-cuts 500] [-seed N] [-fs ext4,xfs,f2fs,overlay] [-require]
//
// The cache, the leases and all records are on their own file system, on a disk that records each
// write and each flush. After a cut the disk has all writes up to the last flush, and a random
// selection of those after it, the last of them perhaps in part. An overlay has its upper layer in
// memory, and loses it. Then the machine boots with another boot ID and new network namespaces, and
// with file times in the past or the future, as after a wrong clock: `cni-exec reload` and ADD must
// work, no address is leased twice, a lease of keepAcrossBoots whose ADD had ended is there, each
// readable entry and lease is as it was written, and after DEL of all nothing is left.
//
// The seed determines the verbs and the moments of the cuts; which writes the kernel has made by then
// may differ. It runs in a sandbox, and needs root, loop devices and FUSE.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cnibox/cnibox/test/sandbox"
)

func main() {
	bin := flag.String("bin", "../bin/cnibox", "the binary to try")
	cuts := flag.Int("cuts", 500, "how many, on all file systems together")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the random numbers; the run says which it was")
	names := flag.String("fs", "ext4,xfs,f2fs,"+overlay, "file systems")
	require := flag.Bool("require", false, "fail where something is missing, but for a file system that the kernel lacks")
	flag.Parse()
	code, err := run(*bin, *cuts, *seed, strings.Split(*names, ","), *require)
	if err != nil {
		fmt.Fprintln(os.Stderr, "power:", err)
		fmt.Println("power: FAIL")
		code = 1
	}
	os.Exit(code)
}

// run runs the program in a sandbox, and the cuts in there.
func run(bin string, cuts int, seed uint64, names []string, require bool) (code int, err error) {
	if !sandbox.Inside() {
		if reason := missing(); reason != "" {
			return 0, skip(reason, require)
		}
		return sandbox.Start()
	}
	if err := sandbox.Setup(); err != nil {
		return 0, err
	}
	if bin, err = filepath.Abs(bin); err != nil {
		return 0, err
	}
	if err := install(bin); err != nil {
		return 0, err
	}
	media, err := choose(names, require)
	if err != nil {
		return 0, err
	}
	return try(media, cuts, seed), nil
}

// missing returns what this machine lacks; "": nothing.
func missing() string {
	if os.Geteuid() != 0 {
		return "mounts of file systems need root: try sudo"
	}
	for _, device := range []string{"/dev/fuse", "/dev/loop-control"} {
		f, err := os.OpenFile(device, os.O_RDWR, 0)
		if err != nil {
			return err.Error()
		}
		f.Close()
	}
	return ""
}

// skip prints what is missing, or with require returns it as an error.
func skip(reason string, require bool) error {
	if require {
		return errors.New(reason)
	}
	fmt.Println("SKIPPED: power:", reason)
	return nil
}

// A medium holds the state. The zero fileSystem is the overlay.
type medium struct {
	fileSystem
	share int // of the cuts
}

// overlay is the name of the medium without a disk.
const overlay = "overlay"

// choose returns the media with these names that this machine supports.
func choose(names []string, require bool) ([]medium, error) {
	var media []medium
	for _, name := range names {
		m := medium{fileSystem{name: overlay}, 7}
		for _, k := range fileSystems {
			if k.name == name {
				m = medium{k, 9}
			}
		}
		if m.name != name {
			return nil, fmt.Errorf("-fs: there is no %q", name)
		}
		if m.name != overlay {
			if reason, excused := m.missing(); reason != "" {
				if err := skip(name+": "+reason, require && !excused); err != nil {
					return nil, err
				}
				continue
			}
		}
		media = append(media, m)
	}
	return media, nil
}

// try makes the cuts and prints the result.
func try(media []medium, cuts int, seed uint64) (code int) {
	shares, failures := 0, 0
	for _, m := range media {
		shares += m.share
	}
	var counts []string
	done := 0
	begin := time.Now()
	for i, m := range media {
		share := cuts * m.share / shares
		if i == len(media)-1 {
			share = cuts - done
		}
		done += share
		counts = append(counts, fmt.Sprintf("%s %d", m.name, share))
		err := m.cuts(share, seed, func(cut int, what string, err error) bool {
			failures++
			fmt.Printf("power: seed %d, %s, cut %d (%s): %v\n", seed, m.name, cut, what, err)
			return failures < mostFailures
		})
		if err != nil {
			fmt.Printf("power: seed %d, %s: %v\n", seed, m.name, err)
			failures++
		}
		fmt.Printf("power: %s: %d cuts, %.0f s since the start\n", m.name, share, time.Since(begin).Seconds())
		if failures >= mostFailures {
			break
		}
	}
	summary := fmt.Sprintf("%d cuts (%s), seed %d", done, strings.Join(counts, ", "), seed)
	if failures > 0 || done == 0 {
		fmt.Printf("power: FAIL: %s\n", summary)
		return 1
	}
	fmt.Printf("power: PASS: %s\n", summary)
	return 0
}

// A run ends after mostFailures failures.
const mostFailures = 5
