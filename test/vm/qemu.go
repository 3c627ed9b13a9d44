package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// silence is how long a guest may say nothing. Three emulated ones on two busy processors
// are silent for minutes when a test has no parts.
const silence = 10 * time.Minute

// grace is what a guest has beyond the time of its tests, and to end once its
// output has ended.
const grace = time.Minute

// consoleTail is how many lines of kernel messages follow the report of a guest
// that came to no good end.
const consoleTail = 40

// cmdline is for the kernel: it ends with the first process. What guards against
// other users of the processor costs an emulated one dear. The check of the timer fails where this
// machine is so busy that interrupts come late.
const cmdline = "console=ttyS0 panic=-1 loglevel=4 mitigations=off tsc=reliable nowatchdog no_timer_check"

// card is a network card that is wired to nothing: tests move it about.
var card = []string{"-netdev", "hubport,id=wire,hubid=0", "-device", "virtio-net-pci,netdev=wire,romfile="}

// slow passes to tests how many times slower than this machine an emulated one is: what the
// kernel does not know of its command line is the environment of the first process.
const slow = " CNIBOX_SLOW=10"

// A machine is what guests run on.
type machine struct {
	dir     string // for files that end with this process
	accel   []string
	cmdline string // of the kernel
	printer *printer
	suites  []suite
	limit   time.Duration // of all tests of a guest

	processors int // of each guest
}

// kvm is whether a kernel boots with KVM here, which is tried once.
var kvm struct {
	once  sync.Once
	works bool
}

// accelerator returns qemu's options for KVM where that kernel boots with it, else
// for emulation, and the command line of the kernel. That /dev/kvm opens says little: below some hypervisors qemu
// then ends at the first processor register, or the kernel hangs before it says anything.
func accelerator(ctx context.Context, vmlinuz string) (qemu []string, kernel string) {
	options := []string{"-accel", "kvm", "-cpu", "max"}
	kvm.once.Do(func() { kvm.works = boots(ctx, vmlinuz, options) })
	if kvm.works {
		return options, cmdline
	}
	// The plainest processor takes a third less time than one with all extensions. Without
	// RDRAND the kernel has no random numbers for the first minutes.
	return []string{"-accel", "tcg,tb-size=1024", "-cpu", "qemu64,+rdrand"}, cmdline + slow
}

// boots reports whether a kernel, without a root file system, comes to its panic, which ends the guest, soon.
func boots(ctx context.Context, vmlinuz string, options []string) bool {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", append(options, "-m", "256", "-nodefaults", "-display", "none",
		"-no-reboot", "-kernel", vmlinuz, "-append", cmdline)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd.Run() == nil
}

// boot runs a guest and has the report read what it says. The error says what was
// wrong with the tests or the guest; console and qemu's own words are printed.
func (m machine) boot(ctx context.Context, vmlinuz, initrd string, r *report) error {
	console := filepath.Join(m.dir, r.kernel+".console")
	limit := m.limit + grace // in between a test that hangs prints where
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the guest did not end within %v", limit))
	defer cancel()
	begin := time.Now()
	cmd, out, words, err := m.start(ctx, console, append([]string{"-kernel", vmlinuz, "-initrd", initrd, "-append", m.cmdline, "-no-reboot"}, card...)...)
	if err != nil {
		return err
	}
	err = listen(ctx, out, r.line)
	if err != nil {
		cancel()
	} else {
		defer time.AfterFunc(grace, cancel).Stop()
	}
	if _, copyErr := io.Copy(io.Discard, out); err == nil {
		err = copyErr
	}
	cmd.Wait() // its state says how qemu ended
	r.spent(time.Since(begin), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	if err == nil && !r.done {
		err = fmt.Errorf("the guest died: qemu says %s %s", cmd.ProcessState, strings.TrimSpace(words.String()))
	}
	if err != nil {
		r.broken(err, tail(console, consoleTail))
		return err
	}
	return r.verdict()
}

// start starts qemu with a console of kernel messages, a second serial port that it returns,
// and more options. Its complaints are in words once it has ended.
func (m machine) start(ctx context.Context, console string, more ...string) (cmd *exec.Cmd, out io.Reader, words *strings.Builder, err error) {
	args := slices.Concat([]string{
		"-smp", strconv.Itoa(m.processors), "-m", "2000", "-net", "none", "-display", "none", "-monitor", "none",
		"-serial", "file:" + console, "-serial", "stdio",
	}, m.accel, more)
	cmd = exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	if out, err = cmd.StdoutPipe(); err != nil {
		return nil, nil, nil, err
	}
	words = new(strings.Builder)
	cmd.Stderr = words
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, out, words, cmd.Start()
}

// listen passes on each line until the guest has done or its output ends, and
// fails when none comes for too long.
func listen(ctx context.Context, from io.Reader, line func(string)) error {
	lines := make(chan string)
	go func() {
		defer close(lines)
		in := bufio.NewReader(from)
		for {
			text, err := in.ReadString('\n')
			if text != "" {
				select {
				case lines <- strings.TrimRight(text, "\r\n"):
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	for {
		select {
		case text, ok := <-lines:
			if !ok {
				return nil
			}
			line(text)
			quiet.Reset(silence)
		case <-quiet.C:
			return fmt.Errorf("the guest said nothing for %v", silence)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tail returns the last lines of a file, or why there are none.
func tail(file string, n int) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(string(b), "\r", "")), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
