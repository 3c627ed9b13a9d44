package spec

import (
	"encoding/json"
	"maps"
	"slices"
)

// The conventions of what runtimes pass to plugins, beyond the specification: capabilities in
// runtimeConfig (https://www.cni.dev/docs/conventions/), and args.cni.

// readDNS reads dns, or the capability of that name, which replaces it.
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

// capabilityDNS reads the dns of runtimeConfig in both shapes that are documented: that of
// the key dns, and the one with servers and searches. Runtimes send it empty too.
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

// readArgs checks the types of what the conventions and the schema have in args.cni.
// Whether a plugin acts on it is its own affair, and other members are free.
func (r *Request) readArgs() error {
	p := parser{}
	cni := p.object("args.cni", p.object("args", r.top.Args).take("cni"))
	p.str("args.cni.mac", cni.take("mac"))
	p.strs("args.cni.ips", cni.take("ips"))
	p.bool("args.cni.disable-check", cni.take("disable-check"))
	p.aliases("args.cni.aliases", cni.take("aliases"))
	for i, label := range p.list("args.cni.labels", cni.take("labels")) {
		path := at("args.cni.labels", i)
		pair := p.element(path, label)
		p.str(path+".key", pair.take("key"))
		p.str(path+".value", pair.take("value"))
	}
	if p.err != nil {
		return Errorf(CodeConfig, "%w", p.err)
	}
	return nil
}

// aliases checks a list of names, or lists of them by network.
func (p *parser) aliases(path string, raw json.RawMessage) {
	if raw != nil && raw[0] == '[' {
		p.strs(path, raw)
		return
	}
	networks := p.object(path, raw)
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		if list := networks[name]; !absent(list) {
			p.strs(path+"."+name, list)
		}
	}
}

// bool checks a bool.
func (p *parser) bool(path string, raw json.RawMessage) {
	if raw != nil && raw[0] != 't' && raw[0] != 'f' {
		p.fail(path, "%s where a bool is due", kindOf(raw[0]))
	}
}
