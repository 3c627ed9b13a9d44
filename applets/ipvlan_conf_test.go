//go:build !no_ipvlan

package applets

func init() { helpConfs["ipvlan"] = ipvlanConf{} }
