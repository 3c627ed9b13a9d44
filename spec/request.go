package spec

import (
	"encoding/json"
	"net"
)

// A Request is one verb for one plugin. Plugins see nothing else of the
// process they run in.
type Request struct {
	Verb Verb
	Attachment
	NetNS         string                           // path; may be empty in DEL, GC and STATUS
	NetNSOverride bool                             // CNI_NETNS_OVERRIDE: our own namespace is meant
	Args          Args                             // CNI_ARGS
	Path          []string                         // CNI_PATH; empty: plugins of this binary alone
	Net           NetConf                          // keys common to all plugins
	Prev          *Result                          // prevResult; nil if there is none
	Valid         []Attachment                     // GC: what is still attached; [NewRequest] refuses a GC without the key
	Invoker       Invoker                          // runs delegates; never nil
	Warn          func(format string, args ...any) // one line for people, on stderr; never nil

	conf json.RawMessage // the plugin's own configuration, as it came
}

// NetConf are the keys common to all plugins.
type NetConf struct {
	Version Version // of cniVersion; 0.1.0 if that is missing or empty
	Name    string
	Type    string
	IPAM    struct{ Type string } // Type is empty if there is no IPAM
	DNS     DNS
}

var _ net.HardwareAddr
