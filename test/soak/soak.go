package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// networks have the configuration lists of attachments. The third uses a link of the host.
var networks = map[string]string{
	"edge": `{"cniVersion":"1.1.0","name":"edge","plugins":[
 {"type":"bridge","bridge":"edge0","isDefaultGateway":true,"ipMasq":true,"hairpinMode":true,"macspoofchk":true,
  "ipam":{"type":"host-local","ranges":[[{"subnet":"10.90.0.0/24"}],[{"subnet":"fd00:90::/64"}]]}},
 {"type":"portmap","capabilities":{"portMappings":true}},
 {"type":"tuning","mtu":1400},
 {"type":"bandwidth","capabilities":{"bandwidth":true},"ingressRate":100000000,"ingressBurst":1000000},
 {"type":"firewall"}]}`,
	"pair": `{"cniVersion":"1.0.0","name":"pair","plugins":[
 {"type":"ptp","ipMasq":true,"ipam":{"type":"host-local","subnet":"10.91.0.0/24"}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}`,
	"lan": `{"cniVersion":"1.1.0","name":"lan","plugins":[
 {"type":"macvlan","master":"up0","ipam":{"type":"host-local","subnet":"10.92.0.0/24"}},
 {"type":"sbr"}]}`,
}

const (
	binDir  = "/run/soak/bin"
	confDir = "/run/soak/net.d"
	slots   = 12              // most attachments
	restAt  = 60              // verbs between two pauses
	verbs   = 2 * time.Minute // limit of one verb
)

// A slot is a namespace that may be attached to a network.
type slot struct {
	name    string
	network string
	mu      sync.Mutex
	fresh   bool // it has no namespace
	args    []string
}

// A soak is a run.
type soak struct {
	bin   string
	seed  uint64
	slots []*slot
	rest  sync.RWMutex // held by verbs for reading
	count atomic.Int64 // of verbs
	mu    sync.Mutex
	did   map[string]int
}

// newSoak makes the host: an uplink, and the plugins.
func newSoak(bin string, seed uint64) (*soak, error) {
	s := &soak{bin: bin, seed: seed, did: map[string]int{}}
	for _, dir := range []string{binDir, confDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	for name, list := range networks {
		if err := os.WriteFile(filepath.Join(confDir, name+".conflist"), []byte(list), 0o644); err != nil {
			return nil, err
		}
	}
	for _, argv := range [][]string{
		{bin, "install", binDir}, {"ip", "netns", "add", "far"}, {"ip", "link", "add", "up0", "type", "veth", "peer", "name", "far0", "netns", "far"},
		{"ip", "link", "set", "up0", "up", "addrgenmode", "none"}, {"ip", "-n", "far", "link", "set", "far0", "up"},
		{"ip", "addr", "add", "192.0.2.2/24", "dev", "up0"}, {"ip", "route", "add", "default", "via", "192.0.2.1"},
	} {
		if _, err := command(argv...); err != nil {
			return nil, err
		}
	}
	names := slices.Sorted(maps.Keys(networks))
	for i := range slots {
		sl := &slot{name: fmt.Sprintf("soak%d", i), network: names[i%len(names)], fresh: true}
		if sl.network != "lan" {
			sl.args = []string{"-p", fmt.Sprintf("%d:80", 8000+i), "-p", fmt.Sprintf("%d:53/udp", 8000+i)}
		}
		s.slots = append(s.slots, sl)
	}
	return s, nil
}

// command runs a program, and returns its stdout. The error has its stderr.
func command(argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), verbs)
	defer cancel()
	return finish(exec.CommandContext(ctx, argv[0], argv[1:]...))
}

func finish(cmd *exec.Cmd) (string, error) {
	var out, diag strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(out.String()+diag.String()))
	}
	return out.String(), nil
}

func (s *soak) cni(args ...string) (string, error) {
	return finish(s.verb(context.Background(), args...))
}

func (s *soak) verb(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(binDir, "cni-exec"), args...)
	cmd.Env = []string{"CNI_PATH=" + binDir, "NETCONFPATH=" + confDir, "PATH=" + os.Getenv("PATH")}
	return cmd
}

// once attaches and detaches on each network, and leaves what the host keeps.
func (s *soak) once() error {
	for _, sl := range s.slots[:len(networks)] {
		if err := errors.Join(s.add(sl), s.del(sl), s.unpin(sl)); err != nil {
			return err
		}
	}
	return s.removeNetworks()
}

