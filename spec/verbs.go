package spec

import (
	"cmp"
	"context"
	"encoding/json"
	"net/netip"
)

// A Verb is an operation of the specification, as in CNI_COMMAND.
type Verb string

// The verbs. GET stands in the drafts of 0.4.0 alone.
const (
	// ADD and GET answer with a result, VERSION with versions, the others with nothing.
	Add        Verb = "ADD"
	Check      Verb = "CHECK"
	Del        Verb = "DEL"
	Get        Verb = "GET"
	GC         Verb = "GC"
	Status     Verb = "STATUS"
	GetVersion Verb = "VERSION"

	// Restore and Prepare are none of the specification, and other runtimes do not know them: a
	// runtime of this program runs them of the plugins in it, see [Verbs].
	Restore Verb = "RESTORE"
	Prepare Verb = "PREPARE"
)

// attached reports whether the verb is about one attachment, and so needs its
// names.
// CNI_CONTAINERID and CNI_IFNAME must be there, and CNI_NETNS but for DEL.
func (v Verb) attached() bool {
	return v == Add || v == Check || v == Del || v == Get || v == Restore
}

// since returns the oldest version that has the verb.
// VERSION came with 0.2.0, but is answered before a version is known.
func (v Verb) since() Version {
	switch v {
	case Check, Get:
		return V040
	case GC, Status:
		return V110
	}
	return V010
}

// Verbs are what a plugin implements. A nil Status is healthy, a nil GC has
// nothing to do, a nil Get answers with prevResult or code 3; a nil Add passes
// prevResult on, a nil Check or Del succeeds.
type Verbs struct {
	// Since is the oldest version the plugin serves; zero: all versions.
	Since Version

	// Args: the plugin, or one that it delegates to, reads CNI_ARGS in ADD, CHECK or GET. A
	// malformed one is then an error, else a warning.
	Args bool

	// ArgIP says that ADD gives the address of IP in CNI_ARGS.
	ArgIP bool

	// OpensNetNS: ADD, CHECK, DEL and GET open CNI_NETNS, and refuse the host's own. For other plugins
	// the serve loop checks it.
	OpensNetNS bool

	// IPAM: the plugin gives addresses, so "ipam.type" may name it.
	IPAM bool

	// Interface says that ADD makes the interface CNI_IFNAME, MAC that it reads [Request.MAC].
	Interface, MAC bool

	// Delegates: DEL runs another interface plugin, and forgets it once that has succeeded.
	Delegates bool

	// Chained says that ADD needs the prevResult of a plugin before it in the list.
	Chained bool

	// Replaces says that ADD may be run again for an attachment that has one, with other arguments:
	// what it makes replaces what the first one has made.
	Replaces bool

	// Validate checks the configuration of an ADD, and opens, sends and starts nothing. Its
	// errors are ADD's. The verb STATUS says that the runtime may add what is missing by a
	// capability. Nil: every configuration is valid.
	Validate func(*Request) (Resources, error)

	// Records returns the directory with the records by which GC finds what is to be deleted, one
	// JSON object for each attachment, which has its names. Nil: there are none.
	Records func(*Request) string

	// Leases returns the directory with the leases of an IPAM plugin, in which each network has one of
	// its own, with a file for each address, as the reference's host-local has them. An invalid
	// configuration has one as well. Nil: there is none.
	Leases func(*Request) string

	// Holds returns what an ADD of this configuration and prevResult makes for the attachment, as its
	// plugin has it in words and as data. It enters no namespace, and asks the kernel for nothing that
	// is not asked once for all attachments: see package once. Nil: no more than the result has.
	Holds func(context.Context, *Request) ([]Holding, error)

	// Publishes says that Holds may have ports that the capability portMappings does not have: a tool
	// that lists ports has to ask for them.
	Publishes bool

	// Veth says that ADD makes a veth pair: an attachment has a link on the host as long as its
	// network namespace exists.
	Veth bool

	// Confine changes the configuration of a plugin so that ADD changes nothing but network
	// namespaces and what is stored below the state directory, and returns what is left out by
	// that, for people; empty: nothing. Nil: it changes nothing else anyway.
	Confine func(conf map[string]json.RawMessage) (leftOut string)

	// The request is checked before, see [NewRequest] and [Verbs.CheckRequest]. The functions may change
	// it, and print warnings with its Warn.
	Add, Get               func(context.Context, *Request) (*Result, error)
	Check, Del, Status, GC func(context.Context, *Request) error

	// Restore makes what ADD has made for prevResult, as far as it is not there any more: links of
	// the host, their flags and addresses, routes, settings, rules and leases, and in the container
	// that the interface is up, with its addresses and routes. It makes no interface in the
	// container, gives no other address, and may be run again at any time. What it has done it
	// reports with [Request.Did]; an error with [ErrNeedsAdd] in it is about what it cannot set. A
	// plugin without anything of this has none.
	Restore func(context.Context, *Request) error

	// Prepare makes what the attachments of a network share on the host, before the first one,
	// as a bridge. That of an IPAM plugin frees what earlier boots have left.
	Prepare func(context.Context, *Request) error

	// RemoveNetwork deletes what ADD has made for the network and no attachment owns, as a
	// bridge; the request is that of a GC. It is not a verb of the specification. The error has
	// code 100 if something else uses the network. Nil: there is no such thing.
	RemoveNetwork func(context.Context, *Request) error
}

