package spec

import (
	"cmp"
	"context"
	"encoding/json"
	"net/netip"
)

// A Verb is an operation of the specification, as in CNI_COMMAND.
type Verb string

// The verbs. Only drafts of 0.4.0 have GET.
const (
	// ADD and GET return a result, VERSION returns versions, the others return nothing.
	Add        Verb = "ADD"
	Check      Verb = "CHECK"
	Del        Verb = "DEL"
	Get        Verb = "GET"
	GC         Verb = "GC"
	Status     Verb = "STATUS"
	GetVersion Verb = "VERSION"

	// Restore and Prepare are not verbs of the specification, and other runtimes do not know them:
	// a runtime of this program runs them for the plugins in it, see [Plugin].
	Restore Verb = "RESTORE"
	Prepare Verb = "PREPARE"
)

// attached reports whether the verb is about one attachment: it requires CNI_CONTAINERID and
// CNI_IFNAME, and except for DEL also CNI_NETNS.
func (v Verb) attached() bool {
	return v == Add || v == Check || v == Del || v == Get || v == Restore
}

// since returns the oldest version that has the verb. 0.2.0 introduced VERSION, but VERSION is
// answered before a version is known.
func (v Verb) since() Version {
	switch v {
	case Check, Get:
		return V040
	case GC, Status:
		return V110
	}
	return V010
}

// Facts are what the serve loop, runtimes, flows and tools know of a plugin. No name of a plugin
// has a meaning beside its facts.
type Facts struct {
	// Since is the oldest version that the plugin supports; zero: all versions.
	Since Version

	Interface bool // ADD makes the interface CNI_IFNAME
	Chained   bool // ADD needs the prevResult of an earlier plugin in the list
	IPAM      bool // it is an IPAM plugin, so "ipam.type" may name it

	// Args says that the plugin, or its delegate, reads CNI_ARGS in ADD, CHECK or GET. Malformed
	// CNI_ARGS are then an error, else a warning.
	Args  bool
	ArgIP bool // ADD assigns the address IP of CNI_ARGS
	MAC   bool // it reads [Request.MAC]

	// OpensNetNS says that ADD, CHECK, DEL and GET open CNI_NETNS, and reject the host's own. For
	// other plugins the serve loop checks it.
	OpensNetNS bool
	// AnyNetNS says that an IPAM plugin uses files alone, and never enters the namespace: its
	// CNI_NETNS may be any path, such as /dev/null, and what an ADD that was killed has leased, DEL
	// releases.
	AnyNetNS bool

	// OverLink says that an IPAM plugin sends its release over the link. Its DEL runs before the
	// link is deleted, so the address may be leased again some milliseconds earlier than that, and
	// its ADD may reduce the MTU of the link.
	OverLink bool

	// Replaces says that ADD may be repeated for an attachment with other arguments: its result
	// replaces that of the first ADD.
	Replaces bool

	// Publishes says that Holds may return ports that the capability portMappings does not have: a
	// tool that lists ports must call it.
	Publishes bool
}

// A Plugin is a plugin's facts and the functions that it implements. A nil Status reports ready, a
// nil GC does nothing, a nil Get returns prevResult or code 3; a nil Add passes prevResult on, a nil
// Check or Del succeeds.
type Plugin struct {
	Facts

	// Validate checks the configuration of an ADD without opening, sending or starting anything.
	// Its errors are ADD's. With the verb STATUS, the runtime may still supply a missing value by a
	// capability. Nil: every configuration is valid.
	Validate func(*Request) (Resources, error)

	// Records returns the directory of the records in which GC finds stale attachments: one JSON
	// object with its names for each attachment. Nil: there are none.
	Records func(*Request) string

	// Leases returns the data directory of an IPAM plugin, with a directory for each network and in
	// that a file for each address, as in the reference's host-local. An invalid configuration has
	// one as well. Nil: there is none.
	Leases func(*Request) string

	// Holds describes what an ADD of this configuration and prevResult makes for the attachment, as
	// text and as data. It enters no namespace. Its requests to the kernel are made once for all
	// attachments: see session.Ask. Nil: nothing besides the result.
	Holds func(context.Context, *Request) ([]Holding, error)

	// Confine changes the configuration of a plugin so that ADD changes only network namespaces and
	// files below the state directory; it returns a text about what ADD omits then; empty: nothing.
	// Nil: ADD changes nothing else.
	Confine func(conf map[string]json.RawMessage) (leftOut string)

	// The request is already checked, see [NewRequest] and [Plugin.CheckRequest]. The functions may
	// change it, and print warnings with its Warn.
	Add, Get               func(context.Context, *Request) (*Result, error)
	Check, Del, Status, GC func(context.Context, *Request) error

	// Restore makes the missing parts of what ADD has made for prevResult: links of the host, their
	// flags and addresses, routes, settings, rules and leases. In the container it sets the
	// interface up, with its addresses and routes. It does not make an interface in the container
	// or assign another address, and may be repeated at any time. It reports changes with
	// [Request.Did]; an error that matches [ErrNeedsAdd] is about state that it cannot set. A
	// plugin without such state has no Restore.
	Restore func(context.Context, *Request) error

	// Prepare makes what the attachments of a network share on the host, such as a bridge, before
	// the first ADD. Prepare of an IPAM plugin frees the leases of earlier boots.
	Prepare func(context.Context, *Request) error

	// RemoveNetwork deletes what ADD has made for the network and no attachment owns, such as a
	// bridge; the request is that of a GC. It is not a verb of the specification. The error has
	// code 100 if something else uses the network. Nil: there is nothing to delete.
	RemoveNetwork func(context.Context, *Request) error
}

