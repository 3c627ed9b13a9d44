package spec

// The conventions beyond the specification for what runtimes pass to plugins: capabilities in
// runtimeConfig (https://www.cni.dev/docs/conventions/).

// readDNS reads dns, or the capability dns, which replaces it.
func (r *Request) readDNS() error {
	dns, err := readDNS("dns", r.top.DNS)
	if err != nil {
		return Errorf(CodeConfig, "%w", err)
	}
	asked, err := r.capabilityDNS()
	if err != nil {
		return Errorf(CodeConfig, "%w", err)
	}
	r.Net.DNS = dns
	if !asked.Empty() {
		r.Net.DNS = asked
	}
	return nil
}

// capabilityDNS reads the dns of runtimeConfig in both documented forms: that of the key dns, and
// the one with servers and searches. Some runtimes send it empty.
func (r *Request) capabilityDNS() (DNS, error) {
	var conf struct {
		DNS struct {
			DNS
			Servers  []string `json:"servers"`
			Searches []string `json:"searches"`
		} `json:"dns"`
	}
	if err := optional("runtimeConfig", r.top.RuntimeConfig, &conf); err != nil {
		return DNS{}, err
	}
	if err := checkServers("runtimeConfig.dns.servers", conf.DNS.Servers); err != nil {
		return DNS{}, err
	}
	dns := conf.DNS.DNS
	if len(dns.Nameservers) == 0 {
		dns.Nameservers = conf.DNS.Servers
	}
	if len(dns.Search) == 0 {
		dns.Search = conf.DNS.Searches
	}
	return dns, dns.check("runtimeConfig.dns")
}
