module github.com/cnibox/cnibox

go 1.26.0

require (
	github.com/google/nftables v0.3.0
	github.com/jsimonetti/rtnetlink/v2 v2.2.0
	github.com/mdlayher/netlink v1.11.2
	github.com/spf13/pflag v1.0.10
	golang.org/x/sys v0.49.0
)

require (
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/mdlayher/socket v0.6.0 // indirect
	golang.org/x/net v0.55.0 // indirect
	golang.org/x/sync v0.20.0 // indirect
)
