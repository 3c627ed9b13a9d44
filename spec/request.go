package spec

import (
	"context"
	"slices"
	"strings"

	"cnibox/internal/json"
)

// MaxConf is the size of the largest configuration that is read, in bytes.
// Configurations have a few kB; the bound is against an endless stdin.
const MaxConf = 8 << 20

// The keys of the set of valid attachments in a GC configuration: today's
// text and runtimes have the first, the tagged 1.1.0 has the second.
const (
	keyValid    = "cni.dev/valid-attachments"
	keyAttached = "cni.dev/attachments"
)

// A Request is one verb for one plugin. Plugins see nothing else of the
// process they run in.
//
// It is made by [NewRequest] for each call; a delegate or a member of a chain gets a
// copy, see [Request.Clone].
type Request struct {
	Attachment
	Call Call     // Verb, NetNS and what else the runtime said, as it came
	Path []string // the folders of CNI_PATH; empty: plugins of this binary alone
	Net  NetConf  // keys common to all plugins
	Prev *Result  // prevResult; nil if there is none

	// Valid is what is still attached, for GC. It is nil if the runtime did
	// not say, and empty if nothing is attached.
	Valid []Attachment

	Invoker Invoker // runs delegates; never nil

	// Warn prints one line for people on stderr; never nil.
	Warn func(format string, args ...any)

	// What Decode, Arg and Wire read; nobody changes the bytes.
	args Args
	conf json.RawMessage // the plugin's own configuration, as it came
	top  []Member        // its members
}

// NetConf are the keys common to all plugins.
// All but the version are empty where the configuration does not have them.
type NetConf struct {
	Version    Version // of cniVersion; 0.1.0 if that is missing or empty, zero if it is no version
	CNIVersion string  // cniVersion as written
	Name       string
	Type       string
	DNS        DNS

	IPAM struct {
		Type string `json:"type"` // empty if there is no IPAM
	}
}

// NewRequest reads a plugin's configuration. Errors have code 6 (not JSON) or 7
// (what it says is invalid), and 3 or 4 if the call's names are. Invoker and
// Warn are the caller's to set; until then Warn is silent.
//
// Whether the plugin serves the version is for [Verbs.Do] to say; prevResult
// and the set of GC are read only in a version that exists. With an error the request is
// nil, or good for its version alone.
func NewRequest(c Call, conf []byte) (*Request, error) {
	if len(conf) > MaxConf {
		return nil, Errorf(CodeDecode, "network config of more than %d bytes", MaxConf)
	}
	top, err := Members(conf)
	if err != nil {
		return nil, Errorf(CodeDecode, "error unmarshall network config: %w", err)
	}
	r := &Request{Call: c, Path: folders(c.Path), conf: conf, top: top, Warn: func(string, ...any) {}}
	if err := r.readNames(); err != nil {
		return r, err
	}
	if err := r.readCommon(); err != nil {
		return r, err
	}
	// prevResult of a version nobody knows cannot be read, and would hide the better
	// error, that of the version.
	if !r.Net.exact(Version{}) {
		return r, nil
	}
	if err := r.readPrev(); err != nil {
		return r, err
	}
	return r, r.readValid()
}

// readNames reads the version and the name, and checks all names and CNI_ARGS
// where the verb is about an attachment. In other verbs the runtime may have
// put anything there, so nothing of it goes on.
//
// They come first: an error about anything else is told in the version read here.
func (r *Request) readNames() (err error) {
	vals := pick(r.top, "cniVersion", "name")
	if err := optional("cniVersion", vals[0], &r.Net.CNIVersion); err != nil {
		return Errorf(CodeDecode, "error unmarshall network config: %w", err)
	}
	// One that is no version stays zero: Do tells it, with the code of its verb.
	if v, err := ParseVersion(r.Net.CNIVersion); err == nil {
		r.Net.Version = v
	}
	if err := optional("name", vals[1], &r.Net.Name); err != nil {
		return Errorf(CodeConfig, "invalid network name: %w", err)
	}
	if err := CheckNetworkName(r.Net.Name); err != nil {
		return err
	}
	r.Network = r.Net.Name
	if !r.Call.Verb.attached() {
		return nil
	}
	if err := CheckContainerID(r.Call.ContainerID); err != nil {
		return err
	}
	if err := CheckIfName(r.Call.IfName); err != nil {
		return err
	}
	r.ContainerID, r.IfName = r.Call.ContainerID, r.Call.IfName
	r.args, err = ParseArgs(r.Call.Args)
	return err
}

// readCommon reads type, ipam.type and dns.
// Names of plugins are checked, since they become the names of files that are run
// (CVE-2021-20206).
func (r *Request) readCommon() error {
	vals := pick(r.top, "type", "ipam", "dns")
	if err := optional("type", vals[0], &r.Net.Type); err != nil {
		return Errorf(CodeConfig, "%w", err)
	}
	if err := optional("ipam", vals[1], &r.Net.IPAM); err != nil {
		return Errorf(CodeConfig, "%w", err)
	}
	for _, name := range []string{r.Net.Type, r.Net.IPAM.Type} {
		if name == "" {
			continue
		}
		if err := CheckType(name); err != nil {
			return err
		}
	}
	p := parser{}
	r.Net.DNS = p.dns("dns", vals[2])
	if p.err != nil {
		return Errorf(CodeConfig, "%w", p.err)
	}
	return nil
}

// readPrev reads prevResult in its own version.
// The reference reads it in the configuration's, and fails where a plugin before
// answered in an older one.
func (r *Request) readPrev() (err error) {
	prev := pick(r.top, "prevResult")[0]
	if prev == nil {
		return nil
	}
	if prev[0] != '{' {
		return Errorf(CodeConfig, "prevResult: %s where an object is due", kindOf(prev[0]))
	}
	if r.Prev, err = parseResult(split(prev), r.Net.Version); err != nil {
		return Errorf(CodeConfig, "prevResult: %w", err)
	}
	return nil
}