// Resources are what a valid configuration uses: the link on the host, the addresses of its network,
// and whether its packets are routed and accepted.
type Resources struct {
	Link     string // of the host, through which it reaches the containers; empty: one for each container
	Parent   string // of the host, the parent of the containers' links; empty: none is configured
	Stacked  bool   // a container's link has a parent on the host: Parent, or if that is empty the link of the default route
	Routed   bool   // the host routes to the addresses
	Ranges   []Range
	Accepts  bool // chain CNI-FORWARD accepts packets forwarded for the addresses
	Zoned    bool // the addresses are in a zone of firewalld
	Veth     bool // an attachment has one end of a veth pair on the host, as long as its namespace exists
	Isolated bool // the host-side links are isolated ports of a bridge
	Shared   bool // other hosts are on the segment of a container's link: its addresses are checked for duplicates
	Down     bool // a container's link stays down, without addresses
	NoNetdev bool // the device has no netdev: there is no link, and none is configured or checked
}

// Add adds the resources of another plugin of a list. The links of the first plugin stay.
func (r *Resources) Add(o Resources) {
	r.Link, r.Parent = cmp.Or(r.Link, o.Link), cmp.Or(r.Parent, o.Parent)
	r.Routed, r.Accepts, r.Zoned = r.Routed || o.Routed, r.Accepts || o.Accepts, r.Zoned || o.Zoned
	r.Veth, r.Isolated = r.Veth || o.Veth, r.Isolated || o.Isolated
	r.Ranges = append(r.Ranges, o.Ranges...)
}

// A Range is the addresses of a subnet from First to Last that containers get.
type Range struct {
	Subnet      netip.Prefix
	First, Last netip.Addr
	Gateway     netip.Addr // zero: none is configured
	Set         int        // an attachment gets one address from the ranges with the same number
}

// An Invoker finds plugins by name, and runs them.
type Invoker interface {
	// Invoke runs the request's verb; the result is nil for verbs without one. The callee may
	// change the request, see [Request.Delegate].
	Invoke(ctx context.Context, plugin string, r *Request) (*Result, error)

	// Find returns the verbs of a plugin of this program; nil for an external one. The error for a
	// missing plugin is that of Invoke.
	Find(plugin string) (*Plugin, error)

	// Known returns the plugin of this program with that name, nil if there is none, whichever
	// program Find finds: the reference's plugins have the facts of those with their names.
	Known(plugin string) *Plugin
}

// Do runs the request's verb. An unknown verb has code 4. A version that lacks the verb, or that
// the plugin does not support, has code 1. A request that lacks what the verb needs has code 7.
//
// DEL runs in any version, with warnings about what it ignores.
//
// The result is independent of the version; the caller encodes it ([Request.Encode]). Only STATUS
// returns the codes 50 and 51; in other verbs they become 104.
func (v Plugin) Do(ctx context.Context, r *Request) (*Result, error) {
	if err := v.CheckRequest(r); err != nil {
		return nil, err
	}
	r.note(r.badArgs)
	for _, err := range r.ignored {
		r.Warn("ignored: %v", err)
	}
	r.ignored, r.badArgs = nil, nil
	res, err := v.run(ctx, r)
	if r.Call.Verb != Status {
		err = outsideStatus(err)
	}
	return res, err
}

// run is Do after its checks.
func (v Plugin) run(ctx context.Context, r *Request) (*Result, error) {
	switch r.Call.Verb {
	case Add:
		if r.Prev != nil {
			for _, odd := range r.Prev.TakeOdd() {
				r.Warn("prevResult: %s", odd)
			}
		}
		if v.Add != nil {
			return v.Add(ctx, r)
		}
		if r.Prev == nil {
			return &Result{}, nil
		}
		return r.Prev, nil
	case Get:
		if v.Get != nil {
			return v.Get(ctx, r)
		}
		if r.Prev == nil {
			return nil, Errorf(CodeUnknown, "unknown container %q", r.ContainerID)
		}
		return r.Prev, nil
	case Del:
		if err := v.checkVersion(r.Net); err != nil {
			r.Warn("ignored for DEL: %v", err)
		}
	}
	fn := v.withoutResult(r.Call.Verb)
	if fn == nil {
		return nil, nil
	}
	err := fn(ctx, r)
	// No plugin's result is empty. One that looks for what prevResult names has found all of that.
	if err == nil && r.Call.Verb == Check && len(r.Prev.Interfaces)+len(r.Prev.IPs) == 0 {
		err = Errorf(CodeCheck, "prevResult has neither an interface nor an address").WithDetails(`"prevResult" must be the result of the ADD`)
	}
	return nil, err
}

