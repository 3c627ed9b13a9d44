package nft

// Probe lists the kernel's tables and so reports whether nf_tables can be used; our table need not
// exist. Errors name the option that the kernel may lack, or say that privilege is missing.
func (t *Table) Probe() error {
	s, err := t.dial()
	if err != nil {
		return err
	}
	defer s.Close()
	_, _, err = s.getChain(chainID{inet, TableName, "postrouting"})
	return err
}

// HasGuard reports whether the base ruleset is installed; its chain guard drops packets from other
// hosts to 127.0.0.0/8.
func (t *Table) HasGuard() (bool, error) {
	s, err := t.dial()
	if err != nil {
		return false, err
	}
	defer s.Close()
	version, err := s.version(inet)
	return version != "", err
}

// HasFirewalld reports whether firewalld's own table exists. firewalld rejects forwarded packets of
// unknown addresses, and no rule of another table overrides that.
func (x *Tx) HasFirewalld() bool {
	ok, _, err := x.s.getChain(chainID{inet, "firewalld", "filter_FORWARD"})
	if err != nil {
		x.fail(err)
	}
	return ok
}
