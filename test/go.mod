// What drives the product from outside: its own module, so that the product's requires only
// what the product links.
module github.com/cnibox/cnibox/test

go 1.26.0

require (
	github.com/cnibox/cnibox v0.0.0
	github.com/containernetworking/cni v1.3.0
	github.com/google/jsonschema-go v0.4.3
	github.com/hanwen/go-fuse/v2 v2.8.0
	github.com/insomniacslk/dhcp v0.0.0-20260901064844-234b97448fae
	github.com/rogpeppe/go-internal v1.16.0
	golang.org/x/sys v0.49.0
	google.golang.org/grpc v1.83.0
	k8s.io/cri-api v0.36.0
)

require (
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/google/nftables v0.3.0 // indirect
	github.com/josharian/native v1.1.0 // indirect
	github.com/jsimonetti/rtnetlink/v2 v2.2.0 // indirect
	github.com/mdlayher/netlink v1.11.2 // indirect
	github.com/mdlayher/socket v0.6.0 // indirect
	github.com/pierrec/lz4/v4 v4.1.14 // indirect
	github.com/spf13/pflag v1.0.10 // indirect
	github.com/u-root/uio v0.0.0-20230220225925-ffce2a382923 // indirect
	golang.org/x/net v0.55.0 // indirect
	golang.org/x/sync v0.20.0 // indirect
	golang.org/x/text v0.37.0 // indirect
	golang.org/x/tools v0.44.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260526163538-3dc84a4a5aaa // indirect
	google.golang.org/protobuf v1.36.12-0.20260120151049-f2248ac996af // indirect
)

replace github.com/cnibox/cnibox => ../
