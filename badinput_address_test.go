package main

func init() {
	goodConfs["static"] = goodHead + `"type":"static","ipam":{"type":"static","addresses":[{"address":"10.1.0.2/24"}]},` + goodPrev + `}`
}
