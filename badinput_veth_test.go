package main

import "strings"

func init() {
	for _, plugin := range []string{"ptp", "tap"} {
		goodConfs[plugin] = strings.Replace(goodHead, `"demo"`, `"`+plugin+`"`, 1) + `"type":"` + plugin + `",` + goodIPAM + `,` + goodPrev + `}`
		makers[plugin] = true
	}
}
