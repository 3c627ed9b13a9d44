package cniexec

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"cnibox/applets/applet"
)

// A verb is a command of cni-exec. Its help, the completions and the manual page are made of it.
type verb struct {
	name     string
	operands string    // as the usage line has them
	summary  string    // one line
	text     string    // further text, in lines of at most 80 columns
	examples []example // two
	command  bool      // takes a command behind "--"

	// do runs the verb. The exit code counts where there is no error.
	do func(c *call, ctx context.Context, operands []string) (exit int, err error)
}

// An example is a command line and what it does.
type example struct{ line, what string }

// verbs are the commands in the order of the help.
func verbs() []verb {
	return []verb{
		{name: "add", operands: "NETWORK NETNS", summary: "attach; prints the result", do: attachment((*call).add),
			text: `The plugins of the network run in their order, and the result of the last one is
printed. A failed add is taken back: nothing stays. NETNS is a path, or the name
of a namespace in /run/netns.`,
			examples: []example{
				{"cni-exec add --create mynet blue", "eth0 of the namespace blue, which is made"},
				{"cni-exec add -i net1 -p 8080:80 mynet /proc/4711/ns/net", "a second interface, with a port"},
			}},
		{name: "check", operands: "NETWORK NETNS | --all", summary: "is it still as add left it?", do: attachment(onAll((*call).checkAll, (*call).check)),
			text: `The exit code says it: 0, or 1 with what is wrong on stderr, and whether reload
restores it or only del and add do.`,
			examples: []example{
				{"cni-exec check mynet /run/netns/blue", "of the interface eth0"},
				{"cni-exec check --all", "every attachment, of other runtimes as well"},
			}},
		{name: "get", operands: "NETWORK NETNS", summary: "print the result again", do: attachment((*call).get),
			text: `It is compared with what the plugins know of the attachment.`,
			examples: []example{
				{"cni-exec get mynet /run/netns/blue", "what add printed"},
				{"cni-exec get mynet --container-id c1 -i net1", "of another interface"},
			}},
		{name: "del", operands: "NETWORK NETNS", summary: "detach; no error if it is gone", do: attachment((*call).del),
			text: `The configuration and arguments of the add are used, unless others are given.`,
			examples: []example{
				{"cni-exec del --delete mynet blue", "with the namespace, which may be gone already"},
				{"cni-exec del mynet --container-id c1 --keep-going", "run all plugins even if one fails"},
			}},
		{name: "gc", operands: "NETWORK | --all-networks", summary: "delete attachments that are not needed", do: attachment(onAll((*call).gcAll, (*call).gc)),
			text: `What stays must be named: with --valid, --valid-live or --keep-none.
What is deleted is printed. An attachment that is in another --cache-dir is
alive if its link leads to a namespace that exists, or one has its link or
leased address.`,
			examples: []example{
				{"cni-exec gc mynet --valid-live --dry-run", "what is left of namespaces that are gone"},
				{"cni-exec gc --all-networks --valid-live", "delete them on all networks"},
			}},
		{name: "status", operands: "NETWORK | --all", summary: "could add work now?", do: attachment(onAll((*call).statusAll, (*call).status)),
			text: `The exit code says it: 0, or 1 with what is lacking on stderr.`,
			examples: []example{
				{"cni-exec status mynet", "ask each plugin of the network"},
				{"cni-exec status --all -o json", "every network; the error as JSON on stdout"},
			}},
		{name: "version", operands: "[NETWORK]", summary: "versions of this program or of the plugins", do: attachment((*call).versions),
			examples: []example{
				{"cni-exec version", "this program and the versions of the specification"},
				{"cni-exec version mynet", "those that each plugin of the network serves"},
			}},
		{name: "run", operands: "[--net NETWORK]… -- COMMAND [ARGUMENT]…", command: true, do: (*call).run,
			summary: "run a command in a new, attached namespace",
			text: `All is taken down when the command ends, whose exit code is that of run. Without
--net the network is the only one that is configured, or the default "cnibox".`,
			examples: []example{
				{"cni-exec run -- sh", "a shell in a namespace of its own"},
				{"cni-exec run --net mynet -p 8080:80 -- httpd -f", "a server, reached at the host's port 8080"},
			}},
		{name: "enter", operands: "NETNS -- COMMAND [ARGUMENT]…", command: true, do: (*call).enter,
			summary: "run a command in a namespace",
			text: `This process becomes the command, which has the /sys of the namespace, and the
/etc/resolv.conf of the networks that it is attached to.`,
			examples: []example{
				{"cni-exec enter blue -- ip addr", "in /run/netns/blue"},
				{"cni-exec enter /proc/4711/ns/net -- sh", "in the namespace of a process"},
			}},
		{name: "ls", operands: "[networks]", summary: "list attachments of all runtimes, or networks", do: (*call).ls,
			text: `STATE is a fact about the namespace: alive, gone with the reason, interrupted
when the add has not ended, busy while a verb runs, or unknown. Only CHECK knows
whether what is alive is as add left it: with --check STATE is ok, or fault with
what it finds. Wide and json have all columns, and cut none.`,
			examples: []example{
				{"cni-exec ls -o wide --check", "all columns, and what CHECK finds"},
				{"cni-exec ls networks", "with the addresses that are used, free and stale"},
			}},
		{name: "show", operands: "ID|NETWORK", summary: "all that is known of a container, or of a network", do: (*call).show,
			text: `ID may be cut, and be a name or a namespace as ls has it. Of a network it shows
the ranges, with how many addresses are used, free, and stale: leased to what
has no live attachment in the cache.`,
			examples: []example{
				{"cni-exec show blue", "the attachments of /run/netns/blue"},
				{"cni-exec show mynet -o json", "a network, with its attachments"},
			}},
		{name: "who", operands: "ADDRESS|PROTO/PORT|LINK|NETNS|MAC", summary: "name the owner", do: (*call).who,
			text: `The exit code is 1 if it has none.`,
			examples: []example{
				{"cni-exec who 10.88.0.7", "the container that has the address"},
				{"cni-exec who tcp/8080", "the one that a host port leads to"},
			}},
		{name: "tree", operands: "", summary: "draw the host's links and what is attached", do: (*call).tree,
			text: `Uplinks, parents and bridges, with the host-side link, name, interface,
addresses and ports of each attachment, and its state if its namespace is gone.`,
			examples: []example{
				{"cni-exec tree", "as text"},
				{"cni-exec tree --dot | dot -Tpng >net.png", "as a picture"},
			}},
		{name: "reload", operands: "[ID|NETWORK]", summary: "restore what attachments have lost", do: (*call).reload,
			text: `After nft flush ruleset, a deleted bridge or the like: bridges, ports and their
flags, addresses of the host, settings, rules, limits and leases come back as
add made them, and in the containers the interface is up again, with addresses
and routes. A line for each attachment says what was done. CHECK runs after it;
what is NOT restored is named, and the exit code is 1.`,
			examples: []example{
				{"cni-exec reload", "all attachments that are alive"},
				{"cni-exec reload mynet", "those of one network, or of one container"},
			}},
		{name: "lint", operands: "[FILE|DIR]…", summary: "what is wrong in configurations", do: (*call).lint,
			text: `What add would refuse, and what it would not notice: unknown keys, capabilities
that nothing reads, plugins in the wrong order, networks of one name or with the
same addresses, what does not fit the networks and links of this host and what
is attached. Without an operand it is about --conf-dir. Each line is
FILE:LINE:COLUMN: MESSAGE; the exit code is 1 if there is one.`,
			examples: []example{
				{"cni-exec lint", "the networks of this host"},
				{"cni-exec lint -o json mynet.conflist", "a file, for an editor"},
			}},
		{name: "rm", operands: "NETWORK", summary: "delete the bridge, rules and leases of a network", do: attachment((*call).rm),
			text: `It fails, and changes nothing, as long as something is attached or has a lease.
A bridge with another port, as that of another network, stays, with an error.
The configuration stays: the next add begins anew. What external plugins have
made for the network stays as well.`,
			examples: []example{
				{"cni-exec rm mynet", "when its last namespace is detached"},
				{"cni-exec gc mynet --keep-none && cni-exec rm mynet", "whatever is attached"},
			}},
		{name: "up", operands: "FILE", summary: "make and attach the namespaces of a file", do: (*call).up,
			text: `FILE is JSON, and "-" stdin; all but "network" may be left out:
  {"networks": [CONFIGURATION LIST, …],
   "namespaces": {"web": [{"network": "mynet", "ifname": "eth0",
     "ips": ["10.1.0.5"], "mac": "02:00:00:00:00:05",
     "ports": ["8080:80"]}]}}
What is as the file has it stays, and gets back what it has lost on the host;
what is not, or is attached and not in the file, is changed. A namespace that is
no more in the file stays. What an interrupted up left, the next one finishes.`,
			examples: []example{
				{"cni-exec up /etc/cni/netns/web.json", "also by cni-net@web.service, see dist/"},
				{"cni-exec enter web -- httpd -f", "a process in one of them"},
			}},
		{name: "down", operands: "FILE", summary: "detach and delete the namespaces of a file", do: (*call).down,
			text: `All that add and up have attached to them is detached. Networks stay: see rm.`,
			examples: []example{
				{"cni-exec down /etc/cni/netns/web.json", "no error if they are gone"},
				{"cni-exec down web.json && cni-exec rm mynet", "with the bridge"},
			}},
		{name: "boot", operands: "", summary: "clean up after a reboot, and make the bridges", do: (*call).boot,
			text: `Attachments and leases of earlier boots are deleted, on all networks, and the
bridges of all configured networks made, with the gateways' addresses. It may be
run at any time: what is alive stays.`,
			examples: []example{
				{"cni-exec boot", "once at each boot, before containers are started"},
				{"cni-exec boot --conf-dir /etc/mynets", "networks of another directory"},
			}},
		{name: "doctor", summary: "what keeps networks of this host from working", do: (*call).doctor,
			text: `It looks at the kernel, its settings, the rules of other programs, directories
of plugins, the networks, and what is attached or left over. Each finding comes
with what repairs it; the exit code is 1 if there is one. CHECK is run of each
attachment that is alive.`,
			examples: []example{
				{"cni-exec doctor", "look, and change nothing"},
				{"cni-exec doctor --fix --report /tmp/report.txt", "repair what can be, and write a bug report"},
			}},
		{name: "help", operands: "[VERB]", summary: "print this help, or that of a verb", do: (*call).printHelp,
			examples: []example{
				{"cni-exec help run", "the flags of run, and two examples"},
				{"cni-exec add --help", "the same of add"},
			}},
	}
}

