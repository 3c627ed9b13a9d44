package cniexec

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/hostport"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
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
		t.ContainerID = derivedID(t.NetNS)
	}
}

// selects reports whether a flag of the command line selects an attachment.
func (c *options) selects() bool { return c.set.Changed("ifname") || c.set.Changed("container-id") }

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

// The options are what the caller typed, and stay as parse has read them.
type options struct {
	flags
	set      *pflag.FlagSet
	verb     string // empty: none
	args     []string
	operands []string // the verb first
	command  []string // after "--"; nil: none
	dirsErr  error    // why the directories of state are not known, with code 4
}

// resolveDirs completes the directories of state: plugins get paths below them. The error has code 4.
func (f *flags) resolveDirs(getenv func(string) string) (err error) {
	if f.stateDir == "" {
		f.stateDir, err = spec.StateDir(getenv)
	}
	for _, dir := range []*string{&f.stateDir, &f.cacheDir} {
		if err == nil && *dir != "" {
			*dir, err = filepath.Abs(*dir)
		}
	}
	return err
}

// parse reads flags, in any place among the operands, up to "--", after which the command follows.
// They are the flags of the verb, or of all verbs if there is none. The error is the first one.
// Without a verb there is no action.
func parse(p applet.Process) (c *call, a action, err error) {
	c = &call{Process: p, options: options{args: p.Args}}
	l := &c.options
	if i := slices.Index(p.Args, "--"); i >= 0 {
		l.args, l.command = p.Args[:i], append([]string{}, p.Args[i+1:]...)
	}
	v := findVerb(verbIn(l.args))
	if v != nil {
		a = v.new(c)
		l.set = l.flags.declare(a, p.Getenv)
	} else {
		l.set = allFlags(&l.flags, p.Getenv)
	}
	if v != nil && v.command && l.command == nil {
		if at := operandsAt(l.args, l.set); len(at) > v.before+1 {
			l.args, l.command = p.Args[:at[v.before+1]], slices.Clone(p.Args[at[v.before+1]:])
		}
	}
	if err = l.set.ParseAll(l.args, l.once); v != nil && v.command {
		err = cmp.Or(terminalFlag(v, l.args), err)
	}
	if f := l.set.Lookup("ifname"); err == nil && f != nil && !f.Changed && slices.Contains(p.Environ, "CNI_IFNAME=") {
		err = errors.New("CNI_IFNAME is set and empty: interface name is empty; unset it for eth0") // as cnitool
	}
	l.operands = l.set.Args()
	if err != nil && asksForJSON(l.args) { // it concerns this error
		l.output = outputJSON
	}
	if word := verbIn(l.args); err != nil && word != "" && len(l.operands) == 0 {
		l.operands = []string{word}
	}
	if len(l.operands) > 0 {
		l.verb = l.operands[0]
	}
	l.dirsErr = l.resolveDirs(p.Getenv)
	if err != nil {
		err = v.flagError(err)
	}
	return c, a, err
}

// once sets a flag. A second value of one that takes a single value is an error: only one would have
// an effect.
func (l *options) once(flag *pflag.Flag, value string) error {
	if flag.Changed && !repeatable(flag) {
		return fmt.Errorf("--%s is given twice", flag.Name)
	}
	return l.set.Set(flag.Name, value)
}

// terminalFlag returns an error for the flags that other tools take for a command at a terminal: -it
// would be the name of an interface here.
func terminalFlag(v *verb, args []string) error {
	for _, flag := range []string{"-it", "-ti", "-t"} {
		if slices.Contains(args, flag) {
			return fmt.Errorf("%s: %s is not needed: the command has this terminal; leave it out, or name an interface with --ifname", v.name, flag)
		}
	}
	return nil
}

// verbIn finds the verb among words: the first that is neither a flag nor the value of one; empty:
// none.
func verbIn(words []string) string {
	if len(words) > 0 && !strings.HasPrefix(words[0], "-") {
		return words[0]
	}
	if at := operandsAt(words, allFlags(new(flags), func(string) string { return "" })); len(at) > 0 {
		return words[at[0]]
	}
	return ""
}

// operandsAt returns the indexes of the words that are neither flags of the set nor values of these.
func operandsAt(words []string, set *pflag.FlagSet) (at []int) {
	needsValue := func(f *pflag.Flag) bool { return f != nil && f.NoOptDefVal == "" }
	for i := 0; i < len(words); i++ {
		w := words[i]
		if name, long := strings.CutPrefix(w, "--"); long {
			if !strings.Contains(name, "=") && needsValue(set.Lookup(name)) {
				i++
			}
			continue
		}
		if len(w) < 2 || w[0] != '-' {
			at = append(at, i)
		} else if len(w) == 2 && needsValue(set.ShorthandLookup(w[1:])) {
			i++
		}
	}
	return at
}

// asksForJSON reports whether words that cannot be parsed ask for --output json.
func asksForJSON(args []string) bool {
	line := " " + strings.Join(args, " ") + " "
	return slices.ContainsFunc([]string{" -o json ", " -o=json ", " -ojson ", " --output json ", " --output=json "}, func(flag string) bool {
		return strings.Contains(line, flag)
	})
}