// run runs the workers and prints what they did.
func (s *soak) run(limit time.Duration, workers int) error {
	if err := s.once(); err != nil {
		return err
	}
	before, err := held()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	errs := make(chan error, workers)
	for w := range workers {
		go func() { errs <- s.work(ctx, rand.New(rand.NewPCG(s.seed, uint64(w)))) }()
	}
	for range workers {
		if e := <-errs; e != nil && err == nil {
			err = e
			cancel()
		}
	}
	if err == nil {
		err = s.atRest()
	}
	if err == nil {
		err = s.end()
	}
	if err == nil { // the last flush may have deleted tables that nothing has needed since
		err = s.once()
	}
	s.report()
	if err != nil {
		return err
	}
	after, err := held()
	if err != nil {
		return err
	}
	if diff := difference(before, after); diff != "" {
		return fmt.Errorf("what is left is not what was there before:\n%s", diff)
	}
	fmt.Printf("soak: PASS: %d verbs\n", s.count.Load())
	return nil
}

func (s *soak) report() {
	for _, name := range slices.Sorted(maps.Keys(s.did)) {
		fmt.Printf("  %6d  %s\n", s.did[name], name)
	}
}

// note counts an action.
func (s *soak) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.did[what]++
}

// work takes random actions, and pauses from time to time for [soak.atRest].
func (s *soak) work(ctx context.Context, r *rand.Rand) error {
	for ctx.Err() == nil {
		s.rest.RLock()
		err := s.step(r)
		s.rest.RUnlock()
		if err != nil {
			return err
		}
		if s.count.Add(1)%restAt == 0 {
			s.rest.Lock()
			err := s.atRest()
			s.rest.Unlock()
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// step takes a random action. Concurrent verbs of one attachment wait for each other in cni-exec.
func (s *soak) step(r *rand.Rand) error {
	sl := s.slots[r.IntN(len(s.slots))]
	switch n := r.IntN(100); {
	case n < 40:
		return s.toggle(sl)
	case n < 60:
		return s.killed(sl, r)
	case n < 65:
		return s.vanish(sl, false)
	case n < 70:
		return s.vanish(sl, true)
	case n < 74:
		s.note("nft flush ruleset")
		_, err := command("nft", "flush", "ruleset")
		return err
	case n < 77:
		return s.breakLink(r)
	case n < 85: // it may fail while other verbs change things
		s.note("reload")
		s.cni("reload")
	case n < 90:
		s.note("gc")
		s.cni("gc")
	default:
		verb := [][]string{{"ls"}, {"ls", "-o", "json"}, {"tree"}, {"doctor"}, {"check"}, {"ls", "-o", "openmetrics"}, {"status", sl.network}}[r.IntN(7)]
		s.note(verb[0])
		return s.harmless(verb)
	}
	return nil
}

// harmless runs a verb that may find faults (exit code 1), or another verb at work (3), and must not fail
// otherwise.
func (s *soak) harmless(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), verbs)
	defer cancel()
	_, err := finish(s.verb(ctx, args...))
	if exit := new(exec.ExitError); errors.As(err, &exit) && (exit.ExitCode() == 1 || exit.ExitCode() == 3) {
		return nil
	}
	return err
}

// toggle attaches a slot that is not attached, or detaches one that is.
func (s *soak) toggle(sl *slot) error {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.fresh {
		s.note("add")
		err := s.add(sl)
		if err == nil {
			return nil
		}
		s.note("add failed: " + errorKind(err))
		return s.clean(sl)
	}
	s.note("del")
	return errors.Join(s.del(sl), s.unpin(sl))
}

// errorKind returns an error's text for the report, without what differs from one to the next.
func errorKind(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, `"msg":`); i >= 0 {
		text = text[i+6:]
	}
	if len(text) > 90 {
		text = text[:90]
	}
	return strings.Join(strings.Fields(text), " ")
}

func (sl *slot) path() string { return "/run/netns/" + sl.name }

func (s *soak) add(sl *slot) error {
	out, err := s.cni(append([]string{"add", "--create", "--container-id", sl.name, sl.network, sl.name}, sl.args...)...)
	if err != nil {
		return err
	}
	sl.fresh = false
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil || len(result.IPs) == 0 {
		return fmt.Errorf("add %s %s printed %q: %w", sl.network, sl.name, out, err)
	}
	return nil
}

