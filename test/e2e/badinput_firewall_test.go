//go:build !no_firewall

package e2e

func init() {
	goodConfs["firewall"] = goodHead + `"type":"firewall","ingressPolicy":"isolated",` + goodPrev + `}`
}
