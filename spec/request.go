package spec

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/session"
)

// MaxConf is the size limit of a configuration in bytes. Real configurations have a few kB; the
// limit guards against an endless stdin.
const MaxConf = 8 << 20

// The keys of the valid set in a GC configuration: today's text and runtimes use the first, the
// tagged 1.1.0 the second.
const (
	keyValid    = "cni.dev/valid-attachments"
	keyAttached = "cni.dev/attachments"
)

// A Request is one verb for one plugin. Plugins access nothing else of their process.
//
// [NewRequest] makes one for each call; a delegate or a member of a chain gets a copy, see
// [Request.Clone].
type Request struct {
	Attachment
	Call Call     // Verb, NetNS and the other parameters of the runtime, unchanged
	Path []string // the directories of CNI_PATH; empty: only plugins of this binary
	Net  NetConf  // keys common to all plugins
	Prev *Result  // prevResult; nil if there is none

	// Valid has the valid attachments of GC. It is nil if the configuration does not have the set,
	// and empty if nothing is attached.
	Valid []Attachment

	Invoker Invoker // runs delegates; never nil

	// Warn prints one line on stderr; never nil.
	Warn func(format string, args ...any)

	// Did reports, in a few words, what RESTORE has made or set; never nil. The reports of other
	// verbs are discarded.
	Did func(format string, args ...any)

	// Input of Decode, Arg and Wire. The bytes are never changed.
	args    Args            // nil also if it is malformed
	badArgs error           // error of a malformed CNI_ARGS
	ignored []error         // errors that DEL ignores
	conf    json.RawMessage // the plugin's own configuration, unchanged
	top     Common          // its common keys
}

// Common has the keys that all plugins have; each is decoded by itself.
type Common struct {
	CNIVersion    json.RawMessage `json:"cniVersion"`
	Name          json.RawMessage `json:"name"`
	Type          json.RawMessage `json:"type"`
	IPAM          json.RawMessage `json:"ipam"`
	DNS           json.RawMessage `json:"dns"`
	Args          json.RawMessage `json:"args"`
	RuntimeConfig json.RawMessage `json:"runtimeConfig"`
	MAC           json.RawMessage `json:"mac"`
	PrevResult    json.RawMessage `json:"prevResult"`
	Valid         json.RawMessage `json:"cni.dev/valid-attachments"`
	Attached      json.RawMessage `json:"cni.dev/attachments"`
}

// NetConf has the keys common to all plugins. All except the version are empty if the configuration
// does not have them.
type NetConf struct {
	Version    Version // of cniVersion; 0.1.0 if that is missing or empty, zero if it is invalid
	CNIVersion string  // cniVersion as written
	Name       string
	Type       string
	DNS        DNS // the capability of that name, else dns

	IPAM struct {
		Type string // empty if there is no IPAM
	}
}

// NewRequest parses a plugin's configuration. Errors have code 6 (not JSON) or 7 (invalid), or 3 or
// 4 for the call's names. The caller sets Invoker and Warn; until then Warn is silent.
//
// DEL must succeed with any configuration that names the network: any other invalid member of the
// JSON object counts as absent, and [Plugin.Do] warns about it.
//
// [Plugin.Do] checks that the plugin supports the version; prevResult and the valid set of GC are
// parsed only in a known version. With an error the request is nil, or only its version is valid.
func NewRequest(c Call, conf []byte) (*Request, error) {
	if len(conf) > MaxConf {
		return nil, Errorf(CodeDecode, "network config of more than %d bytes", MaxConf)
	}
	if c.Session == nil {
		c.Session = session.New().For(0, "", nil)
	}
	r := &Request{Call: c, Path: directories(c.Path), conf: conf, Warn: func(string, ...any) {}, Did: func(string, ...any) {}}
	if err := unmarshalObject(conf, &r.top); err != nil {
		e := Errorf(CodeDecode, "error unmarshall network config: %w", err)
		err = NotJSON(conf, err)
		if line, column, found := Place(conf, "", err); len(conf) == 0 {
			e = e.WithDetails("the configuration on standard input is empty")
		} else if found {
			e = e.WithDetails("at line %d, column %d: %v", line, column, err)
		}
		return nil, e
	}
	for _, read := range []struct {
		fn       func() error
		required bool // also in DEL
	}{
		{r.readVersion, false}, // first: errors about other members are formatted in that version
		{r.readName, true}, {r.readType, false}, {r.readIPAM, false}, {r.readDNS, false},
		{r.readPrev, false}, {r.readValid, false},
	} {
		err := read.fn()
		if err != nil && (c.Verb != Del || read.required) {
			return r, err
		}
		r.note(err)
	}
	return r, r.readCall()
}

// note records errors that DEL ignores.
func (r *Request) note(err error) {
	if err != nil {
		r.ignored = append(r.ignored, err)
	}
}

