//go:build !no_ptp

package applets

func init() { helpConfs["ptp"] = ptpConf{} }
