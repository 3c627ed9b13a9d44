package main

import (
	"fmt"
	"os"
	"strings"
)

// readme is the file with the command blocks.
const readme = "README.md"

// A block is the text between the fences of a command block.
type block struct {
	line int // of the first command, counted from 1
	text string
}

// read returns the command blocks of the first half of a file, and an error if there are none.
func read(path string) ([]block, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	list, err := blocks(string(text))
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%s has no command block in its first half", readme)
	}
	return list, err
}

// blocks returns the command blocks that begin in the first half of the text's lines. Commands are
// between ```sh and ```. A fence without a language and an indented block are errors there, since a
// reader cannot see whether they are commands; other languages are not commands.
func blocks(text string) (list []block, err error) {
	lines := strings.SplitAfter(text, "\n")
	var open *block // the block that the line is in
	commands := false
	for i, line := range lines {
		fence := strings.HasPrefix(line, "```")
		switch {
		case fence && open != nil:
			if commands {
				list = append(list, *open)
			}
			open = nil
		case open != nil:
			open.text += line
		case i >= len(lines)/2:
			return list, nil
		case fence:
			language := strings.TrimSpace(strings.TrimPrefix(line, "```"))
			if language == "" {
				return nil, fmt.Errorf("%s:%d: the block has no language: ```sh for commands", readme, i+1)
			}
			open, commands = &block{line: i + 2}, language == "sh"
		case strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "\t"):
			return nil, fmt.Errorf("%s:%d: an indented block: put it between ```sh and ```", readme, i+1)
		}
	}
	if open != nil {
		return nil, fmt.Errorf("%s:%d: the block has no end", readme, open.line)
	}
	return list, nil
}