// readVersion reads the version. An invalid one stays zero: Do reports it with the code of its
// verb.
func (r *Request) readVersion() error {
	if r.Call.Verb == Del {
		r.Net.Version = V010 // a configuration without a version
	}
	if err := optional("cniVersion", r.top.CNIVersion, &r.Net.CNIVersion); err != nil {
		return Errorf(CodeDecode, "error unmarshall network config: %w", err)
	}
	r.Net.Version, _ = ParseVersion(r.Net.CNIVersion)
	return nil
}

// readName reads the name of the network. Attachments that an earlier release made to a network
// with a longer name can still be released.
func (r *Request) readName() error {
	name := ""
	if err := optional("name", r.top.Name, &name); err != nil {
		return Errorf(CodeConfig, "invalid network name: %w", err)
	}
	check := CheckNewNetworkName
	if r.Call.Verb == Del || r.Call.Verb == GC {
		check = CheckNetworkName
	}
	if err := check(name); err != nil {
		return err
	}
	r.Net.Name, r.Network = name, name
	return nil
}

// readCall checks the names of the call and parses CNI_ARGS, if the verb is about an attachment. In
// other verbs the runtime may have passed any value, so the names and CNI_ARGS stay empty.
func (r *Request) readCall() (err error) {
	if !r.Call.Verb.attached() {
		return nil
	}
	if err := r.Call.CheckNames(); err != nil {
		return err
	}
	r.ContainerID, r.IfName = r.Call.ContainerID, r.Call.IfName
	if r.args, err = ParseArgs(r.Call.Args); err != nil {
		r.badArgs = about(err, "CNI_ARGS", r.Call.Args)
	}
	return nil
}

// readType reads the plugin's type. It checks names of plugins, since they become names of executed
// files (CVE-2021-20206).
func (r *Request) readType() error {
	return readType("type", r.top.Type, &r.Net.Type)
}

// readIPAM reads ipam.type, and no other key of ipam.
func (r *Request) readIPAM() error {
	var ipam struct {
		Type json.RawMessage `json:"type"`
	}
	if err := optional("ipam", r.top.IPAM, &ipam); err != nil {
		return Errorf(CodeConfig, "%w", err)
	}
	return readType("ipam.type", ipam.Type, &r.Net.IPAM.Type)
}

// readType reads a plugin's name, which may be absent or empty.
func readType(key string, raw json.RawMessage, into *string) error {
	name := ""
	if err := optional(key, raw, &name); err != nil {
		return Errorf(CodeConfig, "%w", err)
	}
	if name == "" {
		return nil
	}
	if err := CheckType(name); err != nil {
		return AtKey(key, err)
	}
	*into = name
	return nil
}

// readPrev parses prevResult in its own version, which may be older than the configuration's. If
// the configuration's version is unknown, it is not parsed: the error about the version comes
// first.
func (r *Request) readPrev() error {
	if isNull(r.top.PrevResult) || !r.Net.exact(Version{}) {
		return nil
	}
	if err := unmarshalObject(r.top.PrevResult, new(struct{})); err != nil {
		return Errorf(CodeConfig, "prevResult: %w", err).AtKey("prevResult")
	}
	res, err := readResult(r.top.PrevResult, r.Net.Version)
	if err != nil {
		key := "prevResult"
		if inner, keyed := KeyOf(err); keyed != nil {
			key += "." + inner
		}
		return Errorf(CodeConfig, "prevResult: %w", err).AtKey(key)
	}
	r.Prev = res
	return nil
}

// CheckIndexes reports an address of prevResult whose index is outside the interfaces; the code is
// 7. It serves ADD and CHECK of plugins that need an address's interface.
func (r *Request) CheckIndexes() error {
	if r.Prev == nil {
		return nil
	}
	if err := r.Prev.checkIndexes(); err != nil {
		return Errorf(CodeConfig, "prevResult: %w", err)
	}
	return nil
}

// readValid reads the valid set of GC. A key with null is the empty set, as CRI-O sends it. An
// absent key leaves Valid nil: it must not count as the empty set, with which GC deletes
// everything.
func (r *Request) readValid() error {
	if r.Call.Verb != GC || !r.Net.exact(V110) {
		return nil
	}
	switch {
	case r.top.Valid != nil:
		return r.parseValid(keyValid, r.top.Valid)
	case r.top.Attached != nil:
		return r.parseValid(keyAttached, r.top.Attached)
	}
	return nil
}

// parseValid parses the list of one of the keys of the valid set. One bad entry makes the whole
// list invalid, since GC with a part of the set would delete valid attachments.
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

// ValidKeys returns a function that reports whether a key is that of an attachment in the valid set
// of GC. The set is read once for all keys; use the function for one verb only.
func (r *Request) ValidKeys() func(key string) bool {
	valid := make(map[string]bool, len(r.Valid))
	for _, a := range r.Valid {
		valid[a.Key()] = true
	}
	return func(key string) bool { return valid[key] }
}