// withoutResult returns the function of a verb without a result; nil: none. Do passes only these
// six other verbs.
func (v Plugin) withoutResult(verb Verb) func(context.Context, *Request) error {
	switch verb {
	case Check:
		return v.Check
	case Del:
		return v.Del
	case Status:
		return v.Status
	case Restore:
		return v.Restore
	case Prepare:
		return v.Prepare
	}
	return v.GC
}

// CheckRequest returns the error with which [Plugin.Do] would reject the request without running any
// code of the plugin; nil: none. Serve loops call it through Do; a runtime may call it before it
// starts anything.
func (v Plugin) CheckRequest(r *Request) error {
	verb := r.Call.Verb
	switch verb {
	case Del:
		return nil
	case Add, Check, Get, GC, Status, Restore, Prepare:
	case "":
		return Errorf(CodeEnv, "required env variables [CNI_COMMAND] missing")
	default:
		return unknownVerb(verb)
	}
	// ADD exists in all versions.
	err := v.checkVersion(r.Net)
	if verb != Add && verb != Restore && verb != Prepare {
		err = v.checkVerbVersion(verb, r.Net)
	}
	switch {
	case err != nil:
		return err
	// Also for the IPAM plugin, before anything is made for it.
	case r.badArgs != nil && (v.Args || r.Net.IPAM.Type != ""):
		return r.badArgs
	case verb == Check && r.Prev == nil && v.Check != nil, verb == Restore && r.Prev == nil && v.Restore != nil:
		return Errorf(CodeConfig, "required prevResult missing").WithDetails(`"prevResult" must be the result of the ADD`)
	case verb == GC && r.Valid == nil:
		return Errorf(CodeConfig, "GC needs the list %q; nothing was removed", keyValid)
	}
	return nil
}

// unknownVerb returns the error for an unknown verb.
func unknownVerb(verb Verb) *Error {
	return Errorf(CodeEnv, "unknown CNI_COMMAND: %s", verb).WithDetails("it must be ADD, DEL, CHECK, GET, GC, STATUS or VERSION")
}

// Validate checks the configuration of a plugin of this program, see [Plugin.Validate]: the
// request's own, or that of a delegate. It accepts any configuration of an external plugin.
func (r *Request) Validate(plugin string) (Resources, error) {
	verbs, err := r.Invoker.Find(plugin)
	if err == nil && verbs != nil {
		err = verbs.checkVersion(r.Net)
	}
	if err != nil || verbs == nil || verbs.Validate == nil {
		return Resources{}, err
	}
	return verbs.Validate(r)
}

// ValidateBy returns a [Plugin.Validate] for a plugin without [Resources], from the function that
// reads its configuration for ADD.
func ValidateBy[C any](read func(*Request) (C, error)) func(*Request) (Resources, error) {
	return func(r *Request) (Resources, error) {
		_, err := read(r)
		return Resources{}, err
	}
}

// checkVerbVersion checks that the version of the configuration has the verb. The texts and their
// order are the reference's.
func (v Plugin) checkVerbVersion(verb Verb, n NetConf) error {
	config, err := ParseVersion(n.CNIVersion)
	switch {
	case err != nil:
		return Errorf(CodeDecode, "error decoding version of network config: %w", err)
	case !config.AtLeast(verb.since()):
		return Errorf(CodeVersion, "config version does not allow %s", verb)
	case !Newest.AtLeast(config):
		return Errorf(CodeVersion, "plugin version does not allow %s", verb)
	}
	return v.checkVersion(n)
}

// checkVersion checks that the plugin supports the version of a configuration: the text must be
// exactly a supported version, so "1.0" is rejected. The error has code 1, and the versions in its
// details.
func (v Plugin) checkVersion(n NetConf) error {
	if n.exact(v.Since) {
		return nil
	}
	var served []string
	for _, s := range Versions(v.Since) {
		served = append(served, s.String())
	}
	text := n.CNIVersion
	if text == "" {
		text = V010.String()
	}
	return Errorf(CodeVersion, "incompatible CNI versions").WithDetails("config is %q, plugin supports %q", text, served).AtKey("cniVersion")
}

// exact reports whether cniVersion is written exactly as one of the versions from since on; a
// missing one is 0.1.0.
func (n NetConf) exact(since Version) bool {
	text := n.CNIVersion
	if text == "" {
		text = V010.String()
	}
	return isSupported(text, since)
}