func (s *soak) del(sl *slot) error {
	_, err := s.cni("del", "--container-id", sl.name, sl.network, sl.name)
	return err
}

// unpin deletes the namespace.
func (s *soak) unpin(sl *slot) error {
	sl.fresh = true
	if _, err := os.Lstat(sl.path()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	_, err := command("ip", "netns", "del", sl.name)
	return err
}

// clean deletes what a failed verb has left.
func (s *soak) clean(sl *slot) error { return errors.Join(s.del(sl), s.unpin(sl)) }

// killed kills a verb at a random time, and calls DEL as a runtime does then.
func (s *soak) killed(sl *slot, r *rand.Rand) error {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	args := append([]string{"add", "--create", "--container-id", sl.name, sl.network, sl.name}, sl.args...)
	if !sl.fresh {
		args = []string{"del", "--container-id", sl.name, sl.network, sl.name}
	}
	s.note("killed " + args[0])
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(60))*time.Millisecond)
	defer cancel()
	finish(s.verb(ctx, args...)) // SIGKILL
	return s.clean(sl)
}

// vanish deletes a namespace without DEL, or replaces it by a new one with the same name.
func (s *soak) vanish(sl *slot, replace bool) error {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.fresh {
		return nil
	}
	s.note(map[bool]string{false: "namespace deleted", true: "namespace replaced"}[replace])
	if err := s.unpin(sl); err != nil {
		return err
	}
	if replace {
		if _, err := command("ip", "netns", "add", sl.name); err != nil {
			return err
		}
	}
	return s.clean(sl)
}

// breakLink deletes a link of the host or sets it down.
func (s *soak) breakLink(r *rand.Rand) error {
	s.note("link deleted or down")
	out, err := command("ip", "-br", "link", "show", "type", []string{"veth", "bridge"}[r.IntN(2)])
	if err != nil {
		return err
	}
	var names []string
	for line := range strings.Lines(out) {
		name, _, _ := strings.Cut(strings.Fields(line)[0], "@")
		if name != "up0" && name != "far0" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	name := names[r.IntN(len(names))]
	if strings.HasPrefix(name, "edge") && r.IntN(2) == 0 {
		command("ip", "link", "del", name) // may be gone
		return nil
	}
	command("ip", "link", "set", name, "down")
	return nil
}

// atRest runs while no verb runs: after gc and reload, CHECK finds no fault, and each lease belongs
// to an attachment.
func (s *soak) atRest() error {
	s.note("brought to rest")
	if _, err := s.cni("gc"); err != nil {
		return err
	}
	if _, err := s.cni("reload"); err != nil {
		return err
	}
	if _, err := s.cni("check"); err != nil {
		return err
	}
	out, err := s.cni("ls", "-o", "json")
	if err != nil {
		return err
	}
	var list struct {
		Attachments []struct {
			ContainerID string
			Addresses   []netip.Prefix
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return err
	}
	all := list.Attachments
	want := map[netip.Addr]string{}
	for _, a := range all {
		for _, p := range a.Addresses {
			if other := want[p.Addr()]; other != "" {
				return fmt.Errorf("%s and %s both have %s", other, a.ContainerID, p.Addr())
			}
			want[p.Addr()] = a.ContainerID
		}
	}
	attached := 0
	for _, sl := range s.slots {
		if !sl.fresh {
			attached++
		}
	}
	if attached != len(all) {
		return fmt.Errorf("%d attachments were made, ls has %d: %s", attached, len(all), out)
	}
	files, err := filepath.Glob("/var/lib/cni/networks/*/*")
	if err != nil {
		return err
	}
	for _, f := range files {
		if a, err := netip.ParseAddr(filepath.Base(f)); err == nil && want[a] == "" {
			return fmt.Errorf("the lease %s is of no attachment", f)
		}
	}
	return nil
}

// end detaches everything.
func (s *soak) end() error {
	for _, sl := range s.slots {
		if err := s.clean(sl); err != nil {
			return err
		}
	}
	return s.removeNetworks()
}

func (s *soak) removeNetworks() error {
	for name := range networks {
		if _, err := s.cni("rm", name); err != nil {
			return err
		}
	}
	return nil
}
