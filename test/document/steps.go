package document

import (
	"fmt"
	"os"
	"strings"
)

// A Step is what a reader types: a block of sh, or a line of a block of console that begins with "# ", and
// what a console prints after it.
type Step struct {
	Commands string // with their newlines
	Output   string
	Console  bool // a block of sh shows no output
}

// Steps returns the steps of sections of a file, in their order, or of the whole file where no heading is given.
func Steps(file string, headings ...string) ([]Step, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	texts := []string{string(b)}
	for i, heading := range headings {
		_, text, _ := strings.Cut(string(b), "\n"+heading+"\n")
		text, _, _ = strings.Cut(text, "\n## ")
		texts = append(texts[:i], text)
	}
	var steps []Step
	for _, text := range texts {
		before := len(steps)
		each(text, func(s Step) string {
			steps = append(steps, s)
			return s.Output
		})
		if len(steps) == before {
			return nil, fmt.Errorf("%s has nothing to type in the sections %q", file, headings)
		}
	}
	return steps, nil
}

// Rewrite returns the text of a page with other outputs of its steps, one for each.
func Rewrite(page string, outputs []string) string {
	return each(page, func(s Step) string {
		output := outputs[0]
		outputs = outputs[1:]
		return output
	})
}

// each returns a text with the outputs that a function returns for each of its steps.
func each(text string, output func(Step) string) string {
	var b strings.Builder
	language, step := "", Step{}
	end := func() {
		if step.Commands != "" {
			b.WriteString(output(step))
		}
		step = Step{}
	}
	for line := range strings.Lines(text) {
		fence, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case isFence && language == "":
			if language = fence; fence == "" {
				language = "text"
			}
		case isFence:
			end()
			language = ""
		case language == "sh":
			step.Commands += line
		case language == "console" && strings.HasPrefix(line, "# "):
			end()
			step = Step{Commands: line[2:], Console: true}
		case language == "console":
			step.Output += line
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}