// readValid reads the set of GC. A key with null is the empty set, as CRI-O
// sends it. An absent key leaves Valid nil: it must not be taken for the empty set,
// which has everything removed.
func (r *Request) readValid() error {
	if r.Call.Verb != GC || !r.Net.Version.AtLeast(V110) {
		return nil
	}
	for _, key := range []string{keyValid, keyAttached} {
		// The last of a repeated key counts, as everywhere. pick would not do: to it
		// null is absence.
		for _, m := range slices.Backward(r.top) {
			if strings.EqualFold(m.Name, key) {
				return r.parseValid(key, m.Value)
			}
		}
	}
	return nil
}

// parseValid reads the list of one of the keys of the set of GC.
// One bad entry refuses the list, since a set read in part would free what is in use.
func (r *Request) parseValid(key string, list []byte) error {
	var entries []*struct{ ContainerID, IfName string }
	if err := Unmarshal(key, list, &entries); err != nil {
		return Errorf(CodeConfig, "%w", err)
	}
	r.Valid = make([]Attachment, 0, len(entries))
	for i, e := range entries {
		if e == nil {
			return Errorf(CodeConfig, "%s[%d] is null", key, i)
		}
		if err := CheckContainerID(e.ContainerID); err != nil {
			return Errorf(CodeConfig, "%s[%d]: %s", key, i, err)
		}
		if err := CheckIfName(e.IfName); err != nil {
			return Errorf(CodeConfig, "%s[%d]: %s", key, i, err)
		}
		r.Valid = append(r.Valid, Attachment{r.Network, e.ContainerID, e.IfName})
	}
	return nil
}

// ValidKeys tells of a key whether it is that of an attachment in the valid set of GC.
// The set is read once for all keys; the function returned is for one verb.
func (r *Request) ValidKeys() func(key string) bool {
	valid := make(map[string]bool, len(r.Valid))
	for _, a := range r.Valid {
		valid[a.Key()] = true
	}
	return func(key string) bool { return valid[key] }
}

// Stale tells of a label whether it is that of an attachment of this network that is not
// in the valid set of GC.
func (r *Request) Stale() func(label string) bool {
	valid := r.ValidKeys()
	return func(label string) bool { return LabelOf(label, r.Network) && !valid(LabelKey(label)) }
}

// optional decodes a value that may be absent.
// Null is absent as well, see pick.
func optional(key string, raw json.RawMessage, into any) error {
	if raw == nil {
		return nil
	}
	return Unmarshal(key, raw, into)
}

// Conf returns the configuration as it came. It must not be changed.
func (r *Request) Conf() json.RawMessage { return r.conf }

// Arg returns the value of a key of CNI_ARGS.
// False says that it is not there; it may be there and empty. In verbs that are about
// no attachment there are none.
func (r *Request) Arg(key string) (string, bool) {
	value, ok := r.args[key]
	return value, ok
}

// Encode writes a result as the answer to this request: in the version of the
// configuration, and if that has room for one address of a family, with the
// one of the interface asked for.
func (r *Request) Encode(res *Result) ([]byte, error) {
	if err := res.expressible(r.Net.Version); err != nil {
		return nil, err
	}
	return res.EncodeFor(r.Net.Version, r.IfName)
}

// Clone returns a copy that shares nothing with r that can change.
// The configuration, CNI_ARGS and the members are shared, since nobody changes them.
func (r *Request) Clone() *Request {
	c := *r
	c.Prev = r.Prev.Clone()
	c.Path = slices.Clone(r.Path)
	c.Valid = slices.Clone(r.Valid)
	return &c
}

// CheckIPAM reports an "ipam.type" that is a plugin of this program and gives no
// addresses. It would read the same "ipam.type", and delegate to itself without end.
// What somebody else's plugin gives nobody can tell. The error has code 7.
func (r *Request) CheckIPAM() error {
	known, ok := r.Invoker.(interface{ Addressless(plugin string) bool })
	if !ok || r.Net.IPAM.Type == "" || !known.Addressless(r.Net.IPAM.Type) {
		return nil
	}
	return Errorf(CodeConfig, "\"ipam.type\" %q is no address plugin: host-local, static and dhcp are", r.Net.IPAM.Type)
}

// Delegate runs a verb of the IPAM plugin with the same call and configuration.
// The plugin gets a copy of the request. It is the caller who must follow a
// failed ADD by a DEL.
//
// Errors are the plugin's, with its code; 7 for a type that is no IPAM plugin's name.
// prevResult goes along as it is in r.
func (r *Request) Delegate(ctx context.Context, plugin string, v Verb) (*Result, error) {
	if err := CheckType(plugin); err != nil {
		return nil, err
	}
	if err := r.CheckIPAM(); err != nil {
		return nil, err
	}
	d := r.Clone()
	d.Call.Verb = v
	return r.Invoker.Invoke(ctx, plugin, d)
}

// Derive returns the request of a call with another configuration, for plugins
// that delegate with one of their own making; errors are those of [NewRequest].
// Delegates of it run, and warn, as those of r. prevResult is the configuration's, if it
// has any, and the set of GC is r's.
func (r *Request) Derive(c Call, conf []byte) (*Request, error) {
	d, err := NewRequest(c, conf)
	if err != nil {
		return nil, err
	}
	d.Invoker, d.Warn = r.Invoker, r.Warn
	if c.Verb == GC {
		d.Valid = slices.Clone(r.Valid)
	}
	return d, nil
}