// Resources are what a configuration uses: the link on the host, the addresses of its network, and
// what lets its packets pass.
type Resources struct {
	Link    string // of the host, through which it reaches the containers; empty: one for each container
	Parent  string // of the host, that the containers' links are made on; empty: none is configured
	Routed  bool   // the host routes to the addresses
	Ranges  []Range
	Accepts bool // what is forwarded for the addresses is accepted in chain CNI-FORWARD
	Zoned   bool // the addresses are in a zone of firewalld
}

// Add adds what another plugin of a list uses. The first one's links stay.
func (r *Resources) Add(o Resources) {
	r.Link, r.Parent = cmp.Or(r.Link, o.Link), cmp.Or(r.Parent, o.Parent)
	r.Routed, r.Accepts, r.Zoned = r.Routed || o.Routed, r.Accepts || o.Accepts, r.Zoned || o.Zoned
	r.Ranges = append(r.Ranges, o.Ranges...)
}

// A Range is the addresses of a subnet from First to Last, which are given to containers.
type Range struct {
	Subnet      netip.Prefix
	First, Last netip.Addr
	Gateway     netip.Addr // zero: none is configured
	Set         int        // ranges of one number are a choice: an attachment gets an address of one of them
}

// An Invoker finds plugins by name, and runs them.
type Invoker interface {
	// Invoke runs the request's verb; the result is nil for verbs that have none. The
	// request is the callee's to change, see [Request.Delegate].
	Invoke(ctx context.Context, plugin string, r *Request) (*Result, error)

	// Find returns the verbs of a plugin of this program; nil for an external one, of
	// which no more is known. The error is that of Invoke for a plugin that is missing.
	Find(plugin string) (*Verbs, error)
}

// Do runs the request's verb, as the version allows it. A verb that is not one
// has code 4, a version that has not this verb or that the plugin does not
// serve has code 1, and a request without what the verb needs has code 7.
//
// DEL is run in any version. What it goes on without is warned of.
//
// A result is of no version; the caller encodes it ([Request.Encode]). The codes 50 and 51
// are STATUS's alone; in other verbs what has them gets 104.
func (v Verbs) Do(ctx context.Context, r *Request) (*Result, error) {
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
func (v Verbs) run(ctx context.Context, r *Request) (*Result, error) {
	switch r.Call.Verb {
	case Add:
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
	if fn := v.withoutResult(r.Call.Verb); fn != nil {
		return nil, fn(ctx, r)
	}
	return nil, nil
}

// withoutResult returns the function of a verb without a result; nil: none. Do has let no
// other verb pass than these six.
func (v Verbs) withoutResult(verb Verb) func(context.Context, *Request) error {
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

// CheckRequest reports why [Verbs.Do] would refuse the request without running any
// code of the plugin; nil: it would not.
// Serve loops ask it through Do; a runtime may ask before it starts anything.
func (v Verbs) CheckRequest(r *Request) error {
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
	// Of the IPAM plugin too, before anything is made for it.
	case r.badArgs != nil && (v.Args || r.Net.IPAM.Type != ""):
		return r.badArgs
	case verb == Check && r.Prev == nil && v.Check != nil, verb == Restore && r.Prev == nil && v.Restore != nil:
		return Errorf(CodeConfig, "required prevResult missing").WithDetails(`"prevResult" must be the result of the ADD`)
	case verb == GC && r.Valid == nil:
		return Errorf(CodeConfig, "GC needs the list %q; nothing was removed", keyValid)
	}
	return nil
}

// unknownVerb is the error of what is not a verb of the specification.
func unknownVerb(verb Verb) *Error {
	return Errorf(CodeEnv, "unknown CNI_COMMAND: %s", verb).WithDetails("it must be ADD, DEL, CHECK, GET, GC, STATUS or VERSION")
}

// Validate checks the configuration of a plugin of this program, see [Verbs.Validate]: of the
// request's own, or of one that it delegates to. An external one takes any.
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

// ValidateBy is [Verbs.Validate] for a plugin that uses no [Resources], by the function that reads
// its configuration for ADD.
func ValidateBy[C any](read func(*Request) (C, error)) func(*Request) (Resources, error) {
	return func(r *Request) (Resources, error) {
		_, err := read(r)
		return Resources{}, err
	}
}

// checkVerbVersion reports whether the version of the configuration has a verb that not
// all versions have. The texts and their order are the reference's.
func (v Verbs) checkVerbVersion(verb Verb, n NetConf) error {
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

// checkVersion reports whether the plugin serves the version of a configuration: the
// text must be exactly that of a supported version, so "1.0" is refused. The error has code 1, and
// the versions in its details.
func (v Verbs) checkVersion(n NetConf) error {
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

// exact reports whether cniVersion is written as one of the versions from
// since on is; without one it is 0.1.0.
func (n NetConf) exact(since Version) bool {
	text := n.CNIVersion
	if text == "" {
		text = V010.String()
	}
	return isSupported(text, since)
}
