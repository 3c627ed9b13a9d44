//go:build !no_tuning

package applets

// match tells whether the pattern matches anywhere in text.
// Time is bounded by the product of the lengths, whatever the pattern: an allowlist is
// an administrator's file, but the keys are of whoever writes a configuration.
func (p pattern) match(text string) bool {
	now, next := newPatternStates(p), newPatternStates(p)
	for i := 0; ; i++ {
		// a match may begin at each place
		if now.add(0, i == 0, i == len(text)) {
			return true
		}
		if i == len(text) {
			return false
		}
		for _, s := range now.list {
			step := p[s]
			if step.op == patternSet && step.set[text[i]/32]&(1<<(text[i]%32)) != 0 &&
				next.add(step.x, false, i+1 == len(text)) {
				return true
			}
		}
		now, next = next, now
		next.clear()
	}
}

// patternStates are the steps that are tried at one place of the text.
// has guards against entering one twice, which also ends loops like (a*)*.
type patternStates struct {
	p    pattern
	list []int
	has  []bool
}

// newPatternStates returns an empty set of steps.
func newPatternStates(p pattern) *patternStates {
	return &patternStates{p: p, has: make([]bool, len(p))}
}

// clear empties the set for the next place.
func (s *patternStates) clear() {
	s.list = s.list[:0]
	clear(s.has)
}

// add enters a step and all that it leads to without taking a byte; it
// reports whether the end of the pattern is among them.
// start and end tell whether the place is that of the text.
func (s *patternStates) add(step int, start, end bool) bool {
	if s.has[step] {
		return false
	}
	s.has[step] = true
	s.list = append(s.list, step)
	switch st := s.p[step]; st.op {
	case patternMatch:
		return true
	case patternSplit:
		return s.add(st.x, start, end) || s.add(st.y, start, end)
	case patternStart:
		return start && s.add(st.x, start, end)
	case patternEnd:
		return end && s.add(st.x, start, end)
	}
	return false
}
