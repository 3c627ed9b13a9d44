//go:build !no_static

package applets

func init() { helpConfs["static"] = staticConf{} }
