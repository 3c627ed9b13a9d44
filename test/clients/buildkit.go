package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/sandbox"
)

// Directories and socket of BuildKit in the sandbox.
const (
	buildkitRoot   = work + "/buildkit"
	buildkitSocket = "unix://" + work + "/buildkitd.sock"
	buildkitNet    = work + "/buildkit.conflist"
	buildkitLog    = work + "/buildkitd.log"
	buildContext   = work + "/context"
)

// steps are the number of concurrent commands of a build.
const steps = 12

// buildkitList is the network of BuildKit's own tests, with the firewall plugin that its mode
// "bridge" has.
const buildkitList = `{
  "cniVersion": "1.0.0",
  "name": "buildkit",
  "plugins": [
    { "type": "bridge", "bridge": "buildkit0", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
      "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.89.0.0/16" }]] } },
    { "type": "firewall", "ingressPolicy": "same-bridge" }
  ]
}
`

// A buildNet is the network of a build step: its interface, and the host's address on the bridge.
// In mode "cni" BuildKit counts the network of lo as the first.
type buildNet struct {
	ifname  string
	gateway netip.Addr
}

var (
	cniNet    = buildNet{"eth1", netip.MustParseAddr("10.89.0.1")}
	bridgeNet = buildNet{"eth0", netip.MustParseAddr("10.90.0.1")}
)

// A builder configures buildkitd: the network mode, the directory of plugins, and the size of the
// pool of namespaces.
type builder struct {
	mode, plugins string
	pool          int
}

func (b builder) conf(cgroup string) string {
	return fmt.Sprintf(`root = %q
[grpc]
  address = [%q]
[worker.containerd]
  enabled = false
[worker.oci]
  enabled = true
  gc = false
  snapshotter = "overlayfs"
  binary = "runc"
  defaultCgroupParent = %q
  networkMode = %q
  cniConfigPath = %q
  cniBinaryPath = %q
  cniPoolSize = %d
  bridgeName = "buildkit1"
  bridgeSubnet = "10.90.0.0/16"
`, buildkitRoot, buildkitSocket, cgroup+"/buildkit", b.mode, buildkitNet, b.plugins, b.pool)
}

// buildkit builds in each mode that uses CNI plugins. All commands of a build wait for each other
// at a server on the host, so they run at the same time.
func (h *host) buildkit() error {
	return walk(
		stage{"BuildKit, cni, without a pool: twelve steps at once, one address each", func() error {
			return h.built(builder{mode: "cni", plugins: pluginDir}, cniNet)
		}},
		stage{"BuildKit, cni, a pool of 16 namespaces: the same, twice, in these", h.buildkitPool},
		stage{"buildkitd is killed: the next one detaches what is left", h.buildkitKilled},
		stage{"BuildKit, bridge, plugins named buildkit-cni-…: the same", h.buildkitBridge},
	)
}

// built starts the daemon, builds, and stops the daemon, which then detaches everything.
func (h *host) built(b builder, net buildNet) error {
	if err := h.startBuildkit(b); err != nil {
		return err
	}
	_, err := h.build(net)
	return errors.Join(err, h.endBuildkit(unix.SIGTERM), eventually(h.empty))
}

// buildkitPool builds twice with a full pool, which has the same size afterwards.
func (h *host) buildkitPool() error {
	const size = 16
	if err := h.startBuildkit(builder{mode: "cni", plugins: pluginDir, pool: size}); err != nil {
		return err
	}
	if err := eventually(func() error { return attachedTo("buildkit", size) }); err != nil {
		return err
	}
	for range 2 {
		if _, err := h.build(cniNet); err != nil {
			return err
		}
	}
	return errors.Join(attachedTo("buildkit", size), h.endBuildkit(unix.SIGTERM), eventually(h.empty))
}

// buildkitKilled leaves a pool of namespaces, whose names a new daemon finds.
func (h *host) buildkitKilled() error {
	b := builder{mode: "cni", plugins: pluginDir, pool: 4}
	if err := h.startBuildkit(b); err != nil {
		return err
	}
	if err := eventually(func() error { return attachedTo("buildkit", b.pool) }); err != nil {
		return err
	}
	if err := h.endBuildkit(unix.SIGKILL); err != nil {
		return err
	}
	b.pool = 0
	if err := h.startBuildkit(b); err != nil {
		return err
	}
	// It keeps the one namespace that it started with.
	err := eventually(func() error { return attachedTo("buildkit", 1) })
	return errors.Join(err, h.endBuildkit(unix.SIGTERM), eventually(h.empty))
}

