package e2e

func init() {
	for plugin, keys := range map[string]string{
		"bandwidth": `"runtimeConfig":{"bandwidth":{"ingressRate":8000000,"egressRate":8000000}},`,
		"sbr":       `"gateways":["10.1.0.1"],`, "vrf": `"vrfname":"blue",`,
	} {
		goodConfs[plugin] = goodHead + `"type":"` + plugin + `","dataDir":"$DIR/` + plugin + `",` + keys + goodPrev + `}`
	}
}
