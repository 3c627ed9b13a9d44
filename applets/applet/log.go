package applet

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/spec"
)

// LogEnv is the variable that enables one line for each call of a verb. Its value is the
// destination: "file", the absolute path of a file, "syslog" or "stderr".
const LogEnv = "CNIBOX_LOG"

// logFile is the file of CNIBOX_LOG=file.
const logFile = "/var/log/cnibox.log"

// LogFile returns the file that a value of CNIBOX_LOG names; empty: it names none.
func LogFile(value string) string {
	switch {
	case value == "file":
		return logFile
	case strings.HasPrefix(value, "/"):
		return value
	}
	return ""
}

// logSocket receives datagrams, see syslog(3).
const logSocket = "/dev/log"

// A Log is the line about a call. The applet fills it in; [Applet.Run] writes it. On nil, which
// means that no line is configured, the methods do nothing.
type Log struct {
	program string
	where   string // value of LogEnv
	process Process
	start   time.Time
	subject Subject
	err     error
	whole   bool // the line has the text of any error
}

// A Subject is what a call is about. Empty fields are left out of the line.
type Subject struct{ Verb, Network, ContainerID, IfName, NetNS string }

// About sets the subject of the call. Calls without a verb have no line.
func (l *Log) About(s Subject) {
	if l != nil {
		l.subject = s
	}
}

// Failed sets the error with which the call ends.
func (l *Log) Failed(err error) {
	if l != nil {
		l.err = err
	}
}

// Write writes the line to the destination in LogEnv. If that fails it only warns. Applets call it
// themselves only before the process becomes another program.
func (l *Log) Write(exit int) {
	if l == nil || l.subject.Verb == "" {
		return
	}
	where, now := l.where, time.Now()
	line := l.line(now.Sub(l.start), exit)
	stamp := "time=" + now.Format(logTime) + " "
	var err error
	switch {
	case where == "stderr":
		_, err = io.WriteString(l.process.Stderr, stamp+line+"\n")
	case where == "syslog":
		err = sendSyslog(logSocket, now, l.program, exit != 0, line)
	case LogFile(where) != "":
		err = appendLine(LogFile(where), stamp+line+"\n")
	default:
		err = fmt.Errorf("%q must be file, syslog, stderr or an absolute path", where)
	}
	if err != nil {
		l.process.Complain("cnibox "+l.program, "%s: %v", LogEnv, err)
	}
}

// maxKept is the size from which [KeepError] begins a new file, in bytes.
const maxKept = 256 << 10

// KeepError appends a line about a failed call to a file that only root can read, with the text of
// any error. It renames a file that has become large to NAME.1.
func KeepError(file, program string, about Subject, failure error) error {
	if info, err := os.Lstat(file); err == nil && info.Size() > maxKept {
		if err := os.Rename(file, file+".1"); err != nil {
			return err
		}
	}
	now := time.Now()
	l := &Log{program: program, start: now, subject: about, err: failure, whole: true}
	return appendLine(file, "time="+now.Format(logTime)+" "+l.line(0, 1)+"\n")
}

// logTime is the format of the time in a line.
const logTime = "2006-01-02T15:04:05.000Z07:00"

// line returns the line without the time, in the format of slog.TextHandler; a test compares it
// with that. docs/decisions.md has the cost of using slog itself.
func (l *Log) line(took time.Duration, exit int) string {
	var b []byte
	add := func(key, value string) {
		if value == "" {
			return
		}
		b = append(append(append(b, ' '), key...), '=')
		if value = cut(value); needsQuotes(value) {
			b = strconv.AppendQuote(b, value)
		} else {
			b = append(b, value...)
		}
	}
	level := "INFO"
	if exit != 0 {
		level = "ERROR"
	}
	add("level", level)
	add("msg", l.subject.Verb)
	add("program", l.program)
	add("pid", strconv.Itoa(os.Getpid()))
	add("network", l.subject.Network)
	add("container", l.subject.ContainerID)
	add("ifname", l.subject.IfName)
	add("netns", l.subject.NetNS)
	if took > 0 {
		add("duration", took.Round(time.Microsecond).String())
	}
	add("exit", strconv.Itoa(exit))
	if l.err != nil {
		e := spec.AsError(l.err)
		add("code", strconv.Itoa(e.Code))
		if l.whole {
			add("error", e.Msg)
			add("details", e.Details)
		} else {
			add("error", logged(e))
		}
	}
	return string(b[1:])
}

// logged returns the text of an error; empty: the line has the code only, since such a text quotes
// configurations, variables or arguments, which may hold secrets.
func logged(e *spec.Error) string {
	switch e.Code {
	case spec.CodeUnsupported, spec.CodeEnv, spec.CodeDecode, spec.CodeConfig:
		return ""
	}
	return e.Msg
}

// maxLogged is the maximum length of a value in the log, in bytes: the line then fits into one
// datagram, and into one write.
const maxLogged = 300

// cut shortens a value at a character boundary.
func cut(s string) string {
	if len(s) <= maxLogged {
		return s
	}
	return strings.ToValidUTF8(s[:maxLogged], "") + "…"
}

// needsQuotes reports whether a value must be quoted to be distinguished from the text around it.
func needsQuotes(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool {
		return r == ' ' || r == '"' || r == '=' || r == unicode.ReplacementChar || !unicode.IsPrint(r)
	})
}

// appendLine appends to a file in one write, so that lines of concurrent processes do not mix. It
// writes to regular files only, and does not follow a symbolic link.
func appendLine(path, line string) error {
	const flags = os.O_WRONLY | os.O_APPEND | os.O_CREATE | unix.O_NOFOLLOW | unix.O_NONBLOCK
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return cmp.Or(err, fmt.Errorf("%s is not a regular file", path))
	}
	_, err = f.WriteString(line)
	return err
}

// syslogTimeout bounds the delay of a call by a daemon that does not read.
const syslogTimeout = 100 * time.Millisecond

// sendSyslog sends a datagram of the facility daemon as syslog(3) does, in the format of RFC 3164
// without the host name.
func sendSyslog(socket string, now time.Time, program string, failed bool, line string) error {
	const daemon, severityError, severityInfo = 3 << 3, 3, 6
	priority := daemon | severityInfo
	if failed {
		priority = daemon | severityError
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	timeout := unix.NsecToTimeval(int64(syslogTimeout))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	text := fmt.Sprintf("<%d>%s %s[%d]: %s", priority, now.Format(time.Stamp), program, os.Getpid(), line)
	if err := unix.Sendto(fd, []byte(text), unix.MSG_NOSIGNAL, &unix.SockaddrUnix{Name: socket}); err != nil {
		return &os.PathError{Op: "send", Path: socket, Err: err}
	}
	return nil
}
