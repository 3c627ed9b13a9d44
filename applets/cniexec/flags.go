package cniexec

import (
	"cmp"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"cnibox/applets/cniexec/inventory"
	"cnibox/applets/hostport"
	"cnibox/chain"
	"cnibox/spec"
)

// flags are the flags of all verbs.
//
// The zero value of each is the flag that was not given, but for those that the
// environment or a default fills in.
type flags struct {
	ifName, containerID string // empty ID: derived from the namespace
	name                string // of a run; empty: none
	confDir             string
	cacheDir, stateDir  string        // empty: see [state.CacheDir]
	output              string        // empty: for people
	report              string        // file; empty: none
	path                string        // CNI_PATH; empty: built-in plugins alone
	timeout             time.Duration // of one plugin; 0: the default
	retries             int           // of an add that ended with code 11

	keepGoing, all, keepNone, allNetworks, live, dot, dryRun, checked, fix, force, watch, inPlace, help, version bool
	create, delete                                                                                               bool // the named namespace

	// Those that may be given more than once, in their order.
	valid, nets []string
	publish     publishedPorts
	ips         askedIPs
	macs        askedMACs
	dns         nameServers
}

// verbsKey is the annotation of a flag that has the verbs it is for; without it, it is for all.
const verbsKey = "verbs"

// set declares the flags. This is the one place where a flag, its verbs and its help are;
// the help begins with the name of the value, in backquotes. Where a verb gives a flag another
// meaning, it has a help of its own.
func (f *flags) set(getenv func(string) string) *pflag.FlagSet {
	fs := pflag.NewFlagSet("cni-exec", pflag.ContinueOnError)
	fs.SortFlags = false
	of := func(verbs string, declare func()) {
		declare()
		fs.VisitAll(func(flag *pflag.Flag) {
			if flag.Annotations == nil { // just declared
				flag.Annotations = map[string][]string{verbsKey: strings.Fields(verbs)}
			}
		})
	}
	helpOf := func(verb, flag, help string) { _ = fs.SetAnnotation(flag, verb, []string{help}) }
	of("add del check get run", func() {
		f.ifName = cmp.Or(getenv("CNI_IFNAME"), "eth0")
		fs.VarP((*nameValue)(&f.ifName), "ifname", "i", "`NAME` interface in the namespace")
		f.containerID = getenv("CNI_CONTAINERID")
		fs.Var((*nameValue)(&f.containerID), "container-id", "`ID` container ID; default: made of NETNS as by cnitool")
	})
	helpOf("run", "ifname", "`NAME` interface on the first network; those on the others count up")
	helpOf("run", "container-id", "`ID` container ID; default: a random one")
	of("add run", func() {
		fs.VarP(&f.publish, "publish", "p", "`[IP:]HOST:CONTAINER[/tcp|udp|sctp]` publish a port, or a range: 8080-8090:80-90; repeatable")
	})
	of("add run up", func() {
		fs.BoolVar(&f.force, "force", false, "publish also ports on which this host listens")
	})
	of("add run", func() {
		fs.IntVar(&f.retries, "retries", 0, "`N` times to add again after \"try again later\"")
		fs.Var(&f.ips, "ip", "`ADDR` ask for this IP address; repeatable")
		fs.Var(&f.macs, "mac", "`ADDR` MAC address of the interface")
	})
	helpOf("run", "ip", "`[NET=]ADDR` ask for this IP address, on the first network or NET")
	helpOf("run", "mac", "`[NET=]ADDR` MAC address of the interface, likewise")
	of("add", func() {
		fs.BoolVar(&f.create, "create", false, "make the named namespace if it is missing, with lo up")
	})
	of("del", func() {
		fs.BoolVar(&f.delete, "delete", false, "delete the named namespace as well, with its last attachment")
		fs.BoolVar(&f.keepGoing, "keep-going", false, "run all plugins even if one fails")
	})
	of("gc", func() {
		fs.StringArrayVar(&f.valid, "valid", nil, "`ID/IFNAME` keep this attachment; repeatable")
		fs.BoolVar(&f.live, "valid-live", false, "keep all whose namespace exists, also those without an entry in the cache, and what an unreadable entry is about")
		fs.BoolVar(&f.keepNone, "keep-none", false, "delete every one")
	})
	of("add gc", func() {
		fs.BoolVar(&f.dryRun, "dry-run", false, "only print what would be made")
	})
	helpOf("gc", "dry-run", "only print what would be deleted")
	of("check status", func() {
		fs.BoolVar(&f.all, "all", false, "every attachment whose namespace exists")
	})
	helpOf("status", "all", "every network that is configured")
	of("gc", func() {
		fs.BoolVar(&f.allNetworks, "all-networks", false, "every network that is configured or has attachments, in place of NETWORK")
	})
	of("reload", func() {
		fs.BoolVar(&f.watch, "watch", false, "stay, and do it again whenever rules or a bridge are deleted, or firewalld is started or reloaded")
	})
	of("run", func() {
		fs.Var((*nameValues)(&f.nets), "net", "`NETWORK` attach to this one; repeatable")
		fs.Var(&f.dns, "dns", "`ADDR` name server, in place of the networks'; repeatable")
		fs.BoolVar(&f.inPlace, "exec", false, "become the command: nothing stays in memory, and the next run takes down what it leaves")
		fs.Var((*nameValue)(&f.name), "name", "`NAME` name of namespace and host, and for other named runs")
	})
	of("ls", func() {
		fs.BoolVar(&f.checked, "check", false, "run CHECK of each attachment that is alive, and list what it finds")
	})
	of("tree", func() {
		fs.BoolVar(&f.dot, "dot", false, "print a graph for dot(1)")
	})
	of("doctor", func() {
		fs.BoolVar(&f.fix, "fix", false, "repair what is cnibox's own, and nothing else")
		fs.StringVar(&f.report, "report", "", "`FILE` write all that was looked at there, without names and public addresses")
	})
	fs.StringVar(&f.confDir, "conf-dir", cmp.Or(getenv("NETCONFPATH"), "/etc/cni/net.d"), "`DIR` configurations")
	fs.StringVar(&f.path, "path", getenv("CNI_PATH"), "`DIR[:DIR]` more plugins than those built in; of one name that in DIR is run")
	fs.StringVar(&f.cacheDir, "cache-dir", "", "`DIR` what add was given and returned; default /var/lib/cni, or that of --state-dir")
	fs.StringVar(&f.stateDir, "state-dir", "", "`DIR` cache, leases and records are stored below DIR, also those of plugins")
	fs.Var((*timeLimit)(&f.timeout), "timeout", "`TIME` limit of one plugin, as 90s or 2m; default 60s")
	fs.StringVarP(&f.output, "output", "o", "", "`json` print an error, and what the verb finds, as JSON on stdout")
	for _, verb := range []string{"show", "who", "lint", "doctor"} {
		helpOf(verb, "output", "`json` print JSON")
	}
	helpOf("ls", "output", "`wide|json` print a table with all columns, or JSON")
	helpOf("add", "output", "`json` print what --dry-run finds, and an error, as JSON")
	fs.BoolVarP(&f.help, "help", "h", false, "print this help, or that of a verb")
	fs.BoolVar(&f.version, "version", false, "print the version")
	return fs
}

