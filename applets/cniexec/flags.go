package cniexec

import (
	"cmp"
	"errors"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/cnibox/cnibox/chain"
)

// flags are those that all verbs have.
//
// Zero values are flags that were not given, except for those that the environment or a default
// fills in.
type flags struct {
	confDir            string
	cacheDir, stateDir string        // empty: see [state.CacheDir]
	output             string        // empty: text
	path               string        // CNI_PATH; empty: only built-in plugins
	timeout            time.Duration // of one plugin; 0: the default
	help, version      bool
}

// link has the flags that select an attachment of a namespace.
type link struct{ ifName, containerID string } // empty ID: derived from the namespace

func (l *link) declare(f *flagSet, ifName, containerID string) {
	l.ifName = cmp.Or(f.getenv("CNI_IFNAME"), "eth0")
	f.name(&l.ifName, "ifname", "i", ifName)
	l.containerID = f.getenv("CNI_CONTAINERID")
	f.name(&l.containerID, "container-id", "", containerID)
}

// setTarget completes a target.
func (l *link) setTarget(t *target) {
	t.ContainerID, t.IfName = l.containerID, l.ifName
	if t.ContainerID == "" {
		t.ContainerID = chain.DerivedID(t.NetNS)
	}
}

// selects reports whether a flag of the command line selects an attachment.
func (o *options) selects() bool { return o.set.Changed("ifname") || o.set.Changed("container-id") }

// needs returns an error if the flags do not select an attachment.
func (l *link) needs(t target) error {
	if t.NetNS == "" && l.containerID == "" {
		return errors.New("NETNS is missing; without it --container-id has to name the attachment")
	}
	return nil
}

// commonKey is the annotation of a flag that all verbs have.
const commonKey = "common"

// A flagSet declares the flags of one verb, with their help, which begins with the name of the
// value in backquotes.
type flagSet struct {
	*pflag.FlagSet
	*flags
	getenv func(string) string
}

// declared returns the flags of the verb; nothing uses their values.
func (v *verb) declared(getenv func(string) string) *pflag.FlagSet {
	return new(flags).declare(v.new(&call{}), getenv)
}

// declare returns the flags of a verb: its own, and those of all verbs. Without an action it returns
// only the latter.
func (f *flags) declare(a action, getenv func(string) string) *pflag.FlagSet {
	fs := &flagSet{pflag.NewFlagSet("cni-exec", pflag.ContinueOnError), f, getenv}
	fs.SortFlags = false
	if a != nil {
		a.flags(fs)
	}
	fs.common()
	return fs.FlagSet
}

// outputs declares --output for a verb that has a document.
func (f *flagSet) outputs(help string) { f.name(&f.output, "output", "o", help) }

// common declares the flags of all verbs.
func (f *flagSet) common() {
	own := map[string]bool{}
	f.VisitAll(func(flag *pflag.Flag) { own[flag.Name] = true })
	f.confDir = cmp.Or(f.getenv("NETCONFPATH"), "/etc/cni/net.d")
	f.name(&f.confDir, "conf-dir", "", "`DIR` configurations")
	f.StringVar(&f.path, "path", f.getenv("CNI_PATH"), "`DIR[:DIR]` directories of external plugins; they override built-in ones")
	f.name(&f.cacheDir, "cache-dir", "", "`DIR` cache of attachments, as libcni's; default /var/lib/cni, or that of --state-dir")
	f.name(&f.stateDir, "state-dir", "", "`DIR` cache, leases and records are stored below DIR, also those of plugins")
	f.time(&f.timeout, "timeout", "`TIME` limit of one plugin, as 90s or 2m; default 60s")
	if !own["output"] {
		f.outputs("`json` print an error, and what the verb finds, as JSON on stdout")
	}
	f.BoolVarP(&f.help, "help", "h", false, "print this help, or that of a verb")
	f.BoolVar(&f.version, "version", false, "print the version")
	f.VisitAll(func(flag *pflag.Flag) {
		if !own[flag.Name] {
			flag.Annotations = map[string][]string{commonKey: nil}
		}
	})
}

