// Package document reads what tests execute of the documents: blocks of commands and files.
package document

import (
	"fmt"
	"os"
	"strings"
)

// Documents for users, relative to the root of the repository.
const (
	Operations = "docs/operations.md"
	Tutorial   = "docs/tutorial.md"
)

// File returns what a command of a section writes into a file: `cat >NAME <<'EOF'`, up to EOF.
func File(file, heading, name string) (string, error) {
	commands, err := Blocks(file, heading, "sh")
	if err != nil {
		return "", err
	}
	_, text, begins := strings.Cut(commands, "cat >"+name+" <<'EOF'\n")
	text, _, ends := strings.Cut(text, "EOF\n")
	if !begins || !ends {
		return "", fmt.Errorf("%s writes no %s in the section %q", file, name, heading)
	}
	return text, nil
}

// Blocks returns the code blocks of a section in a language, concatenated.
func Blocks(file, heading, language string) (blocks string, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	_, rest, _ := strings.Cut(string(b), "\n"+heading+"\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	for {
		_, after, found := strings.Cut(rest, "\n```"+language+"\n")
		switch {
		case !found && blocks == "":
			return "", fmt.Errorf("%s has no block of %s in the section %q", file, language, heading)
		case !found:
			return blocks, nil
		}
		block, next, _ := strings.Cut(after, "```\n")
		blocks, rest = blocks+block, next
	}
}