// A nameValue is the value of a flag for which "" means that it was not given: it must not be given
// so, as by a variable that is not set.
type nameValue string

// errEmpty is the error of a name that is given, and empty.
var errEmpty = errors.New("it must not be empty")

// Set takes a name.
func (n *nameValue) Set(s string) error {
	if s == "" {
		return errEmpty
	}
	*n = nameValue(s)
	return nil
}

// String is the name.
func (n *nameValue) String() string { return string(*n) }

// Type is that of pflag's own, whose defaults the help has.
func (n *nameValue) Type() string { return "string" }

// nameValues are those of a flag that may be given more than once.
type nameValues []string

// Set takes one more name.
func (n *nameValues) Set(s string) error {
	if s == "" {
		return errEmpty
	}
	*n = append(*n, s)
	return nil
}

// String is empty: there is no default.
func (n *nameValues) String() string { return "" }

// Type is the name of the type, for pflag.
func (n *nameValues) Type() string { return "NAME" }

// A timeLimit is the value of --timeout.
type timeLimit time.Duration

// Set takes a duration of more than 0.
func (t *timeLimit) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return errors.New("it must be a time of more than 0, as 90s or 2m")
	}
	*t = timeLimit(d)
	return nil
}

// String is empty for the default.
func (t *timeLimit) String() string {
	if *t == 0 {
		return ""
	}
	return time.Duration(*t).String()
}

// Type is the name of the type, for pflag.
func (t *timeLimit) Type() string { return "TIME" }

// verbsOf returns the verbs that a flag is for; nil: it is for all.
func verbsOf(flag *pflag.Flag) []string { return flag.Annotations[verbsKey] }

