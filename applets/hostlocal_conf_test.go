//go:build !no_host_local

package applets

func init() { helpConfs["host-local"] = hostLocalConf{} }
