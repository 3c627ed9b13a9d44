package session

// Ask returns the answer of ask for a key. A session for many attachments calls ask until it succeeds, and then returns
// the same answer. The key has a type of its own for each question. Without a session, ask is called each time.
func Ask[K comparable, V any](s *Session, key K, ask func() (V, error)) (V, error) {
	if s == nil || !s.verb.many {
		return ask()
	}
	s.verb.mu.Lock()
	defer s.verb.mu.Unlock()
	if v, ok := s.verb.known[key]; ok {
		return v.(V), nil
	}
	v, err := ask()
	if err == nil {
		s.verb.known[key] = v
	}
	return v, err
}

// Once is [Ask] for what is done once: it calls fn until that succeeds.
func Once[K comparable](s *Session, key K, fn func() error) error {
	_, err := Ask(s, key, func() (struct{}, error) { return struct{}{}, fn() })
	return err
}

// Forget makes [Ask] ask for everything again.
func (s *Session) Forget() {
	s.verb.mu.Lock()
	defer s.verb.mu.Unlock()
	s.verb.known = map[any]any{}
}

// Keep returns what open has opened for a key, such as a lock. The caller calls done, which closes it; if changes are left
// for a Commit, it stays open for all of them until that has ended.
func Keep[K comparable, V any](s *Session, key K, open func() (V, error), end func(V)) (v V, done func(), err error) {
	if !s.Leaves() {
		v, err = open()
		return v, func() { end(v) }, err
	}
	s.plan.keeping.Lock()
	defer s.plan.keeping.Unlock()
	if v, ok := s.plan.kept[key]; ok {
		return v.(V), func() {}, nil
	}
	if v, err = open(); err == nil {
		if s.plan.kept == nil {
			s.plan.kept = map[any]any{}
		}
		s.plan.kept[key] = v
		s.plan.closers = append(s.plan.closers, func() { end(v) })
	}
	return v, func() {}, err
}
