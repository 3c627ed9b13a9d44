//go:build !no_vlan

package applets

func init() { helpConfs["vlan"] = vlanConf{} }
