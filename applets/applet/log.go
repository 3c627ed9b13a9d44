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

	"cnibox/spec"
)

// LogEnv is the variable that asks for one line for each call of a verb, and says where: "file",
// the absolute path of a file, "syslog" or "stderr".
const LogEnv = "CNIBOX_LOG"

// logFile is the file of CNIBOX_LOG=file.
const logFile = "/var/log/cnibox.log"

// LogFile is the file that a value of CNIBOX_LOG names; empty: it names none.
func LogFile(value string) string {
	switch {
	case value == "file":
		return logFile
	case strings.HasPrefix(value, "/"):
		return value
	}
	return ""
}

// logSocket takes datagrams, see syslog(3).
const logSocket = "/dev/log"

// A Log is the line about a call. The applet fills it in; [Applet.Run] writes it. The methods of
// nil do nothing: the line is not configured.
type Log struct {
	program string
	where   string // value of LogEnv
	process Process
	start   time.Time
	subject Subject
	err     error
}

// A Subject is what a call is about. Empty fields are left out of the line.
type Subject struct{ Verb, Network, ContainerID, IfName, NetNS string }

// About says what the call is about. Calls without a verb have no line.
func (l *Log) About(s Subject) {
	if l != nil {
		l.subject = s
	}
}

// Failed notes the error that the call ends with.
func (l *Log) Failed(err error) {
	if l != nil {
		l.err = err
	}
}

// Write writes the line where the value of LogEnv says. A log that cannot be written is warned
// of and changes nothing else. Applets call it only before the process becomes another program.
func (l *Log) Write(exit int) {
	if l == nil || l.subject.Verb == "" {
		return
	}
	where, now := l.where, time.Now()
	line := l.line(now.Sub(l.start), exit)
	stamp := "time=" + now.Format("2006-01-02T15:04:05.000Z07:00") + " "
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

// line is all but the time, in the form of slog.TextHandler, with which a test compares it;
// docs/decisions.md has what that would cost.
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
	add("duration", took.Round(time.Microsecond).String())
	add("exit", strconv.Itoa(exit))
	if l.err != nil {
		e := spec.AsError(l.err)
		add("code", strconv.Itoa(e.Code))
		add("error", logged(e))
	}
	return string(b[1:])
}

// logged is the text of an error; empty: the code has to do, since the text of such an error
// quotes configurations, variables or arguments, which may hold secrets.
func logged(e *spec.Error) string {
	switch e.Code {
	case spec.CodeUnsupported, spec.CodeEnv, spec.CodeDecode, spec.CodeConfig:
		return ""
	}
	return e.Msg
}

// maxLogged is what a value in the log has at most, in bytes: the line stays below what a
// datagram, and one write, take as a whole.
const maxLogged = 300

// cut shortens a value at the end of a character.
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

// appendLine appends to a file, in one write: lines of processes that run at the same time do
// not mix. What is not a regular file is not written to, nor is a symbolic link followed.
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

// syslogTimeout is how long a daemon that reads nothing holds up a call.
const syslogTimeout = 100 * time.Millisecond

// sendSyslog sends a datagram as syslog(3) does, of the facility daemon: the form of RFC 3164
// without the name of the host.
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
