//go:build !no_dummy

package applets

func init() { helpConfs["dummy"] = dummyConf{} }
