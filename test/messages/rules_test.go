package messages

import (
	"fmt"
	"regexp"
	"strings"
)

// referencePhrases are texts of the reference plugins that people and scripts search for. Messages
// must keep them.
var referencePhrases = strings.NewReplacer("error unmarshall network config", "", "failed to load netconf", "")

// internalWords matches names of Go packages and functions, and texts of the Go library.
var internalWords = regexp.MustCompile(`\b[a-z]+\.[A-Z]\w+|json:|(?i)unmarshal|%!|strconv|netip|[^-]\bexec:|\bEOF\b|<nil>|file does not exist|file already exists|fork/exec`)

// position matches a place in a file.
var position = regexp.MustCompile(`[^ :]+:[0-9]+:[0-9]+: |line [0-9]+, column [0-9]+`)

// commands are what a user may copy: the command that deletes and the one that adds have equal words.
var commands = regexp.MustCompile("`cni-exec [^`]*`")

// pathError matches the kernel's text for a missing file, after the path of the file.
var pathError = regexp.MustCompile(`/.*no such file or directory`)

// faults returns the rules that a message breaks.
func (m message) faults(a answer) (list []string) {
	text := referencePhrases.Replace(a.text)
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if a.exit == 0 || a.code == 999 || a.code == 0 && !strings.HasPrefix(m.argv, "cnibox ") {
		add("exit code %d and code %d are not those of an error that is known", a.exit, a.code)
	}
	if lines := strings.Count(a.text, "\n"); lines < 1 || lines > 2 {
		add("it has %d lines, not one or two", lines)
	}
	if found := internalWords.FindString(text); found != "" {
		add("%q means nothing to a user", found)
	}
	if strings.Contains(text, "invalid character '") && !position.MatchString(text) {
		add("it does not say at which position")
	}
	if strings.Contains(text, "no such file or directory") && !pathError.MatchString(text) {
		add("it does not say which file is missing")
	}
	if twice := repeated(commands.ReplaceAllString(text, "")); twice != "" {
		add("it says %q twice", twice)
	}
	for what, part := range map[string]string{"the place": m.where, "the key": m.key, "what to do": m.advice} {
		if !strings.Contains(a.text, part) {
			add("it does not contain %s, %q", what, part)
		}
	}
	return list
}

// repeated returns four consecutive words that occur twice in a text.
func repeated(text string) string {
	const run = 4
	seen := map[string]bool{}
	words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \n\t:;,()\"'", r) })
	for i := run; i <= len(words); i++ {
		part := strings.Join(words[i-run:i], " ")
		if seen[part] {
			return part
		}
		seen[part] = true
	}
	return ""
}