// attachedTo checks the number of leases of a network.
func attachedTo(network string, want int) error {
	files, err := filepath.Glob("/var/lib/cni/networks/" + network + "/10.*")
	if err == nil && len(files) != want {
		err = fmt.Errorf("%d leases of %s, want %d", len(files), network, want)
	}
	return err
}

// buildkitBridge uses the mode in which BuildKit writes the network itself, finds the plugins in
// PATH by the names that they have in its image, and deletes the bridge at its end.
func (h *host) buildkitBridge() error {
	dir := filepath.Join(work, "named")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, plugin := range []string{"bridge", "loopback", "host-local", "firewall"} {
		if err := os.Symlink(filepath.Join(pluginDir, "cnibox"), filepath.Join(dir, "buildkit-cni-"+plugin)); err != nil {
			return err
		}
	}
	path := os.Getenv("PATH")
	defer os.Setenv("PATH", path)
	if err := os.Setenv("PATH", dir+":"+path); err != nil {
		return err
	}
	return h.built(builder{mode: "bridge", plugins: dir}, bridgeNet)
}

// startBuildkit returns when the daemon responds.
func (h *host) startBuildkit(b builder) error {
	conf := filepath.Join(work, "buildkitd.toml")
	err := errors.Join(os.WriteFile(conf, []byte(b.conf(h.cgroup)), 0o600), h.writeList(buildkitNet, []byte(buildkitList)))
	if err != nil {
		return err
	}
	output, err := os.Create(buildkitLog)
	if err != nil {
		return err
	}
	defer output.Close()
	h.buildkitd = exec.Command("buildkitd", "--config", conf)
	h.buildkitd.Stdout, h.buildkitd.Stderr = output, output
	if err := h.buildkitd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		h.buildkitd.Wait() // exits with status 1 after a signal
		close(ended)
	}()
	h.buildkitEnd = ended
	err = eventually(func() error { _, err := buildctl("debug", "workers"); return err })
	if err != nil {
		text, _ := os.ReadFile(buildkitLog)
		return fmt.Errorf("buildkitd does not answer: %w: %s", err, text)
	}
	return nil
}

// endBuildkit stops the daemon by a signal.
func (h *host) endBuildkit(signal os.Signal) error {
	if err := h.buildkitd.Process.Signal(signal); err != nil {
		return err
	}
	<-h.buildkitEnd
	return nil
}

func buildctl(args ...string) (string, error) {
	out, _, err := sandbox.Call{Argv: append([]string{"buildctl", "--addr", buildkitSocket}, args...), Env: os.Environ()}.Run()
	return string(out), err
}

// dockerfile has a stage for each step, and a last one that copies from all. A step fetches the
// page from the server on the host, and looks up a name at the server outside. BuildKit would merge
// equal steps.
func dockerfile(ifname string, server netip.AddrPort) string {
	var b strings.Builder
	b.WriteString("FROM scratch AS base\nCOPY root /\n")
	for i := range steps {
		fmt.Fprintf(&b, "FROM base AS step%d\nRUN (%s && %s) >/out # %d\n", i, asksOutsideBy(ifname), fetchCommand(server, timeLimit), i)
	}
	b.WriteString("FROM scratch\n")
	for i := range steps {
		fmt.Fprintf(&b, "COPY --from=step%d /out /%d\n", i, i)
	}
	return b.String()
}

// build builds the image, whose files are the outputs of the steps, and returns how long that took.
func (h *host) build(n buildNet) (time.Duration, error) {
	m := &meeting{}
	server, err := m.serve()
	if err != nil {
		return 0, err
	}
	defer m.close()
	if err := writeContext(dockerfile(n.ifname, netip.AddrPortFrom(n.gateway, server))); err != nil {
		return 0, err
	}
	result := filepath.Join(work, "built")
	if err := os.RemoveAll(result); err != nil {
		return 0, err
	}
	begin := time.Now()
	_, err = buildctl("build", "--progress", "plain", "--no-cache", "--frontend", "dockerfile.v0",
		"--local", "context="+buildContext, "--local", "dockerfile="+buildContext, "--output", "type=local,dest="+result)
	took := time.Since(begin)
	if err != nil {
		text, _ := os.ReadFile(buildkitLog)
		return 0, fmt.Errorf("%w: %s", err, text)
	}
	net, err := n.gateway.Prefix(16)
	if err != nil {
		return 0, err
	}
	return took, errors.Join(checkOutputs(result, net), m.checkClients(net))
}

