//go:build !no_macvlan

package applets

func init() { helpConfs["macvlan"] = macvlanConf{} }
