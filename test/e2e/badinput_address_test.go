package e2e

import "path/filepath"

func init() {
	goodConfs["static"] = goodHead + `"type":"static","ipam":{"type":"static","addresses":[{"address":"10.1.0.2/24"}]},` + goodPrev + `}`
	env, _ := filepath.Abs("testdata/subnet.env") // a test runs in its directory
	goodConfs["flannel"] = goodHead + `"type":"flannel","subnetFile":"` + env + `","dataDir":"$DIR/flannel",
		"delegate":{"bridge":"br7"},"ipam":{"dataDir":"$DIR/leases"},` + goodPrev + `}`
	makers["flannel"] = true
	everyPlugin["flannel"] = fixture{takeAway: func(w *world) { w.dropLink("br7") }, invalid: `"delegate":{"name":"x"}`}
}