// checkOutputs checks the output of each step.
func checkOutputs(dir string, net netip.Prefix) error {
	for i := range steps {
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			return err
		}
		if err := namesFound(string(text), strings.TrimSuffix(net.Masked().Addr().String(), "0.0")); err != nil {
			return err
		}
		if !strings.HasSuffix(string(text), page) {
			return fmt.Errorf("step %d has not the page: %s", i, text)
		}
	}
	return nil
}

// writeContext writes the build context.
func writeContext(dockerfile string) error {
	if err := os.RemoveAll(buildContext); err != nil {
		return err
	}
	err := busyboxIn(filepath.Join(buildContext, "root"))
	return errors.Join(err, os.WriteFile(filepath.Join(buildContext, "Dockerfile"), []byte(dockerfile), 0o644))
}

// A meeting is a server that sends the page to the steps when all of them have connected.
type meeting struct {
	listener net.Listener
	mu       sync.Mutex
	guests   []netip.Addr
	waiting  []net.Conn
}

// serve listens on all addresses of the host and returns the port.
func (m *meeting) serve() (port uint16, err error) {
	if m.listener, err = net.Listen("tcp4", ":0"); err != nil {
		return 0, err
	}
	go func() {
		for {
			c, err := m.listener.Accept()
			if err != nil {
				return
			}
			m.arrive(c)
		}
	}()
	at, err := netip.ParseAddrPort(m.listener.Addr().String())
	return at.Port(), err
}

// arrive keeps a connection until all steps have connected, and then answers them.
func (m *meeting) arrive(c net.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = append(m.waiting, c)
	if from, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
		m.guests = append(m.guests, from.Addr())
	}
	if len(m.waiting) < steps {
		return
	}
	for _, c := range m.waiting {
		fmt.Fprint(c, page)
		c.Close()
	}
	m.waiting = nil
}

// checkClients checks that each step connected from its own address in the network.
func (m *meeting) checkClients(net netip.Prefix) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	slices.SortFunc(m.guests, netip.Addr.Compare)
	distinct := slices.Compact(slices.Clone(m.guests))
	outside := slices.ContainsFunc(distinct, func(a netip.Addr) bool { return !net.Contains(a) })
	if len(m.guests) != steps || len(distinct) != steps || outside {
		return fmt.Errorf("guests of the server: %v, want %d of %v, one each", m.guests, steps, net)
	}
	return nil
}

func (m *meeting) close() {
	m.listener.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.waiting {
		c.Close()
	}
}

// rounds is the number of builds by each set of plugins, in turns.
const rounds = 5

// buildkitTimes builds in turns with these plugins and with the reference's, by daemons without a
// pool, and prints the times, which depend on the load of the machine.
func (h *host) buildkitTimes() error {
	if _, err := os.Stat(filepath.Join(h.reference, "bridge")); h.reference == "" || err != nil {
		fmt.Println("SKIPPED: times of BuildKit: no reference plugins here: `make reference` builds them")
		return nil
	}
	return step("BuildKit: builds by turns with these and the reference plugins", func() error {
		took := map[string][]time.Duration{}
		for range rounds {
			for _, dir := range []string{pluginDir, h.reference} {
				if err := h.startBuildkit(builder{mode: "cni", plugins: dir}); err != nil {
					return err
				}
				one, err := h.build(cniNet)
				if err := errors.Join(err, h.endBuildkit(unix.SIGTERM)); err != nil {
					return err
				}
				took[dir] = append(took[dir], one)
			}
		}
		ours, theirs := took[pluginDir], took[h.reference]
		slices.Sort(ours)
		slices.Sort(theirs)
		shorter := func(i int) float64 { return 100 * (1 - ours[i].Seconds()/theirs[i].Seconds()) }
		fmt.Printf("     %d steps, median: %d ms, reference %d ms: %.0f %% shorter; fastest: %d ms, reference %d ms: %.0f %% shorter\n", steps,
			ours[rounds/2].Milliseconds(), theirs[rounds/2].Milliseconds(), shorter(rounds/2),
			ours[0].Milliseconds(), theirs[0].Milliseconds(), shorter(0))
		return nil
	})
}
