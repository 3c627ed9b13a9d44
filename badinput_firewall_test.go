//go:build !no_firewall

package main

func init() {
	goodConfs["firewall"] = goodHead + `"type":"firewall","ingressPolicy":"isolated",` + goodPrev + `}`
}
