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

// silence is how long a guest may print nothing. Three emulated ones on two busy processors print
// nothing for minutes during a test without subtests.
const silence = 10 * time.Minute

// grace is how long a guest may run beyond the time of its tests, and after its output has ended.
const grace = time.Minute

// consoleTail is how many lines of kernel messages are printed after the report of a guest that
// failed: an oops and a panic.
const consoleTail = 100

// cmdline is the kernel's. With panic=-1 and -no-reboot the guest ends with its first process.
// Mitigations are expensive on an emulated processor and useless here. The check of the timer fails
// if this machine is so busy that interrupts come late.
const cmdline = "console=ttyS0 panic=-1 loglevel=4 mitigations=off tsc=reliable nowatchdog no_timer_check"

// card is a network card without a network: tests move it between namespaces.
var card = []string{"-netdev", "hubport,id=wire,hubid=0", "-device", "virtio-net-pci,netdev=wire,romfile="}

// slow makes tests wait ten times as long on an emulated machine: the kernel passes unknown
// parameters to the first process as environment.
const slow = " CNIBOX_SLOW=10"

// A machine is the configuration of guests.
type machine struct {
	dir     string // for temporary files
	accel   []string
	cmdline string // of the kernel
	printer *printer
	suites  []suite
	limit   time.Duration // of all tests of a guest
}

// kvm is whether a kernel boots with KVM here, tested once.
var kvm struct {
	once  sync.Once
	works bool
}

// accelerator returns qemu's options for KVM if that kernel boots with it, else for emulation, and
// the kernel's command line. Being able to open /dev/kvm says little: under some hypervisors qemu
// then exits at the first processor register, or the kernel hangs before it prints anything.
func accelerator(ctx context.Context, vmlinuz string) (qemu []string, kernel string) {
	options := []string{"-accel", "kvm", "-cpu", "max"}
	kvm.once.Do(func() { kvm.works = boots(ctx, vmlinuz, options) })
	if kvm.works {
		return options, cmdline
	}
	// The simplest processor model takes a third less time than one with all extensions. Without
	// RDRAND the kernel has no random numbers for the first minutes.
	return []string{"-accel", "tcg,tb-size=1024", "-cpu", "qemu64,+rdrand"}, cmdline + slow + clock()
}

// clock makes a kernel on an emulated processor take the frequency of the time stamp counter, which is this
// machine's, for what it is. What it measures itself while this machine is busy is wrong: the clock of a guest
// was seen to run 18 times too fast, and each of its timeouts was as much shorter. Without cpufreq, as in a
// virtual machine, the processor's frequency is the counter's; with it nothing is known.
func clock() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if _, scaled := os.Stat("/sys/devices/system/cpu/cpu0/cpufreq"); err != nil || scaled == nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		if mhz, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && strings.TrimSpace(name) == "cpu MHz" {
			return fmt.Sprintf(" tsc_early_khz=%.0f", mhz*1000)
		}
	}
	return ""
}

// boots reports whether a kernel without a root file system soon reaches its panic, which ends the
// guest.
func boots(ctx context.Context, vmlinuz string, options []string) bool {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", append(options, "-m", "256", "-nodefaults", "-display", "none",
		"-no-reboot", "-kernel", vmlinuz, "-append", cmdline)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd.Run() == nil
}

// boot runs a guest and passes its output to the report. The error is about the tests or the guest;
// the ends of the console and of qemu's stderr are printed.
func (m machine) boot(ctx context.Context, vmlinuz, initrd string, r *report) error {
	console := filepath.Join(m.dir, r.kernel+".console")
	limit := m.limit + grace // before that, the test binary's own timeout prints where a test hangs
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
	cmd.Wait() // ProcessState has the result
	r.printTimes(time.Since(begin), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	if err == nil && !r.done {
		err = fmt.Errorf("the guest died: qemu says %s %s", cmd.ProcessState, strings.TrimSpace(words.String()))
	}
	if err != nil {
		r.printBroken(err, tail(console, consoleTail))
		return err
	}
	return r.verdict()
}

// start starts qemu with a console for kernel messages, a second serial port, which it returns, and
// more options. words has its stderr after it has ended.
//
// A guest has one processor. Where qemu emulates several at once, one may run an instruction that another
// has replaced (until qemu 8.1, its commit deba78709a; Debian 12 has 7.2): a kernel that switches a hook of
// its packets then meets an int3 that it no longer knows, and panics.
func (m machine) start(ctx context.Context, console string, more ...string) (cmd *exec.Cmd, out io.Reader, words *strings.Builder, err error) {
	args := slices.Concat([]string{
		"-smp", "1", "-m", "2000", "-net", "none", "-display", "none", "-monitor", "none",
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

// listen passes on each line until the guest is done or its output ends, and fails if none comes
// for too long.
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

// tail returns the last lines of a file, or the error.
func tail(file string, n int) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(string(b), "\r", "")), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
