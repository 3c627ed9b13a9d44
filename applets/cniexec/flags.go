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

	"cnibox/applets/hostport"
	"cnibox/chain"
	"cnibox/spec"
)

const cniExecHelp = `cni-exec attaches network namespaces to networks, as the CNI specification
tells a runtime to. Plugins of this binary run in one process; others are
found on CNI_PATH and started.

  cni-exec add     NETWORK NETNS    attach; prints the result
  cni-exec check   NETWORK NETNS    is it still as add left it?
  cni-exec get     NETWORK NETNS    print the result again
  cni-exec del     NETWORK NETNS    detach; no error if it is gone
  cni-exec gc      NETWORK          delete attachments that nobody needs; see --valid
  cni-exec status  NETWORK          could add work now?
  cni-exec version [NETWORK]        versions of this program or of the plugins
  cni-exec run [--net NETWORK]… -- COMMAND [ARGUMENT]…
                                    run a command in a new, attached namespace
                                    and take all down when it ends

NETWORK is the name in a configuration in --conf-dir, NETNS the path of a network
namespace (/run/netns/NAME, /proc/PID/ns/net). Where --conf-dir holds nothing,
the network "cnibox" is there all the same: a bridge with port mapping.

  -i, --ifname NAME      interface in the namespace; default eth0; of run: of the
                         first network, the others count up
      --container-id ID  default: derived from NETNS as cnitool does
      --conf-dir DIR     configurations; default /etc/cni/net.d
      --path DIR[:DIR]   more plugins than those built in; of one name that in DIR is run
      --cache-dir DIR    what add was told and answered; default /var/lib/cni
      --timeout TIME     of one plugin, as 90s or 2m; default 60s
      --retries N        add, run: try an add again that says "try again later"
  -p, --publish [IP:]HOST:CONTAINER[/tcp|udp|sctp]
                         add, run: make a container port a host port; repeatable
      --force            add, run: publish also ports on which a process of the host
                         listens, which gets nothing any more
      --keep-going       del: run all plugins even if one fails
      --valid ID/IFNAME  gc: keep this attachment; repeatable
      --valid-live       gc: keep all whose namespace exists, and what an unreadable
                         entry is about; what another --cache-dir has is not known
      --all              gc: keep none
      --dry-run          gc: only print what would be deleted
      --net NETWORK      run: attach to this network; repeatable
      --json             print errors as JSON on stdout

Environment, as cnitool has it: NETCONFPATH (--conf-dir), CNI_PATH (--path),
CNI_IFNAME (--ifname), CNI_CONTAINERID (--container-id), CNI_ARGS (KEY=VALUE;…),
CAP_ARGS (JSON object of capability arguments). Flags go first. del, check and get use
the arguments of the add unless others are given. A flag of another verb is an error.

A verb waits 2 minutes for others of the same container, and for a gc of the same network;
then it ends with code 11 (try again later).

Exit code: 0; 1 after an error, told on stderr; 2 for a wrong command line;
of run: the command's.
`

// execFlags are the flags of cni-exec.
//
// The zero value of each is the flag that was not given, but for those that the
// environment or a default fills in.
type execFlags struct {
	ifName, containerID string // empty ID: derived from the namespace
	confDir, cacheDir   string
	path                string        // CNI_PATH; empty: built-in plugins alone
	timeout             time.Duration // of one plugin; 0: the default
	retries             int           // of an add that ended with code 11

	// Of gc, run and fail, see the help.
	keepGoing, all, live, dryRun, force, json, help bool

	// Those that may be given more than once, as written and in their order.
	valid, nets []string
	publish     []publishedPort

	given []string // the names of all that stood on the command line
}

// bind returns where the value of a flag goes, by type; nil: no such flag.
// The package flag would add its own usage text and stop at the first operand.
func (f *execFlags) bind(name string) any {
	switch name {
	case "-i", "--ifname":
		return &f.ifName
	case "--container-id":
		return &f.containerID
	case "--conf-dir":
		return &f.confDir
	case "--path":
		return &f.path
	case "--cache-dir":
		return &f.cacheDir
	case "--timeout":
		return &f.timeout
	case "--retries":
		return &f.retries
	case "--keep-going":
		return &f.keepGoing
	case "--all":
		return &f.all
	case "--valid-live":
		return &f.live
	case "--dry-run":
		return &f.dryRun
	case "--force":
		return &f.force
	case "--json":
		return &f.json
	case "-h", "--help":
		return &f.help
	case "--valid":
		return &f.valid
	case "--net":
		return &f.nets
	case "-p", "--publish":
		return &f.publish
	}
	return nil
}

// verbsOf returns the verbs that a flag is for; none: it is for all.
func verbsOf(flag string) []string {
	switch flag {
	case "-i", "--ifname", "--container-id":
		return []string{"add", "del", "check", "get", "run"}
	case "-p", "--publish", "--force", "--retries":
		return []string{"add", "run"}
	case "--keep-going":
		return []string{"del"}
	case "--valid", "--valid-live", "--all", "--dry-run":
		return []string{"gc"}
	case "--net":
		return []string{"run"}
	}
	return nil
}

