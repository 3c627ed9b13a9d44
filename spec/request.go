package spec

import (
	"context"
	"encoding/json"
	"net"
)

// A Request is one verb for one plugin. Plugins see nothing else of the
// process they run in.
type Request struct {
	Attachment
	Call    Call         // Verb, NetNS and what else the runtime said, as it came
	Path    []string     // the folders of CNI_PATH; empty: plugins of this binary alone
	Net     NetConf      // keys common to all plugins
	Prev    *Result      // prevResult; nil if there is none
	Valid   []Attachment // GC: what is still attached
	Invoker Invoker      // runs delegates; never nil

	// Warn prints one line for people on stderr; never nil.
	Warn func(format string, args ...any)

	args Args
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

// A Call is what a runtime tells a plugin besides the configuration: the CNI_*
// variables of the environment.
type Call struct {
	Verb          Verb
	ContainerID   string
	NetNS         string // path; may be empty in DEL, GC and STATUS
	IfName        string
	Args          string // CNI_ARGS as it came
	Path          string // CNI_PATH as it came
	NetNSOverride bool   // CNI_NETNS_OVERRIDE: our own namespace is meant
}

// ReadCall reads and checks the CNI_* variables; errors have code 4 and name
// the variables.
func ReadCall(getenv func(string) string) (Call, error) { panic("spec helper") }

// Environ returns the call as CNI_* variables.
func (c Call) Environ() []string { panic("spec helper") }

// NewRequest reads a plugin's configuration. Errors have code 6 (not JSON) or 7
// (what it says is invalid). Invoker and Warn are the caller's to set.
func NewRequest(c Call, conf []byte) (*Request, error) { panic("spec helper") }

// Decode reads the plugin's own keys into conf; errors have code 7 and name the key.
func (r *Request) Decode(conf any) error { panic("spec helper") }

// MAC returns the address asked for in runtimeConfig.mac, args.cni.mac, CNI_ARGS MAC
// or the key mac, the first that is there; nil: none. Errors have code 7 (4 for CNI_ARGS).
func (r *Request) MAC() (net.HardwareAddr, error) { panic("spec helper") }

// Arg returns the value of a key of CNI_ARGS.
func (r *Request) Arg(key string) (string, bool) { panic("spec helper") }

// Wire returns the stdin of an exec'd plugin: the configuration with prevResult in
// r.Net.Version, all else as it came.
func (r *Request) Wire() ([]byte, error) { panic("spec helper") }

// Delegate runs a verb of another plugin with the same call and configuration.
func (r *Request) Delegate(ctx context.Context, plugin string, v Verb) (*Result, error) {
	panic("spec helper")
}

// Do runs the request's verb, as the version allows it.
func (v Verbs) Do(ctx context.Context, r *Request) (*Result, error) { panic("spec helper") }
