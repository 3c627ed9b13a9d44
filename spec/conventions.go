package spec

import "encoding/json"

// The conventions of what runtimes tell plugins, beyond the specification: capabilities in
// runtimeConfig (https://www.cni.dev/docs/conventions/), and args.cni.

// readDNS reads dns, or the capability of that name, which is in its place.
func (r *Request) readDNS() error {
	vals := pick(r.top, "dns", "runtimeConfig")
	p := parser{}
	dns := p.dns("dns", vals[0])
	if vals[1] != nil {
		inner, _ := p.object("runtimeConfig", vals[1], "dns")
		if asked := p.capabilityDNS("runtimeConfig.dns", inner[0]); !asked.Empty() {
			dns = asked
		}
	}
	if p.err != nil {
		return Errorf(CodeConfig, "%w", p.err)
	}
	r.Net.DNS = dns
	return nil
}

// capabilityDNS reads the dns of runtimeConfig in both shapes that are documented: that of
// dns elsewhere, and the one with servers and searches. Runtimes send it empty too.
func (p *parser) capabilityDNS(path string, raw json.RawMessage) DNS {
	if raw == nil {
		return DNS{}
	}
	vals, _ := p.object(path, raw, "nameservers", "domain", "search", "options", "servers", "searches")
	dns := DNS{
		Nameservers: p.servers(path+".nameservers", vals[0]),
		Domain:      p.str(path+".domain", vals[1]),
		Search:      p.strs(path+".search", vals[2]),
		Options:     p.strs(path+".options", vals[3]),
	}
	if servers := p.servers(path+".servers", vals[4]); len(dns.Nameservers) == 0 {
		dns.Nameservers = servers
	}
	if searches := p.strs(path+".searches", vals[5]); len(dns.Search) == 0 {
		dns.Search = searches
	}
	return dns
}

// readArgs checks the types of what the conventions and the schema have in args.cni.
// Whether a plugin acts on it is its own affair, and other members are free.
func (r *Request) readArgs() error {
	args := pick(r.top, "args")[0]
	if args == nil {
		return nil
	}
	p := parser{}
	if cni, _ := p.object("args", args, "cni"); cni[0] != nil {
		vals, _ := p.object("args.cni", cni[0], "mac", "ips", "disable-check", "aliases", "labels")
		p.str("args.cni.mac", vals[0])
		p.strs("args.cni.ips", vals[1])
		p.bool("args.cni.disable-check", vals[2])
		p.aliases("args.cni.aliases", vals[3])
		for i, label := range p.list("args.cni.labels", vals[4]) {
			path := at("args.cni.labels", i)
			pair, _ := p.object(path, label, "key", "value")
			p.str(path+".key", pair[0])
			p.str(path+".value", pair[1])
		}
	}
	if p.err != nil {
		return Errorf(CodeConfig, "%w", p.err)
	}
	return nil
}

// aliases checks a list of names, or lists of them by network.
func (p *parser) aliases(path string, raw json.RawMessage) {
	switch {
	case raw == nil:
	case raw[0] == '[':
		p.strs(path, raw)
	case raw[0] != '{':
		p.fail(path, "%s where an object is due", kindOf(raw[0]))
	default:
		for _, m := range split(raw) {
			p.strs(path+"."+m.Name, m.Value)
		}
	}
}

// bool checks a bool.
func (p *parser) bool(path string, raw json.RawMessage) {
	if raw != nil && raw[0] != 't' && raw[0] != 'f' {
		p.fail(path, "%s where a bool is due", kindOf(raw[0]))
	}
}