// flagError rewords an error of pflag. A flag of other verbs is an error, since it would have no
// effect.
func (v *verb) flagError(err error) error {
	var unknown *pflag.NotExistError
	var needs *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	name := func(flag, short string) string {
		if short != "" {
			return "-" + flag
		}
		return "--" + flag
	}
	switch {
	case errors.As(err, &unknown) && v != nil:
		flag := unknown.GetSpecifiedName()
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			if f := allFlags(new(flags), func(string) string { return "" }).ShorthandLookup(flag); f != nil {
				return fmt.Errorf("%s: -%s is a flag of %s", v.name, flag, strings.Join(verbsWith(f.Name), ", "))
			}
		}
		with := verbsWith(flag)
		switch {
		case len(with) == 0:
			return v.unknownFlag(flag, unknown.GetSpecifiedShortnames() == "")
		}
		return fmt.Errorf("%s: --%s is a flag of %s", v.name, flag, strings.Join(with, ", "))
	case errors.As(err, &unknown):
		return v.unknownFlag(unknown.GetSpecifiedName(), unknown.GetSpecifiedShortnames() == "")
	case errors.As(err, &needs):
		return fmt.Errorf("%s needs a value", name(needs.GetSpecifiedName(), needs.GetSpecifiedShortnames()))
	case errors.As(err, &invalid):
		reason := invalid.Unwrap()
		var number *strconv.NumError
		if errors.As(reason, &number) {
			reason = fmt.Errorf("it must be %s", map[string]string{"int": "a number", "bool": "true or false"}[invalid.GetFlag().Value.Type()])
		}
		return fmt.Errorf("--%s %q: %w", invalid.GetFlag().Name, invalid.GetValue(), reason)
	}
	return err
}

// derivedID is [chain.DerivedID].
func derivedID(netns string) string { return chain.DerivedID(netns) }

// cniArgs reads CNI_ARGS in order; nil: none. cnitool refuses an empty pair and a second "=" in a
// pair; runtimes send both. The error has code 4.
func cniArgs(s string) (pairs [][2]string, err error) {
	for pair := range strings.SplitSeq(s, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, spec.Errorf(spec.CodeEnv, "CNI_ARGS: invalid pair %q: it must be KEY=VALUE", pair)
		}
		pairs = append(pairs, [2]string{key, value})
	}
	return pairs, nil
}

// capArgs reads CAP_ARGS; nil: none, also for null. A value that is not an object is an error.
// Errors have code 4.
func capArgs(s string) (caps map[string]json.RawMessage, err error) {
	if s == "" {
		return nil, nil
	}
	if err := spec.Unmarshal("CAP_ARGS", []byte(s), &caps); err != nil {
		return nil, spec.Errorf(spec.CodeEnv, "%w", err)
	}
	return caps, nil
}

// capabilities adds the published ports to those of CAP_ARGS. Errors have code 4.
func (a *asked) capabilities(caps map[string]json.RawMessage) (_ map[string]json.RawMessage, err error) {
	if len(a.publish) == 0 {
		return caps, nil
	}
	var ports []spec.Port
	if raw := caps[spec.CapPorts]; raw != nil {
		if err := spec.Unmarshal("CAP_ARGS.portMappings", raw, &ports); err != nil {
			return nil, spec.Errorf(spec.CodeEnv, "%w", err)
		}
	}
	if caps == nil {
		caps = make(map[string]json.RawMessage)
	}
	caps[spec.CapPorts], err = json.Marshal(append(ports, a.publish...))
	return caps, err
}

// canPublish refuses --publish if no plugin of the networks would get it. As with libcni, CAP_ARGS
// may have what no plugin takes, but a flag was given for this call. The error has code 7.
func (a *asked) canPublish(c *call, networks ...*chain.List) error {
	for _, l := range networks {
		if declares(l, spec.CapPorts) {
			return nil
		}
	}
	if len(a.publish) == 0 {
		return nil
	}
	return spec.Errorf(spec.CodeConfig, `--publish: no plugin in %s takes port mappings%s`, networks[0].File, c.publishAdvice())
}

// publishAdvice says what a list needs for published ports.
func (c *call) publishAdvice() string {
	plugins := c.linter().Decoding(spec.CapPorts)
	if len(plugins) == 0 {
		return ""
	}
	return fmt.Sprintf(`: add {"type": %q, "capabilities": {%q: true}} to its list`, plugins[0], spec.CapPorts)
}

// freePorts refuses --publish of a port on which a process of the host listens: its clients would
// reach the container instead. For CAP_ARGS of runtimes the plugin warns. The error has code 100.
func (a *asked) freePorts() error {
	if a.force {
		return nil
	}
	if err := listening(a.publish); err != nil {
		return spec.Errorf(spec.CodeBusy, "--publish: %w", err)
	}
	return nil
}

// listening returns the error for ports on which processes of the host listen; nil: none.
func listening(ports []spec.Port) error {
	var found []string
	for _, l := range hostport.Listening(ports) {
		found = append(found, l.String())
	}
	if len(found) == 0 {
		return nil
	}
	return spec.Errorf(spec.CodeBusy, "in use on this host: %s: publish another port, stop that process, or take the port from it with --force",
		strings.Join(found, ", "))
}