// findVerb returns the verb of a name; nil: it does not exist.
func findVerb(name string) *verb {
	all := verbs()
	if i := slices.IndexFunc(all, func(v verb) bool { return v.name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// attachment is for the verbs of the specification: it reads their operands and makes the
// runner.
func attachment(do func(*call, context.Context) error) func(*call, context.Context, []string) (int, error) {
	return func(c *call, ctx context.Context, operands []string) (int, error) {
		if err := c.operands(operands); err != nil {
			return 0, usage("%s: %w", c.verb, err)
		}
		if err := c.prepare(); err != nil {
			return 0, err
		}
		return exitOK, do(c, ctx)
	}
}

// onAll is a function for all networks or attachments and one for a single one; the flags decide.
func onAll(all, one func(*call, context.Context) error) func(*call, context.Context) error {
	return func(c *call, ctx context.Context) error {
		if c.everyNetwork() {
			return all(c, ctx)
		}
		return one(c, ctx)
	}
}

// A usageError is a mistake in the command line: its exit code is 2.
type usageError struct{ error }

// Unwrap returns what is wrong.
func (u usageError) Unwrap() error { return u.error }

// usage makes a usageError.
func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// versions prints those of this program, or of the plugins of a network.
func (c *call) versions(ctx context.Context) error {
	if c.network == "" {
		_, err := c.printVersion()
		return err
	}
	return c.pluginVersions(ctx)
}

// printVersion prints that of this program, as a plugin does.
func (c *call) printVersion() (int, error) {
	var b strings.Builder
	applet.About(&applet.Applet{Name: "cni-exec"}, &b)
	return c.write(b.String())
}

// printHelp prints the help of a verb, or the overview.
func (c *call) printHelp(_ context.Context, operands []string) (int, error) {
	switch len(operands) {
	case 0:
		return c.write(overview(c.set))
	case 1:
		if v := findVerb(operands[0]); v != nil {
			return c.write(v.help(c.set))
		}
		return 0, usage("unknown verb %q%s", operands[0], suggestVerb(operands[0]))
	}
	return 0, usage("help: %q is one operand too many", operands[1])
}

// suggestVerb asks for the verb that begins alike; empty: none does.
func suggestVerb(name string) string {
	for _, v := range verbs() {
		if len(name) > 1 && (strings.HasPrefix(v.name, name) || strings.HasPrefix(name, v.name)) {
			return fmt.Sprintf(" (%s?)", v.name)
		}
	}
	return ""
}
