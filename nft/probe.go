package nft

// Probe asks the kernel for its tables and so reports whether nf_tables can be
// used at all. It makes no difference whether ours is there. Errors say which
// option the kernel may lack, or that privilege is missing.
func (t *Table) Probe() error {
	s, err := dial(t.ns)
	if err != nil {
		return err
	}
	defer s.Close()
	_, _, err = s.getChain(chainID{inet, TableName, "postrouting"})
	return err
}

// HasGuard reports whether the base ruleset is there, whose chain guard drops what comes from other
// hosts for 127.0.0.0/8.
func (t *Table) HasGuard() (bool, error) {
	s, err := dial(t.ns)
	if err != nil {
		return false, err
	}
	defer s.Close()
	version, err := s.version(inet)
	return version != "", err
}

// HasFirewalld reports whether firewalld's own table is there. What it does not know it
// rejects on the way through the host, and no rule of another table overrules that.
func (x *Tx) HasFirewalld() bool {
	ok, _, err := x.s.getChain(chainID{inet, "firewalld", "filter_FORWARD"})
	if err != nil {
		x.fail(err)
	}
	return ok
}
