package applet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/spec"
)

// The line equals that of slog.TextHandler.
func TestLogLine(t *testing.T) {
	for _, odd := range []string{"plain", "two words", `a "quote"`, "a=b", "line\nline", "tab\t", "ümlaut", "\xff\xfe", `back\slash`, "\x1b[31m", "\u2028"} {
		l := &Log{program: "bridge", subject: Subject{"ADD", "net", odd, "eth0", ""}, err: spec.Errorf(spec.CodeBusy, "busy: %s", odd)}
		var want bytes.Buffer
		noTime := func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
		slog.New(slog.NewTextHandler(&want, &slog.HandlerOptions{ReplaceAttr: noTime})).Error("ADD",
			"program", "bridge", "pid", os.Getpid(), "network", "net", "container", odd, "ifname", "eth0",
			"duration", 1234567*time.Nanosecond/1000*1000, "exit", 1, "code", 100, "error", "busy: "+odd)
		got := l.line(1234567*time.Nanosecond/1000*1000, 1) + "\n"
		if got != want.String() {
			t.Errorf("got  %swant %s", got, want.String())
		}
	}
}

// addWithLog runs ADD of an applet with CNIBOX_LOG.
func addWithLog(t *testing.T, where, conf string, add func(context.Context, *spec.Request) (*spec.Result, error)) (exit int, stdout, stderr string) {
	t.Helper()
	env := map[string]string{
		LogEnv: where, "CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_NETNS": "/var/run/netns/x", "CNI_PATH": "/bin",
	}
	var out, errs bytes.Buffer
	a := &Applet{Name: "test", Plugin: func() spec.Plugin {
		return spec.Plugin{Facts: spec.Facts{OpensNetNS: true}, Add: add}
	}}
	exit = a.Run(context.Background(), Process{
		Getenv: func(key string) string { return env[key] }, Stdin: strings.NewReader(conf), Stdout: &out, Stderr: &errs,
	})
	return exit, out.String(), errs.String()
}

const logConf = `{"cniVersion":"1.1.0","name":"net","type":"test","token":"s3cret"}`

func succeed(context.Context, *spec.Request) (*spec.Result, error) { return new(spec.Result), nil }

// Each call adds a line to a file that only root can read.
func TestLogFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if exit, _, stderr := addWithLog(t, file, logConf, succeed); exit != 0 || stderr != "" {
		t.Fatalf("exit %d: %s", exit, stderr)
	}
	for _, code := range []int{spec.CodeHost, spec.CodeConfig} {
		exit, _, stderr := addWithLog(t, file, logConf, func(_ context.Context, r *spec.Request) (*spec.Result, error) {
			return nil, spec.Errorf(code, "a %s", "reason")
		})
		if exit != 1 || stderr != "" {
			t.Fatalf("exit %d: %s", exit, stderr)
		}
	}
	if exit, _, _ := addWithLog(t, file, logConf[:len(logConf)-2], succeed); exit != 1 {
		t.Fatalf("exit %d", exit)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const head, times = `(?m)^time=\S+ `, `pid=\d+ network=net container=c1 ifname=eth0 netns=/var/run/netns/x duration=\S+ exit=`
	for _, want := range []string{
		"level=INFO msg=ADD program=test " + times + "0$",
		"level=ERROR msg=ADD program=test " + times + `1 code=104 error="a reason"$`,
		"level=ERROR msg=ADD program=test " + times + "1 code=7$",
		`level=ERROR msg=ADD program=test pid=\d+ container=c1 ifname=eth0 netns=/var/run/netns/x duration=\S+ exit=1 code=6$`,
	} {
		if n := len(regexp.MustCompile(head+want).FindAll(text, -1)); n != 1 {
			t.Errorf("%d lines are %s:\n%s", n, want, text)
		}
	}
	if n := bytes.Count(text, []byte("\n")); n != 4 || bytes.Contains(text, []byte("s3cret")) {
		t.Errorf("%d lines:\n%s", n, text)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// A log that cannot be written causes a warning, and the call continues.
func TestLogUnwritable(t *testing.T) {
	dir := t.TempDir()
	target, link, fifo := filepath.Join(dir, "target"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.WriteFile(target, nil, 0o600), os.Symlink(target, link), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for _, where := range []string{link, fifo, dir, "/dev/full", filepath.Join(dir, "none", "log"), "relative", "Syslog"} {
		exit, stdout, stderr := addWithLog(t, where, logConf, succeed)
		if exit != 0 || !strings.HasPrefix(stdout, "{") || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "cnibox test: CNIBOX_LOG: ") {
			t.Errorf("%s: exit %d, %q, %q", where, exit, stdout, stderr)
		}
	}
	if text, err := os.ReadFile(target); err != nil || len(text) != 0 {
		t.Errorf("the target of the link: %q, %v", text, err)
	}
}

func TestLogStderr(t *testing.T) {
	exit, _, stderr := addWithLog(t, "stderr", logConf, succeed)
	if exit != 0 || !regexp.MustCompile(`^time=\S+ level=INFO msg=ADD .* exit=0\n$`).MatchString(stderr) {
		t.Errorf("exit %d: %q", exit, stderr)
	}
	if _, _, stderr := addWithLog(t, "", logConf, succeed); stderr != "" {
		t.Errorf("without the variable: %q", stderr)
	}
}

// Help and the about text add no line, and a nested call adds one.
func TestLogWithoutVerb(t *testing.T) {
	var stderr bytes.Buffer
	p := Process{Args: []string{"help"}, Getenv: func(key string) string {
		if key == LogEnv {
			return "stderr"
		}
		return ""
	}, Stdout: io.Discard, Stderr: &stderr}
	inner := &Applet{Name: "inner", Main: func(_ context.Context, p Process) int {
		p.Log.About(Subject{Verb: "list"})
		return 0
	}}
	if (&Applet{Name: "test", Help: "keys"}).Run(context.Background(), p); stderr.Len() > 0 {
		t.Errorf("of help: %s", stderr.String())
	}
	outer := &Applet{Name: "outer", Main: func(ctx context.Context, p Process) int { return inner.Run(ctx, p) }}
	if outer.Run(context.Background(), p); strings.Count(stderr.String(), "\n") != 1 || !strings.Contains(stderr.String(), "msg=list program=outer") {
		t.Errorf("of a call in a call: %s", stderr.String())
	}
}

// Messages have the format of RFC 3164. A missing socket, or one that is not read, is an error in
// time.
func TestLogSyslog(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "log")
	now := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	if err := sendSyslog(socket, now, "bridge", false, "x"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("without a socket: %v", err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: socket})
	}
	if err != nil {
		t.Fatal(err)
	}
	for failed, want := range map[bool]string{false: `<30>Feb  3 04:05:06 bridge[`, true: `<27>Feb  3 04:05:06 bridge[`} {
		if err := sendSyslog(socket, now, "bridge", failed, "level=INFO msg=ADD"); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1000)
		n, _, err := unix.Recvfrom(fd, b, 0)
		if got := string(b[:n]); err != nil || !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "]: level=INFO msg=ADD") {
			t.Errorf("got %q, %v", got, err)
		}
	}
	for err = nil; err == nil; { // until the queue of the socket is full
		err = sendSyslog(socket, now, "bridge", false, "x")
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Errorf("a daemon that reads nothing: %v", err)
	}
}
