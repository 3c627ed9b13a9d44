package twin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
)

// An object is an entry in the JSON output of iproute2.
type object map[string]any

// text returns a string member; empty: absent.
func (o object) text(key string) string {
	s, _ := o[key].(string)
	return s
}

// Members without information about plugins, and those that the kernel counts or changes by itself.
// The number of queues of the reference's veths is that of the processors, ours is one. What a bridge
// can offload is what its last port can.
var volatile = []string{
	"tso_max_size", "tso_max_segs",
	"num_tx_queues", "num_rx_queues",
	"ifindex", "link_index", "link_netnsid", "operstate", "new_ifindex", "stats", "stats64", "refcnt",
	"tentative", "dadfailed", "flags", "timers", "promiscuity", "index", "expires",
	"linkinfo.info_data.bridge_id", "linkinfo.info_data.root_id", "linkinfo.info_data.root_port", "linkinfo.info_data.root_path_cost",
	"linkinfo.info_data.topology_change", "linkinfo.info_data.topology_change_detected", "linkinfo.info_data.hello_timer",
	"linkinfo.info_data.tcn_timer", "linkinfo.info_data.topology_change_timer", "linkinfo.info_data.gc_timer",
	"linkinfo.info_slave_data.state", "linkinfo.info_slave_data.bridge_id", "linkinfo.info_slave_data.root_id",
	"linkinfo.info_slave_data.designated_port", "linkinfo.info_slave_data.designated_cost", "linkinfo.info_slave_data.id",
	"linkinfo.info_slave_data.no", "linkinfo.info_slave_data.hold_timer", "linkinfo.info_slave_data.message_age_timer",
	"linkinfo.info_slave_data.forward_delay_timer", "linkinfo.info_slave_data.topology_change_ack",
}

// forever is the lifetime of an address that does not expire, in seconds.
const forever = float64(1<<32 - 1)

// peerStates are states of a link that depend on its peer.
var peerStates = []string{"LOWER_UP", "NO-CARRIER", "M-DOWN", "DORMANT"}

// list runs a tool of iproute2 with -batch. It prints one array for each line of input, and nothing
// for some empty ones.
func list(ns *netns.NS, lines string, argv ...string) (all [][]object, err error) {
	out, err := tool(ns, lines, append(argv, "-batch", "-")...)
	if err != nil {
		return nil, err
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var objects []object
		err := dec.Decode(&objects)
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", argv, err)
		}
		all = append(all, objects)
	}
}

// state records the state of host and containers at a point of the run.
func (w *world) state(point string) error {
	err := w.namespace(point+" host", w.host)
	for _, c := range w.conts {
		if c.NS != nil {
			err = errors.Join(err, w.namespace(point+" "+c.id, c.NS))
		}
	}
	return errors.Join(err, w.files(point))
}

// namespace records the state of a namespace, with as few processes as possible.
func (w *world) namespace(at string, ns *netns.NS) error {
	for _, what := range []struct {
		lines string
		tools []string
	}{
		{"link show\naddr show\nroute show table all\nrule show\n", []string{"ip", "-j", "-d"}},
		{"rule show\n", []string{"ip", "-j", "-6"}},
		{"qdisc show\n", []string{"tc", "-j"}},
	} {
		all, err := list(ns, what.lines, what.tools...)
		if err != nil {
			return err
		}
		for _, objects := range all {
			for _, o := range objects {
				w.object(at, o)
			}
		}
	}
	return errors.Join(w.filters(at, ns), w.vlans(at, ns), w.settings(at, ns))
}

// object records an object. Its members determine its kind.
func (w *world) object(at string, o object) {
	switch {
	case o["addr_info"] != nil:
		w.addrs(at, o)
	case o["ifname"] != nil:
		w.link(at, o)
	case o["kind"] != nil:
		w.qdisc(at, o)
	case o["dst"] != nil && o["priority"] == nil:
		w.route(at, o)
	default:
		w.record("%s rule %s", at, strings.Join(members(o), " "))
	}
}

// link records its flags, and a line for each member that a new link of its kind has not.
func (w *world) link(at string, o object) {
	name := o.text("ifname")
	if flags, ok := o["flags"].([]any); ok {
		var keep []string
		for _, f := range flags {
			if s, _ := f.(string); !slices.Contains(peerStates, s) {
				keep = append(keep, s)
			}
		}
		slices.Sort(keep)
		w.record("%s link %s flags=%s", at, name, strings.Join(keep, ","))
	}
	plain, has := w.plain[kind(o)], map[string]bool{}
	for _, kv := range members(o) {
		key, _, _ := strings.Cut(kv, "=")
		has[key] = true
		if !slices.Contains(plain, kv) {
			w.record("%s link %s %s", at, name, kv)
		}
	}
	for _, kv := range plain {
		if key, _, _ := strings.Cut(kv, "="); !has[key] {
			w.record("%s link %s without %s", at, name, key)
		}
	}
}

// addrs records the addresses of a link; flags about how one was set are lines of their own. It
// leaves out link-local ones, which the kernel adds asynchronously.
func (w *world) addrs(at string, o object) {
	infos, _ := o["addr_info"].([]any)
	for _, info := range infos {
		a := object(info.(map[string]any))
		if strings.HasPrefix(a.text("local"), "fe80:") {
			continue
		}
		at := fmt.Sprintf("%s addr %s %s/%v", at, o.text("ifname"), a.text("local"), a["prefixlen"])
		for _, key := range []string{"nodad", "noprefixroute"} {
			if a[key] == true {
				w.record("%s is %s", at, key)
			}
			delete(a, key)
		}
		for _, key := range []string{"local", "prefixlen", "family"} {
			delete(a, key)
		}
		w.record("%s %s", at, strings.Join(members(a), " "))
	}
}