// usableFor reports a flag that was given and that the verb has no use for: it would be taken
// for obeyed.
func (f *execFlags) usableFor(verb string) error {
	for _, flag := range f.given {
		if verbs := verbsOf(flag); verbs != nil && !slices.Contains(verbs, verb) {
			return fmt.Errorf("%s: %s is a flag of %s", verb, flag, strings.Join(verbs, ", "))
		}
	}
	return nil
}

// parseExecFlags reads flags wherever they stand among the operands, up to "--",
// behind which the command is; it is nil without "--".
// Values come after "=" or as the next argument; a bool takes them only with "=". A
// "-" alone is an operand. The error is the first one; the flags behind it are read all
// the same, as --json is about the error itself.
func parseExecFlags(args []string, getenv func(string) string) (f *execFlags, operands, command []string, err error) {
	f = &execFlags{
		ifName:      cmp.Or(getenv("CNI_IFNAME"), "eth0"),
		containerID: getenv("CNI_CONTAINERID"),
		confDir:     cmp.Or(getenv("NETCONFPATH"), "/etc/cni/net.d"),
		path:        getenv("CNI_PATH"),
		cacheDir:    chain.DefaultCacheDir,
	}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return f, operands, append([]string{}, args[i+1:]...), err
		}
		if !strings.HasPrefix(arg, "-") || arg == "-" {
			operands = append(operands, arg)
			continue
		}
		name, value, given := strings.Cut(arg, "=")
		to := f.bind(name)
		if _, isBool := to.(*bool); !given && !isBool && to != nil {
			if i++; i == len(args) {
				return f, operands, nil, cmp.Or(err, fmt.Errorf("%s needs a value", name))
			}
			value = args[i]
		}
		f.given = append(f.given, name)
		err = cmp.Or(err, setFlag(to, name, value, given))
	}
	return f, operands, nil, err
}

// setFlag stores the value of one flag.
// given tells that the value came with "=". The error names the flag.
func setFlag(to any, name, value string, given bool) (err error) {
	switch to := to.(type) {
	case *string:
		*to = value
	case *[]string:
		*to = append(*to, value)
	case *[]publishedPort:
		var port publishedPort
		port, err = parsePublish(value)
		*to = append(*to, port)
	case *int:
		*to, err = strconv.Atoi(value)
	case *time.Duration:
		*to, err = time.ParseDuration(value)
		if err == nil && *to <= 0 {
			err = fmt.Errorf("it must be more than 0")
		}
	case *bool:
		*to = true
		if given {
			*to, err = strconv.ParseBool(value)
		}
	default:
		return fmt.Errorf("unknown flag %s", name)
	}
	if err != nil {
		return fmt.Errorf("%s %q: %w", name, value, err)
	}
	return nil
}

// derivedID is the container ID that cnitool makes of a namespace's path.
// Its first ten bytes of SHA-512, so that cnitool can delete what cni-exec has added.
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
func (f *execFlags) capabilities(s string) (caps map[string]json.RawMessage, err error) {
	if s != "" {
		if err := spec.Unmarshal("CAP_ARGS", []byte(s), &caps); err != nil {
			return nil, spec.Errorf(spec.CodeEnv, "%w", err)
		}
	}
	if len(f.publish) == 0 {
		return caps, nil
	}
	var ports []publishedPort
	if raw := caps[capPorts]; raw != nil {
		if err := spec.Unmarshal("CAP_ARGS.portMappings", raw, &ports); err != nil {
			return nil, spec.Errorf(spec.CodeEnv, "%w", err)
		}
	}
	if caps == nil {
		caps = make(map[string]json.RawMessage)
	}
	caps[capPorts], err = json.Marshal(append(ports, f.publish...))
	return caps, err
}

// capPorts is the capability that --publish gives arguments to.
const capPorts = "portMappings"

// canPublish refuses --publish where no plugin of the networks would be told of it.
// CAP_ARGS may hold what nobody takes, as with libcni; a flag was given for this call.
// The error has code 7.
func (f *execFlags) canPublish(networks ...*chain.List) error {
	for _, l := range networks {
		for _, p := range l.Plugins {
			if p.Capabilities[capPorts] {
				return nil
			}
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
func (f *execFlags) freePorts() error {
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

// publishedPort is an entry of the capability portMappings.
// The names are the convention's.
type publishedPort struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// parsePublish reads [IP:]HOST:CONTAINER[/PROTOCOL], an IPv6 address in brackets.
// Zero is no port here.
func parsePublish(s string) (p publishedPort, err error) {
	ports, protocol, _ := strings.Cut(s, "/")
	p.Protocol = cmp.Or(protocol, "tcp")
	rest, container, ok := cutLast(ports, ":")
	ip, host, _ := cutLast(rest, ":")
	p.HostIP = strings.Trim(ip, "[]")
	var errs [3]error
	p.HostPort, errs[0] = parsePort(host)
	p.ContainerPort, errs[1] = parsePort(container)
	if p.HostIP != "" {
		_, errs[2] = netip.ParseAddr(p.HostIP)
	}
	if !ok || errors.Join(errs[:]...) != nil || !slices.Contains([]string{"tcp", "udp", "sctp"}, strings.ToLower(p.Protocol)) {
		return p, errors.New("it must be [IP:]HOST:CONTAINER[/tcp|udp|sctp], with ports from 1 to 65535")
	}
	return p, nil
}

// parsePort reads 1 to 65535.
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