// flagsOf returns the flags of a verb; "": those of all verbs.
func flagsOf(set *pflag.FlagSet, verb string) (list []*pflag.Flag) {
	set.VisitAll(func(flag *pflag.Flag) {
		if of := verbsOf(flag); of == nil && verb == "" || slices.Contains(of, verb) || flag.Annotations[verb] != nil {
			list = append(list, flag)
		}
	})
	return list
}

// usageOf returns the name of a flag's value, and its meaning, as a verb has them.
func usageOf(flag *pflag.Flag, verb string) (value, text string) {
	f := *flag
	if own := flag.Annotations[verb]; own != nil {
		f.Usage = own[0]
	}
	value, text = pflag.UnquoteUsage(&f)
	return value, strings.TrimSpace(strings.TrimPrefix(text, value))
}

// A commandLine is what the caller wrote.
type commandLine struct {
	*flags
	set      *pflag.FlagSet
	args     []string
	operands []string // the verb first
	command  []string // what comes after "--"; nil: there is none
}

// parse reads flags wherever they stand among the operands, up to "--", after which
// the command is. The error is the first one.
func parse(args []string, getenv func(string) string) (*commandLine, error) {
	l := &commandLine{flags: &flags{}, args: args}
	l.set = l.flags.set(getenv)
	if i := slices.Index(args, "--"); i >= 0 {
		l.args, l.command = args[:i], append([]string{}, args[i+1:]...)
	}
	err := l.set.Parse(l.args)
	l.operands = l.set.Args()
	if err != nil {
		if asksForJSON(l.args) { // it is about this error
			l.output = outputJSON
		}
		return l, flagError(err)
	}
	return l, nil
}

// asksForJSON reports whether --output is json among words that cannot be parsed.
func asksForJSON(args []string) bool {
	line := " " + strings.Join(args, " ") + " "
	return slices.ContainsFunc([]string{" -o json ", " -o=json ", " -ojson ", " --output json ", " --output=json "}, func(flag string) bool {
		return strings.Contains(line, flag)
	})
}