// Stale returns a function that reports whether a label is that of an attachment of this network
// outside the valid set of GC.
func (r *Request) Stale() func(label string) bool {
	valid := r.ValidKeys()
	return func(label string) bool { return LabelOf(label, r.Network) && !valid(LabelKey(label)) }
}

// isNull reports whether a key has no value, or null.
func isNull(raw json.RawMessage) bool { return raw == nil || string(raw) == "null" }

// optional decodes a value that may be absent.
func optional(key string, raw json.RawMessage, into any) error {
	if isNull(raw) {
		return nil
	}
	return Unmarshal(key, raw, into)
}

// Conf returns the configuration unchanged. The caller must not change it.
func (r *Request) Conf() json.RawMessage { return r.conf }

// Arg returns the value of a key of CNI_ARGS, which may be empty; false: it is missing. Verbs that
// are not about an attachment have no CNI_ARGS.
func (r *Request) Arg(key string) (string, bool) {
	value, ok := r.args[key]
	return value, ok
}

// Encode encodes a result as the answer to this request, in the version of the configuration. If
// the version has one address of each family, Encode writes that of the requested interface. Below
// 0.3.0 a result without an address is an error of code 7, as in the reference.
func (r *Request) Encode(res *Result) ([]byte, error) {
	if r.Net.Version.NeedsAddress() && len(res.IPs) == 0 {
		return nil, Errorf(CodeConfig, "cannot convert: no valid IP addresses")
	}
	return res.EncodeFor(r.Net.Version, r.IfName)
}

// Clone returns a copy that shares no mutable data with r. It shares the configuration, CNI_ARGS
// and the members, which are never changed.
func (r *Request) Clone() *Request {
	c := *r
	c.Prev = r.Prev.Clone()
	c.Path = slices.Clone(r.Path)
	c.Valid = slices.Clone(r.Valid)
	return &c
}

// CheckIPAM reports an "ipam.type" that is a plugin of this program but not an IPAM plugin: it
// would read the same "ipam.type" and delegate to itself endlessly. External plugins are not
// checked. The error has code 7.
func (r *Request) CheckIPAM() error {
	if r.Net.IPAM.Type == "" {
		return nil
	}
	verbs, err := r.Invoker.Find(r.Net.IPAM.Type)
	if err != nil {
		return nil // a missing one is an error when it is run
	}
	return r.checkIPAM(verbs)
}

// checkIPAM is CheckIPAM for the verbs of a plugin.
func (r *Request) checkIPAM(verbs *Plugin) error {
	if verbs == nil || verbs.IPAM {
		return nil
	}
	return Errorf(CodeConfig, "\"ipam.type\" %q is not an address plugin: `cnibox` lists these", r.Net.IPAM.Type).AtKey("ipam.type")
}

// Delegate runs a verb of the IPAM plugin with the same call and configuration, and prevResult from
// r. The plugin gets a copy of the request. The caller must follow a failed ADD by a DEL if
// [Request.NeedsDel] says so.
//
// Errors are the plugin's, with its code; 7 for an invalid name of an IPAM plugin. The error for a
// missing plugin is about the key "ipam.type".
func (r *Request) Delegate(ctx context.Context, plugin string, v Verb) (*Result, error) {
	var verbs *Plugin
	err := CheckType(plugin)
	if err == nil {
		verbs, err = r.Invoker.Find(plugin)
	}
	if err != nil {
		return nil, AtKey("ipam.type", err)
	}
	if err := r.checkIPAM(verbs); err != nil {
		return nil, err
	}
	d := r.Clone()
	d.Call.Verb = v
	return r.Invoker.Invoke(ctx, plugin, d)
}

// NeedsDel reports whether a failed ADD of a plugin must be followed by its DEL. A plugin of this
// program that answers has undone its changes, and a DEL could release what an earlier ADD of the
// attachment made. An external plugin may leave the undo to DEL, as the specification says.
func (r *Request) NeedsDel(plugin string, err error) bool {
	if errors.Is(err, ErrNoAnswer) {
		return true
	}
	verbs, missing := r.Invoker.Find(plugin)
	return missing == nil && verbs == nil && !strings.Contains(err.Error(), duplicate)
}

// Derive returns the request of a call with another configuration, for plugins that delegate with a
// generated configuration; errors are those of [NewRequest]. Its delegates run and warn like those
// of r. It has the configuration's prevResult, if any, and the valid set of r. It requires a
// plugin's type and a network, also in DEL.
func (r *Request) Derive(c Call, conf []byte) (*Request, error) {
	d, err := NewRequest(c, conf)
	if err != nil {
		return nil, err
	}
	if len(d.ignored) > 0 && d.Net.Type == "" {
		return nil, d.ignored[0]
	}
	d.Invoker, d.Warn, d.Did = r.Invoker, r.Warn, r.Did
	if c.Verb == GC {
		d.Valid = slices.Clone(r.Valid)
	}
	return d, nil
}
