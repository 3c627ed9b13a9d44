package schematest

// The bounds of interfaces[].mtu and routes[].mtu in the result schema.
const minMTU, maxMTU = 68, 65535

// Where the schema has format ipv4, the rules accept both families, since format is an annotation.

// stringRule and the three functions after it return a rule for one kind of value.
func stringRule() *rule                       { return &rule{kind: "string"} }
func textRule(text func(string) string) *rule { return &rule{kind: "string", text: text} }
func intRule(least, most int64) *rule         { return &rule{kind: "integer", min: least, max: most} }
func listRule(items *rule) *rule              { return &rule{kind: "array", items: items} }

// objectRule has rules for members, and the names of the required ones. It allows all other members.
func objectRule(members map[string]*rule, required ...string) *rule {
	return &rule{kind: "object", members: members, required: required}
}

// resultRule is the schema of results. cniVersion is required, unlike in [spec.ParseResult].
func resultRule() *rule {
	r := objectRule(map[string]*rule{
		"cniVersion": textRule(versionText),
		"interfaces": listRule(objectRule(map[string]*rule{
			"name":       stringRule(),
			"mac":        textRule(macText),
			"mtu":        intRule(minMTU, maxMTU),
			"sandbox":    stringRule(),
			"socketPath": stringRule(),
			"pciID":      stringRule(),
		}, "name")),
		"ips": listRule(objectRule(map[string]*rule{
			"address":   textRule(prefixText),
			"gateway":   textRule(addrText),
			"interface": intRule(0, 0),
		}, "address")),
		"routes": listRule(routeRule()),
		"dns":    dnsRule(),
	}, "cniVersion")
	r.whole = indexes
	return r
}

// routeRule allows any priority, table and scope, which are not in the schema.
func routeRule() *rule {
	return objectRule(map[string]*rule{
		"dst":    textRule(prefixText),
		"gw":     textRule(addrText),
		"mtu":    intRule(minMTU, maxMTU),
		"advmss": intRule(1, 0),
	}, "dst")
}

func dnsRule() *rule {
	return objectRule(map[string]*rule{
		"nameservers": listRule(textRule(addrText)),
		"domain":      stringRule(),
		"search":      listRule(stringRule()),
		"options":     listRule(stringRule()),
	})
}
