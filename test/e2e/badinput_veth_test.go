package e2e

import "strings"

func init() {
	for plugin, keys := range map[string]string{
		"ptp": "", "tap": "", "host-device": `"device":"nic0","dataDir":"$DIR/devices",`,
	} {
		goodConfs[plugin] = strings.Replace(goodHead, `"demo"`, `"`+plugin+`"`, 1) + `"type":"` + plugin + `",` + keys + goodIPAM + `,` + goodPrev + `}`
		makers[plugin] = true
	}
}