// isCommon reports whether all verbs have the flag.
func isCommon(flag *pflag.Flag) bool {
	_, common := flag.Annotations[commonKey]
	return common
}

// commonFlags returns the flags of a set that all verbs have.
func commonFlags(set *pflag.FlagSet) []*pflag.Flag { return flagsOf(set, true) }

// ownFlags returns the flags of a set that are the verb's own.
func ownFlags(set *pflag.FlagSet) []*pflag.Flag { return flagsOf(set, false) }

func flagsOf(set *pflag.FlagSet, common bool) (list []*pflag.Flag) {
	set.VisitAll(func(flag *pflag.Flag) {
		if isCommon(flag) == common && !flag.Hidden {
			list = append(list, flag)
		}
	})
	return list
}

// allFlags returns the flags of all verbs, for a command line without a verb.
func allFlags(f *flags, getenv func(string) string) *pflag.FlagSet {
	all := f.declare(nil, getenv)
	for _, v := range verbs() {
		f.declare(v.new(&call{}), getenv).VisitAll(func(flag *pflag.Flag) {
			if known := all.Lookup(flag.Name); known == nil && (flag.Shorthand == "" || all.ShorthandLookup(flag.Shorthand) == nil) {
				all.AddFlag(flag)
			} else if known != nil && !flag.Hidden {
				known.Hidden = false // of another verb it is one of an earlier release
			}
		})
	}
	return all
}

// verbsWith returns the names of the verbs that have the flag as their own.
func verbsWith(flag string) (names []string) {
	for _, v := range shownVerbs() {
		if f := v.declared(func(string) string { return "" }).Lookup(flag); f != nil && !isCommon(f) && !f.Hidden {
			names = append(names, v.name)
		}
	}
	return names
}

// A value is that of a flag whose text is checked.
type value struct {
	set  func(string) error
	text *string // where it is stored as it is; nil: the help shows no default
	many bool    // each text adds one
}

// Set takes a text.
func (v *value) Set(s string) error { return v.set(s) }

// String is the text, or empty.
func (v *value) String() string {
	if v.text == nil {
		return ""
	}
	return *v.text
}

// Type is pflag's for a text, since the help then shows the default.
func (v *value) Type() string {
	if v.text == nil {
		return "value"
	}
	return "string"
}

// name declares a flag for which "" means that it was not given. It must not be given as "", as by an
// unset variable.
func (f *flagSet) name(to *string, name, short, help string) {
	set := func(s string) error {
		*to = s
		return notEmpty(s)
	}
	f.VarP(&value{set: set, text: to}, name, short, help)
}

// list declares a flag that may be repeated. add takes one more text.
func (f *flagSet) list(name, short, help string, add func(string) error) {
	f.VarP(&value{set: add, many: true}, name, short, help)
}

// names declares a flag of names that may be repeated.
func (f *flagSet) names(to *[]string, name, help string) {
	f.list(name, "", help, func(s string) error {
		*to = append(*to, s)
		return notEmpty(s)
	})
}

// time declares a flag of a time of more than 0.
func (f *flagSet) time(to *time.Duration, name, help string) {
	f.Var(&value{set: func(s string) error {
		d, err := time.ParseDuration(s)
		if err != nil || d <= 0 {
			return errors.New("it must be a time of more than 0, as 90s or 2m")
		}
		*to = d
		return nil
	}}, name, help)
}

func notEmpty(s string) error {
	if s == "" {
		return errors.New("it must not be empty")
	}
	return nil
}

// repeatable reports whether a flag may be given several times.
func repeatable(flag *pflag.Flag) bool {
	v, ok := flag.Value.(*value)
	return ok && v.many
}

// usageOf returns the name of a flag's value, and its meaning.
func usageOf(flag *pflag.Flag) (value, text string) {
	value, text = pflag.UnquoteUsage(flag)
	return value, strings.TrimSpace(strings.TrimPrefix(text, value))
}
