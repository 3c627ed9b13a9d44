package schema

import "math"

// The bounds of interfaces[].mtu and routes[].mtu in the result schema.
const minMTU, maxMTU = 68, 65535

// The rules of the two JSON schemas, as functions: built when they are needed,
// not at each start of the program. Where a schema says format ipv4, either
// family is taken, as format is an annotation.

// boolRule, and the four after it, is a rule of one kind and little else.
func boolRule() *rule                         { return &rule{kind: "boolean"} }
func stringRule() *rule                       { return &rule{kind: "string"} }
func textRule(text func(string) string) *rule { return &rule{kind: "string", text: text} }
func intRule(least, most int64) *rule         { return &rule{kind: "integer", min: least, max: most} }
func listRule(items *rule) *rule              { return &rule{kind: "array", items: items} }

// objectRule has rules for members, of which some are required. Others are free.
func objectRule(members map[string]*rule, required ...string) *rule {
	return &rule{kind: "object", members: members, required: required}
}

// resultRule is the schema of results.
// cniVersion is required, unlike in [spec.ParseResult].
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

// routeRule is shared by results and the ipam of a configuration.
// priority, table and scope are not in the schema, so they are free in it.
func routeRule() *rule {
	return objectRule(map[string]*rule{
		"dst":    textRule(prefixText),
		"gw":     textRule(addrText),
		"mtu":    intRule(minMTU, maxMTU),
		"advmss": intRule(1, 0),
	}, "dst")
}

// dnsRule is shared by results, configurations and runtimeConfig.
func dnsRule() *rule {
	return objectRule(map[string]*rule{
		"nameservers": listRule(textRule(addrText)),
		"domain":      stringRule(),
		"search":      listRule(stringRule()),
		"options":     listRule(stringRule()),
	})
}

// confRule is the schema of network configurations.
// The rules for lists are not here.
func confRule() *rule {
	return objectRule(map[string]*rule{
		"cniVersion":  textRule(versionText),
		"cniVersions": listRule(textRule(versionText)),
		"name":        {kind: "string", min: 1, max: 200, text: nameText},
		"type":        {kind: "string", min: 1},
		"args": objectRule(map[string]*rule{
			"cni": objectRule(map[string]*rule{
				"disable-check": boolRule(),
				"aliases":       {kind: "object", others: listRule(stringRule())},
			}),
		}),
		"ipMasq":        boolRule(),
		"ipam":          ipamRule(),
		"dns":           dnsRule(),
		"capabilities":  {kind: "object", others: boolRule()},
		"runtimeConfig": runtimeRule(),
		"prevResult":    resultRule(),
	}, "cniVersion", "name", "type")
}

// ipamRule has the keys of host-local; other plugins may have any.
// ipam.type is required.
func ipamRule() *rule {
	return objectRule(map[string]*rule{
		"type":       stringRule(),
		"subnet":     textRule(prefixText),
		"rangeStart": textRule(addrText),
		"rangeEnd":   textRule(addrText),
		"gateway":    textRule(addrText),
		"routes":     listRule(routeRule()),
		"dataDir":    stringRule(),
		"resolvConf": stringRule(),
		"ranges":     listRule(listRule(rangeRule())),
	}, "type")
}

// rangeRule is an element of ipam.ranges and of runtimeConfig.ipRanges.
func rangeRule() *rule {
	return objectRule(map[string]*rule{
		"subnet":     textRule(prefixText),
		"rangeStart": textRule(addrText),
		"rangeEnd":   textRule(addrText),
		"gateway":    textRule(addrText),
	})
}

// runtimeRule is what runtimes insert for the capabilities of a plugin. Rates and
// bursts have 64 bits, which CRI-O uses.
func runtimeRule() *rule {
	rate := intRule(0, math.MaxInt64)
	return objectRule(map[string]*rule{
		"portMappings": listRule(objectRule(map[string]*rule{
			"containerPort": intRule(1, math.MaxUint16),
			"hostPort":      intRule(0, math.MaxUint16),
			"protocol":      textRule(protocolText),
			"hostIP":        stringRule(),
		}, "containerPort")),
		"bandwidth": objectRule(map[string]*rule{
			"ingressRate": rate, "ingressBurst": rate, "egressRate": rate, "egressBurst": rate,
		}),
		"dns":      dnsRule(),
		"mac":      textRule(macText),
		"ipRanges": listRule(listRule(rangeRule())),
	})
}
