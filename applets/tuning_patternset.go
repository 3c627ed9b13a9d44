//go:build !no_tuning

package applets

// fill adds the bytes from lo to hi to the step's set.
// The classes are those of ASCII: names of sysctls have nothing else.
func (s *patternStep) fill(lo, hi byte) {
	for c := int(lo); c <= int(hi); c++ {
		s.set[c/32] |= 1 << (c % 32)
	}
}

// escape reads what follows a backslash: a class, or a punctuation mark that
// means itself.
func (p *patternParser) escape(s *patternStep) error {
	if p.rest == "" {
		return errPatternEscape
	}
	c := p.rest[0]
	p.rest = p.rest[1:]
	switch {
	case c == 'd':
		s.fill('0', '9')
	case c == 'w':
		s.fill('0', '9')
		s.fill('A', 'Z')
		s.fill('a', 'z')
		s.fill('_', '_')
	case c == 's':
		s.fill('\t', '\n')
		s.fill('\f', '\r')
		s.fill(' ', ' ')
	case c <= ' ' || c >= 0x7f || isLetterOrDigit(c):
		return errPatternEscape
	default:
		s.fill(c, c)
	}
	return nil
}

// isLetterOrDigit reports whether a backslash before c would be a class or a code.
func isLetterOrDigit(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}

// set reads the inside of brackets. A "]" in first place, and a "-" in first
// or last, mean themselves; named classes as [:alpha:] are refused.
// Sets in sets are refused too: their meaning differs from tool to tool.
func (p *patternParser) set(s *patternStep) error {
	negate := p.rest != "" && p.rest[0] == '^'
	if negate {
		p.rest = p.rest[1:]
	}
	for first := true; ; first = false {
		if p.rest == "" {
			return errPatternSet
		}
		c := p.rest[0]
		if c == ']' && !first {
			p.rest = p.rest[1:]
			break
		}
		if err := p.setMember(s, c); err != nil {
			return err
		}
	}
	if negate {
		for i := range s.set {
			s.set[i] = ^s.set[i]
		}
	}
	return nil
}

// dash tells whether a "-" follows that is not the last in its brackets.
func (p *patternParser) dash() bool {
	return len(p.rest) >= 2 && p.rest[0] == '-' && p.rest[1] != ']'
}

// setMember reads one character, class or range inside brackets.
// c has been looked at and is taken now.
func (p *patternParser) setMember(s *patternStep, c byte) error {
	p.rest = p.rest[1:]
	switch {
	case c == '\\':
		if err := p.escape(s); err != nil {
			return err
		}
		if p.dash() { // a range from an escaped letter, or none after a class
			return errPatternSet
		}
		return nil
	case c >= 0x80:
		return errPatternLetter
	case c == '[' && p.rest != "" && p.rest[0] == ':':
		return errPatternSet
	}
	if !p.dash() {
		s.fill(c, c)
		return nil
	}
	hi := p.rest[1]
	if hi < c || hi == '\\' || hi == '[' || hi >= 0x80 {
		return errPatternSet
	}
	p.rest = p.rest[2:]
	s.fill(c, hi)
	return nil
}