// route records routes except those of table local. It leaves out link-local and multicast ones,
// which the kernel adds asynchronously.
func (w *world) route(at string, o object) {
	dst := o.text("dst")
	if o.text("table") == "local" || strings.HasPrefix(dst, "fe80:") || dst == "ff00::/8" || o.text("type") == "multicast" {
		return
	}
	w.record("%s route %s %s", at, dst, strings.Join(members(o), " "))
}

// qdisc records a qdisc with its options. It leaves out those that the kernel has set by itself: link
// says when one is not what other links of the kind have.
func (w *world) qdisc(at string, o object) {
	if o.text("handle") == "0:" {
		return
	}
	w.record("%s qdisc %s %s", at, o.text("dev"), strings.Join(members(o), " "))
}

// members returns the members of an object as sorted "name=value", without the volatile ones.
func members(o object) (list []string) {
	var walk func(path string, v any)
	walk = func(path string, v any) {
		if slices.Contains(volatile, path) {
			return
		}
		switch v := v.(type) {
		case map[string]any:
			for key, inner := range v {
				walk(path+"."+key, inner)
			}
		case []any:
			if len(v) > 0 {
				b, _ := json.Marshal(v)
				list = append(list, path+"="+string(b))
			}
		default:
			if v != forever {
				list = append(list, fmt.Sprintf("%s=%v", path, v))
			}
		}
	}
	for key, v := range o {
		if key != "ifname" && (key != "dev" || o.text("kind") == "") {
			walk(key, v)
		}
	}
	slices.Sort(list)
	return list
}

// filters records the filters of links that have an ingress qdisc; other qdiscs have none here.
func (w *world) filters(at string, ns *netns.NS) error {
	for _, l := range w.lines {
		rest, ok := strings.CutPrefix(l, at+" qdisc ")
		name, rest, _ := strings.Cut(rest, " ")
		if !ok || !strings.Contains(rest, "kind=ingress") && !strings.Contains(rest, "kind=clsact") {
			continue
		}
		all, err := list(ns, "filter show dev "+w.names.link(name)+" ingress\n", "tc", "-j")
		if err != nil {
			return err
		}
		for _, objects := range all {
			for _, o := range objects {
				w.record("%s filter %s %s", at, name, strings.Join(members(o), " "))
			}
		}
	}
	return nil
}

// vlans records the VLANs of bridge ports, if a bridge filters VLANs. Other ports have them, too,
// but unused.
func (w *world) vlans(at string, ns *netns.NS) error {
	filtering := func(l string) bool {
		return strings.HasPrefix(l, at) && strings.HasSuffix(l, "vlan_filtering=1")
	}
	if !slices.ContainsFunc(w.lines, filtering) {
		return nil
	}
	all, err := list(ns, "vlan show\n", "bridge", "-j")
	for _, objects := range all {
		for _, o := range objects {
			vlans, _ := o["vlans"].([]any)
			for _, v := range vlans {
				b, _ := json.Marshal(v)
				w.record("%s vlan %s %s", at, o.text("ifname"), b)
			}
		}
	}
	return err
}

// settings records the sysctls of links that differ from the namespace's defaults, and the global
// ones.
func (w *world) settings(at string, ns *netns.NS) error {
	return ns.Do(func() error {
		for _, family := range []string{"ipv4", "ipv6"} {
			conf := "/proc/sys/net/" + family + "/conf/"
			links, err := os.ReadDir(conf)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			defaults := readSettings(conf + "default")
			for _, l := range links {
				for key, value := range readSettings(conf + l.Name()) {
					if l.Name() == "all" || value != defaults[key] {
						w.record("%s sysctl net/%s/conf/%s/%s=%s", at, family, l.Name(), key, value)
					}
				}
			}
		}
		b, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
		w.record("%s sysctl net/ipv4/ip_forward=%s", at, bytes.TrimSpace(b))
		return err
	})
}

// readSettings returns the readable ones. There are a hundred for each link, so it takes three
// system calls for each, where [os.ReadFile] takes seven.
func readSettings(dir string) map[string]string {
	values := map[string]string{}
	entries, _ := os.ReadDir(dir)
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return values
	}
	defer unix.Close(d)
	var value [4096]byte
	for _, e := range entries {
		f, err := unix.Openat(d, e.Name(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if n, err := unix.Read(f, value[:]); err == nil {
			values[e.Name()] = string(bytes.TrimSpace(value[:n]))
		}
		unix.Close(f)
	}
	return values
}

// files records the files in the directory, with their contents if they are text, and symbolic
// links; our links point to namespaces.
func (w *world) files(point string) error {
	return filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type() == fs.ModeSymlink {
			target, err := os.Readlink(path)
			if !strings.HasPrefix(target, "/proc/") {
				w.record("%s file %s -> %q", point, path, target)
			}
			return err
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0 {
			b = []byte("not text")
		}
		w.record("%s file %s %.200q", point, path, w.names.plain(string(b))) // plain first: paths differ in length
		return err
	})
}

// result records the last plugin's result.
func (w *world) result(c *container) error {
	var o object
	if err := json.Unmarshal(c.results[len(c.results)-1], &o); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			if len(v) == 0 {
				w.record("ADD %s result %s {}", c.id, path)
			}
			for _, key := range sorted(v) {
				walk(strings.TrimPrefix(path+"."+key, "."), v[key])
			}
		case []any:
			for i, inner := range v {
				walk(fmt.Sprintf("%s[%d]", path, i), inner)
			}
		default:
			w.record("ADD %s result %s %v", c.id, path, v)
		}
	}
	walk("", map[string]any(o))
	return nil
}

// sorted returns the keys of an object.
func sorted(m map[string]any) (keys []string) {
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
