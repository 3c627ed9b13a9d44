package spec

import "encoding/json"

// The conventions beyond the specification for what runtimes pass to plugins: capabilities in
// runtimeConfig (https://www.cni.dev/docs/conventions/).

// readDNS reads dns, or the capability dns, which replaces it.
func (r *Request) readDNS() error {
	p := parser{}
	dns := p.dns("dns", r.top.DNS)
	if asked := p.capabilityDNS("runtimeConfig.dns", p.object("runtimeConfig", r.top.RuntimeConfig).take("dns")); !asked.Empty() {
		dns = asked
	}
	if p.err != nil {
		return Errorf(CodeConfig, "%w", p.err)
	}
	r.Net.DNS = dns
	return nil
}

// capabilityDNS reads the dns of runtimeConfig in both documented forms: that of the key dns, and
// the one with servers and searches. Some runtimes send it empty.
func (p *parser) capabilityDNS(path string, raw json.RawMessage) DNS {
	f := p.object(path, raw)
	dns := p.dnsOf(path, f)
	if servers := p.servers(path+".servers", f.take("servers")); len(dns.Nameservers) == 0 {
		dns.Nameservers = servers
	}
	if searches := p.strs(path+".searches", f.take("searches")); len(dns.Search) == 0 {
		dns.Search = searches
	}
	return dns
}
