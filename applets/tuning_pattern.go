//go:build !no_tuning

package applets

import (
	"errors"
	"strings"
)

// A pattern is a regular expression of the kind that allowlists of sysctls
// hold: literals, ".", "[…]", "\d", "\w", "\s", groups, "|", "*", "+", "?", "^"
// and "$". It is compiled into steps that are tried side by side, so no
// pattern takes longer than its length times that of the text. The regexp
// package would add a tenth to the size of the binary.
type pattern []patternStep

// A patternStep takes one byte if op is patternSet; the others take none.
type patternStep struct {
	op   patternOp
	set  [256 / 32]uint32 // the bytes that patternSet takes
	x, y int              // where to go on
}

// A patternOp is what a step does.
type patternOp uint8

const (
	patternSet   patternOp = iota // to x if the byte is in the set
	patternSplit                  // to x and to y
	patternStart                  // to x at the start of the text
	patternEnd                    // to x at its end
	patternMatch
)

// Why a pattern is refused. Nobody guesses what a line of an allowlist means.
var (
	errPatternGroup  = errors.New("parentheses do not match")
	errPatternSet    = errors.New("a set in brackets does not end, is empty or is out of order")
	errPatternRepeat = errors.New("nothing stands before a repetition, or another repetition")
	errPatternEscape = errors.New(`an escape other than of a punctuation mark, \d, \w and \s`)
	errPatternBrace  = errors.New("counted repetitions and (?…) are not supported")
	errPatternLetter = errors.New("a character that is not ASCII")
)

// compilePattern reads a pattern.
// The error is one of those above: a line that cannot be read allows nothing.
func compilePattern(s string) (pattern, error) {
	p := patternParser{rest: s}
	p.emit(patternStep{}) // step 0 leads to the first one
	first, err := p.alternatives(0)
	if err != nil {
		return nil, err
	}
	if p.rest != "" {
		return nil, errPatternGroup
	}
	p.steps[0] = patternStep{op: patternSplit, x: first.start, y: first.start}
	p.patch(first.open, p.emit(patternStep{op: patternMatch}))
	return p.steps, nil
}

// A patternPart is a piece of the program with ends that lead nowhere yet:
// step numbers, negative for the step's y.
type patternPart struct {
	start int
	open  []int
}

// A patternParser holds what is not read yet, and the steps made so far.
// It is a parser by recursive descent, a method for each level of the grammar.
type patternParser struct {
	rest  string
	steps pattern
}

// emit appends a step and returns its number.
// Its ends are patched when it is known where they lead.
func (p *patternParser) emit(s patternStep) int {
	p.steps = append(p.steps, s)
	return len(p.steps) - 1
}

// patch leads open ends to a step.
func (p *patternParser) patch(open []int, to int) {
	for _, o := range open {
		if o < 0 {
			p.steps[-o].y = to
		} else {
			p.steps[o].x = to
		}
	}
}

// deepestPattern bounds the nesting of groups.
const deepestPattern = 50

// alternatives reads up to the end or a closing parenthesis.
// Each side is as wide as it goes: "ab|c" is "(ab)|c".
func (p *patternParser) alternatives(depth int) (patternPart, error) {
	if depth > deepestPattern {
		return patternPart{}, errPatternGroup
	}
	left, err := p.sequence(depth)
	for err == nil && strings.HasPrefix(p.rest, "|") {
		p.rest = p.rest[1:]
		var right patternPart
		if right, err = p.sequence(depth); err == nil {
			split := p.emit(patternStep{op: patternSplit, x: left.start, y: right.start})
			left = patternPart{split, append(left.open, right.open...)}
		}
	}
	return left, err
}

// sequence reads repeated atoms; an empty one matches everywhere.
func (p *patternParser) sequence(depth int) (patternPart, error) {
	enter := p.emit(patternStep{op: patternSplit})
	all := patternPart{enter, []int{enter, -enter}}
	for p.rest != "" && p.rest[0] != '|' && p.rest[0] != ')' {
		part, err := p.atom(depth)
		if err == nil {
			part, err = p.repeat(part)
		}
		if err != nil {
			return patternPart{}, err
		}
		p.patch(all.open, part.start)
		all.open = part.open
	}
	return all, nil
}

// repeat reads what may stand behind an atom. A "?" behind a repetition asks for
// the shortest match, and is the same to those who ask whether there is one.
// The open ends of the part are led back to a split, or to what follows.
func (p *patternParser) repeat(part patternPart) (patternPart, error) {
	if p.rest == "" || !strings.ContainsRune("*+?", rune(p.rest[0])) {
		return part, nil
	}
	op := p.rest[0]
	p.rest = strings.TrimPrefix(p.rest[1:], "?")
	split := p.emit(patternStep{op: patternSplit, x: part.start})
	switch op {
	case '*':
		p.patch(part.open, split)
		return patternPart{split, []int{-split}}, nil
	case '+':
		p.patch(part.open, split)
		return patternPart{part.start, []int{-split}}, nil
	}
	return patternPart{split, append(part.open, -split)}, nil
}

// atom reads one character, set, group or anchor.
// A "]" outside of brackets is itself.
func (p *patternParser) atom(depth int) (patternPart, error) {
	c := p.rest[0]
	p.rest = p.rest[1:]
	step := patternStep{}
	var err error
	switch {
	case c >= 0x80:
		err = errPatternLetter
	case c == '(':
		return p.group(depth)
	case c == '*' || c == '+' || c == '?':
		err = errPatternRepeat
	case c == '{' || c == '}':
		err = errPatternBrace
	case c == '^':
		step.op = patternStart
	case c == '$':
		step.op = patternEnd
	case c == '.':
		step.fill(0, 255)
	case c == '[':
		err = p.set(&step)
	case c == '\\':
		err = p.escape(&step)
	default:
		step.fill(c, c)
	}
	if err != nil {
		return patternPart{}, err
	}
	at := p.emit(step)
	return patternPart{at, []int{at}}, nil
}

// group reads up to the closing parenthesis; nothing is captured, so "(?:" is "(".
func (p *patternParser) group(depth int) (patternPart, error) {
	if strings.HasPrefix(p.rest, "?:") {
		p.rest = p.rest[2:]
	}
	if strings.HasPrefix(p.rest, "?") {
		return patternPart{}, errPatternBrace
	}
	part, err := p.alternatives(depth + 1)
	if err == nil && !strings.HasPrefix(p.rest, ")") {
		err = errPatternGroup
	}
	if err != nil {
		return patternPart{}, err
	}
	p.rest = p.rest[1:]
	return part, nil
}