// flagError is an error of pflag in our words.
func flagError(err error) error {
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
	case errors.As(err, &unknown) && unknown.GetSpecifiedName() == "json":
		return errors.New("unknown flag --json: write -o json")
	case errors.As(err, &unknown):
		return fmt.Errorf("unknown flag %s", name(unknown.GetSpecifiedName(), unknown.GetSpecifiedShortnames()))
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

// usableFor reports a flag that was given and that the verb has no use for: it would seem
// to have been obeyed.
func (l *commandLine) usableFor(verb string) (err error) {
	l.set.Visit(func(flag *pflag.Flag) {
		verbs := verbsOf(flag)
		if err != nil || verbs == nil || slices.Contains(verbs, verb) {
			return
		}
		name := "--" + flag.Name
		if verb == "gc" && flag.Name == "all" {
			err = errors.New("gc: --all is a flag of check, status: write --keep-none")
			return
		}
		if flag.Shorthand != "" && !slices.ContainsFunc(l.args, func(arg string) bool { return arg == name || strings.HasPrefix(arg, name+"=") }) {
			name = "-" + flag.Shorthand
		}
		err = fmt.Errorf("%s: %s is a flag of %s", verb, name, strings.Join(verbs, ", "))
	})
	return err
}

// derivedID is the container ID that cnitool makes of a namespace's path: ten bytes of its
// SHA-512. So cnitool can delete what cni-exec has added.
func derivedID(netns string) string {
	sum := sha512.Sum512([]byte(netns))
	return chain.CnitoolPrefix + hex.EncodeToString(sum[:10])
}

// cniArgs reads CNI_ARGS in order; nil: none were given.
// cnitool refuses an empty pair and a second "=" in one; runtimes send both. The error
// has code 4.
func cniArgs(s string) (pairs [][2]string, err error) {
	for _, pair := range strings.Split(s, ";") {
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

// capabilities reads CAP_ARGS and adds the published ports; nil: none were given.
// Errors have code 4. What is not an object is an error, null is as good as none.
func (f *flags) capabilities(s string) (caps map[string]json.RawMessage, err error) {
	if s != "" {
		if err := spec.Unmarshal("CAP_ARGS", []byte(s), &caps); err != nil {
			return nil, spec.Errorf(spec.CodeEnv, "%w", err)
		}
	}
	if len(f.publish) == 0 {
		return caps, nil
	}
	var ports []inventory.Port
	if raw := caps[inventory.CapPorts]; raw != nil {
		if err := spec.Unmarshal("CAP_ARGS.portMappings", raw, &ports); err != nil {
			return nil, spec.Errorf(spec.CodeEnv, "%w", err)
		}
	}
	if caps == nil {
		caps = make(map[string]json.RawMessage)
	}
	caps[inventory.CapPorts], err = json.Marshal(append(ports, f.publish...))
	return caps, err
}

// canPublish refuses --publish where no plugin of the networks would get it.
// CAP_ARGS may hold what no plugin takes, as with libcni; a flag was given for this call.
// The error has code 7.
func (f *flags) canPublish(networks ...*chain.List) error {
	for _, l := range networks {
		if takes(l, inventory.CapPorts) {
			return nil
		}
	}
	if len(f.publish) == 0 {
		return nil
	}
	return spec.Errorf(spec.CodeConfig, `--publish: no plugin in %s takes port mappings: add {"type": "portmap", "capabilities": {"portMappings": true}} to its list`, networks[0].File)
}

// freePorts refuses --publish of a port on which a process of the host listens: its
// clients would get to the container instead. Runtimes that give CAP_ARGS get a warning from
// portmap. The error has code 100.
func (f *flags) freePorts() error {
	if f.force {
		return nil
	}
	var ports []hostport.Port
	for _, p := range f.publish {
		ip, _ := netip.ParseAddr(p.HostIP) // checked; none is the zero Addr
		ports = append(ports, hostport.Port{Proto: strings.ToLower(p.Protocol), IP: ip.Unmap(), Port: p.HostPort})
	}
	found := hostport.Listening(ports)
	if len(found) == 0 {
		return nil
	}
	return spec.Errorf(spec.CodeBusy, "--publish: in use on this host: %s: publish another port, stop that process, or take the port from it with --force",
		strings.Join(found, ", "))
}

// publishedPorts are the values of --publish.
type publishedPorts []inventory.Port

// Set adds one, or those of a range.
func (p *publishedPorts) Set(s string) error {
	ports, err := parsePublish(s)
	*p = append(*p, ports...)
	return err
}

// String is empty: no port is published by default.
func (p *publishedPorts) String() string { return "" }

// Type is the name of the type, for pflag.
func (p *publishedPorts) Type() string { return "PORT" }

// protocols are those that have ports to publish.
var protocols = []string{"tcp", "udp", "sctp"}

// parsePublish reads [IP:]HOST:CONTAINER[/PROTOCOL], an IPv6 address in brackets. HOST and
// CONTAINER are ports, or ranges of the same length.
func parsePublish(s string) ([]inventory.Port, error) {
	ports, protocol, _ := strings.Cut(s, "/")
	p := inventory.Port{Protocol: cmp.Or(protocol, "tcp")}
	rest, container, ok := cutLast(ports, ":")
	ip, host, _ := cutLast(rest, ":")
	p.HostIP = strings.Trim(ip, "[]")
	var errs [3]error
	var hostLast, containerLast uint16
	p.HostPort, hostLast, errs[0] = parsePorts(host)
	p.ContainerPort, containerLast, errs[1] = parsePorts(container)
	if p.HostIP != "" {
		_, errs[2] = netip.ParseAddr(p.HostIP)
	}
	if !ok || errors.Join(errs[:]...) != nil || !slices.Contains(protocols, strings.ToLower(p.Protocol)) {
		return nil, errors.New("it must be [IP:]HOST:CONTAINER[/tcp|udp|sctp], with ports from 1 to 65535, or ranges of them")
	}
	if hostLast-p.HostPort != containerLast-p.ContainerPort {
		return nil, fmt.Errorf("the ranges must have the same length: %s are %d ports, %s are %d",
			host, int(hostLast-p.HostPort)+1, container, int(containerLast-p.ContainerPort)+1)
	}
	all := []inventory.Port{p}
	for p.HostPort < hostLast {
		p.HostPort++
		p.ContainerPort++
		all = append(all, p)
	}
	return all, nil
}

// parsePorts reads a port or a range, FIRST-LAST.
func parsePorts(s string) (first, last uint16, err error) {
	from, to, isRange := strings.Cut(s, "-")
	first, err = parsePort(from)
	if last = first; isRange && err == nil {
		last, err = parsePort(to)
	}
	if last < first {
		err = strconv.ErrRange
	}
	return first, last, err
}

// parsePort reads 1 to 65535. Zero is no port here.
func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if n == 0 && err == nil {
		err = strconv.ErrRange
	}
	return uint16(n), err
}

// cutLast cuts at the last sep; without one all of s is after it.
func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return "", s, false
	}
	return s[:i], s[i+len(sep):], true
}
