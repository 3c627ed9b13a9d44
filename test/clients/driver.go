package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/test/debian"
	"github.com/cnibox/cnibox/test/sandbox"
)

// Host ports of the containers.
const (
	driverPort  = 8580
	driverRange = 8590 // and the next one
)

// driverConf makes podman find the driver. Mixed cgroup hierarchies are not for podman 5.
const driverConf = `[network]
network_backend = "netavark"
netavark_plugin_dirs = ["/usr/local/libexec/netavark"]
[engine]
runtime = "crun"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
cgroups = "disabled"
log_driver = "k8s-file"
`

// A driverHost is podman 5 in a root directory of its own.
type driverHost struct{ system }

// driver runs containers of podman 5 on networks of the driver cnibox.
func (h *host) driver() error {
	d := &driverHost{system{host: h}}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	return walk(
		stage{"podman 5 of trixie, netavark_plugin_dirs", func() error { return d.install(ctx) }},
		stage{"podman network create -d cnibox: subnets that do not overlap", d.networks},
		stage{"podman run -p: from the host and from outside, and what inspect shows", d.published},
		stage{"podman restart; network reload after the rules were flushed", d.reload},
		stage{"podman network connect and disconnect, ports published all the while", d.second},
		stage{"isolated networks: neighbours, outside, but not each other", d.isolated},
		stage{"static address and MAC, interface name, MTU, port ranges, UDP", d.asked},
		stage{"an internal network", d.internal},
		stage{"-o network=clients, a network of CNI", d.named},
		stage{"podman kube play: two services", d.play},
		stage{"what cannot work is refused, in netavark's words", d.refused},
		stage{"podman network rm; no bridge, rule or entry is left", d.end},
		stage{"without root, by pasta: a port, neighbours, restart, nothing is left", d.rootless},
	)
}

func (d *driverHost) install(ctx context.Context) error {
	cache, err := debian.Cache()
	if err != nil {
		return err
	}
	root := filepath.Join(work, "trixie")
	sbin := filepath.Join(root, "usr/local/sbin")
	if err := errors.Join(d.configure(""), os.MkdirAll(root, 0o755)); err != nil {
		return err
	}
	if err := debian.Podman5.Unpack(cache, root); err != nil {
		return err
	}
	if err := saveImage(); err != nil {
		return err
	}
	binary, err := os.ReadFile(d.bin)
	if err != nil {
		return err
	}
	list, err := os.ReadFile(filepath.Join(confDir, "10-clients.conflist"))
	if err != nil {
		return err
	}
	image, err := os.ReadFile(archiveFile)
	if err != nil {
		return err
	}
	err = debian.Write(root, map[string]string{
		"etc/containers/containers.conf":     driverConf,
		"etc/containers/policy.json":         podmanFiles["policy.json"],
		"etc/cni/net.d/10-clients.conflist":  string(list),
		"srv/image.tar":                      string(image),
		"usr/local/libexec/netavark/.driver": "",
		"usr/local/sbin/.cnibox":             "", // Write makes the directories
		"etc/containers/registries.conf":     podmanFiles["registries.conf"],
		"etc/hosts":                          "127.0.0.1 localhost\n",
		"etc/containers/storage.conf":        "[storage]\ndriver = \"overlay\"\nrunroot = \"/run/containers\"\ngraphroot = \"/var/lib/containers/storage\"\n",
		"srv/two.yaml":                       driverServices,
	})
	err = errors.Join(err, os.WriteFile(filepath.Join(sbin, "cnibox"), binary, 0o755), os.Symlink("cnibox", filepath.Join(sbin, "cni-exec")),
		os.Symlink("/usr/local/sbin/cnibox", filepath.Join(root, "usr/local/libexec/netavark/cnibox")))
	if err != nil {
		return err
	}
	if err := d.enter(ctx, root); err != nil {
		return err
	}
	_, err = d.podman("load", "-q", "-i", "/srv/image.tar")
	return err
}

func (d *driverHost) podman(args ...string) (string, error) {
	return d.inside(append([]string{"podman"}, args...)...)
}

// podmen runs several commands.
func (d *driverHost) podmen(lines ...string) error {
	for _, line := range lines {
		if _, err := d.podman(strings.Fields(line)...); err != nil {
			return err
		}
	}
	return nil
}

// web starts a container that serves the page.
func (d *driverHost) web(name string, flags ...string) error {
	_, err := d.podman(append(append([]string{"run", "-d", "--pull", "never", "--name", name}, flags...), image)...)
	return err
}

// addr returns the address of a container in a network, by its template.
func (d *driverHost) addr(name, network, member string) (netip.Addr, error) {
	text, err := d.podman("inspect", "-f", fmt.Sprintf("{{(index .NetworkSettings.Networks %q).%s}}", network, member), name)
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(text)
}

// sees fetches the page from a container.
func (d *driverHost) sees(name string, at netip.AddrPort) error {
	out, err := d.podman("exec", name, "sh", "-c", fetchCommand(at, tryTime))
	if err == nil && !strings.Contains(out, strings.TrimSpace(page)) {
		err = fmt.Errorf("%s got %q from %s", name, out, at)
	}
	return err
}

func (d *driverHost) networks() error {
	err := d.podmen("network create -d cnibox one", "network create -d cnibox --ipv6 two", "network create -d cnibox -o isolate=true alone1",
		"network create -d cnibox -o isolate=true alone2", "network create -d cnibox --internal inner",
		"network create -d cnibox -o mtu=1400 --subnet 10.81.0.0/24 --gateway 10.81.0.254 fixed", "network create -d cnibox -o network="+network+" cni")
	if err != nil {
		return err
	}
	out, err := d.podman("network", "inspect", "-f", "{{range .Subnets}}{{.Subnet}} {{end}}", "one", "two", "alone1", "alone2", "inner")
	if err != nil {
		return err
	}
	seen := map[netip.Prefix]bool{}
	for text := range strings.FieldsSeq(out) {
		p, err := netip.ParsePrefix(text)
		if err != nil || seen[p] {
			return fmt.Errorf("subnets: %s: %w", out, err)
		}
		seen[p] = true
	}
	if len(seen) != 6 {
		return fmt.Errorf("subnets: %s", out)
	}
	return nil
}

func (d *driverHost) published() error {
	if err := d.web("web", "--network", "one", "-p", fmt.Sprintf("%d:80", driverPort)); err != nil {
		return err
	}
	ip, err := d.addr("web", "one", "IPAddress")
	if err != nil {
		return err
	}
	_, err = d.inside("cni-exec", "check", "web")
	return errors.Join(err, fetch(nil, netip.AddrPortFrom(ip, 80)), d.publishedAt(driverPort))
}

func (d *driverHost) reload() error {
	if err := d.podmen("restart -t 0 web"); err != nil {
		return err
	}
	if err := d.publishedAt(driverPort); err != nil {
		return err
	}
	if _, err := d.inside("nft", "flush", "ruleset"); err != nil {
		return err
	}
	return errors.Join(d.podmen("network reload web"), d.publishedAt(driverPort))
}

func (d *driverHost) second() error {
	if err := d.podmen("network connect two web"); err != nil {
		return err
	}
	ip6, err := d.addr("web", "two", "GlobalIPv6Address")
	if err != nil {
		return err
	}
	err = errors.Join(fetch(nil, netip.AddrPortFrom(ip6, 80)), d.publishedAt(driverPort), d.podmen("network disconnect one web"))
	// by 127.0.0.1, since the default route of the container went with the first network
	return errors.Join(err, fetch(nil, netip.AddrPortFrom(local, driverPort)), d.podmen("rm -f -t 0 web"), eventually(d.empty))
}

func (d *driverHost) isolated() error {
	err := errors.Join(d.web("a1", "--network", "alone1", "-p", fmt.Sprintf("%d:80", driverPort)), d.web("b1", "--network", "alone1"), d.web("a2", "--network", "alone2"))
	if err != nil {
		return err
	}
	ip, err := d.addr("a1", "alone1", "IPAddress")
	if err != nil {
		return err
	}
	at := netip.AddrPortFrom(ip, 80)
	err = errors.Join(eventually(func() error { return d.sees("b1", at) }), fetch(d.outside.NS, netip.AddrPortFrom(hostAddr, driverPort)))
	if err == nil && d.sees("a2", at) == nil {
		err = fmt.Errorf("a container of another isolated network reaches %s", at)
	}
	return errors.Join(err, d.podmen("rm -f -t 0 a1 b1 a2"))
}

func (d *driverHost) asked() error {
	const ip, mac = "10.81.0.7", "02:00:5e:00:53:07"
	err := d.web("fixed", "--network", "fixed:ip="+ip+",mac="+mac+",interface_name=net7", "-p", fmt.Sprintf("%d-%d:80-81", driverRange, driverRange+1),
		"-p", fmt.Sprintf("%d:53/udp", driverPort))
	if err != nil {
		return err
	}
	out, err := d.podman("exec", "fixed", "ip", "address", "show", "dev", "net7")
	if err == nil && (!strings.Contains(out, ip+"/24") || !strings.Contains(out, mac) || !strings.Contains(out, "mtu 1400")) {
		err = fmt.Errorf("net7: %s", out)
	}
	ports, whoErr := d.inside("cni-exec", "ls")
	if whoErr == nil && !strings.Contains(ports, fmt.Sprintf("%d:81", driverRange+1)) {
		whoErr = fmt.Errorf("ls: %s", ports)
	}
	return errors.Join(err, whoErr, d.publishedAt(driverRange), d.podmen("rm -f -t 0 fixed"))
}

func (d *driverHost) internal() error {
	err := errors.Join(d.web("in1", "--network", "inner"), d.web("in2", "--network", "inner"))
	if err != nil {
		return err
	}
	ip, err := d.addr("in1", "inner", "IPAddress")
	if err != nil {
		return err
	}
	err = eventually(func() error { return d.sees("in2", netip.AddrPortFrom(ip, 80)) })
	routes, routesErr := d.podman("exec", "in2", "ip", "route")
	if routesErr == nil && strings.Contains(routes, "default") {
		routesErr = fmt.Errorf("routes of an internal network: %s", routes)
	}
	return errors.Join(err, routesErr, d.podmen("rm -f -t 0 in1 in2"))
}

func (d *driverHost) named() error {
	if err := d.web("cni", "--network", "cni", "-p", fmt.Sprintf("%d:80", driverPort)); err != nil {
		return err
	}
	out, err := d.podman("exec", "cni", "ip", "address", "show", "dev", "eth0")
	if err == nil && !strings.Contains(out, "10.88.") {
		err = fmt.Errorf("eth0: %s", out)
	}
	return errors.Join(err, d.publishedAt(driverPort), d.podmen("rm -f -t 0 cni"))
}

// driverServices are two pods, of which the second asks the first.
const driverServices = `apiVersion: v1
kind: Pod
metadata:
  name: db
spec:
  containers:
  - name: web
    image: ` + image + `
    ports:
    - containerPort: 80
      hostPort: 8585
---
apiVersion: v1
kind: Pod
metadata:
  name: app
spec:
  containers:
  - name: web
    image: ` + image + `
`

func (d *driverHost) play() error {
	const port = 8585
	if err := d.podmen("kube play --network one /srv/two.yaml"); err != nil {
		return err
	}
	err := errors.Join(d.publishedAt(port), eventually(func() error { return d.sees("app-web", netip.AddrPortFrom(hostAddr, port)) }))
	return errors.Join(err, d.podmen("kube down /srv/two.yaml"), eventually(d.empty))
}

// rootless: podman attaches containers in a network namespace of the user, whose state is in a /run
// of its own.
func (d *driverHost) rootless() error {
	if _, _, err := (sandbox.Call{Argv: []string{"ip", "route", "add", "default", "via", outsideAddr.String()}, Env: os.Environ()}).Run(); err != nil {
		return err // pasta looks for the interface with the default route
	}
	user := func(line string) (string, error) {
		args := append(strings.Fields("setpriv --reuid 1000 --regid 1000 --clear-groups podman"), strings.Fields(line)...)
		return d.insideAs("/home/user", args...)
	}
	for _, line := range []string{
		"load -q -i /srv/image.tar", "network create -d cnibox own",
		fmt.Sprintf("run -d --name web --network own -p %d:80 %s", driverPort, image), "run -d --name ask --network own " + image,
	} {
		if _, err := user(line); err != nil {
			return err
		}
	}
	at := netip.AddrPortFrom(hostAddr, driverPort)
	ip, err := user("inspect -f {{.NetworkSettings.Networks.own.IPAddress}} web")
	err = errors.Join(err, fetch(nil, at), fetch(d.outside.NS, at))
	if err == nil {
		var web netip.Addr
		if web, err = netip.ParseAddr(ip); err == nil {
			args := strings.Fields("setpriv --reuid 1000 --regid 1000 --clear-groups podman exec ask sh -c")
			var out string
			out, err = d.insideAs("/home/user", append(args, fetchCommand(netip.AddrPortFrom(web, 80), tryTime))...)
			if err == nil && !strings.Contains(out, strings.TrimSpace(page)) {
				err = fmt.Errorf("ask got %q from web", out)
			}
		}
	}
	if err != nil {
		return err
	}
	if _, err := user("unshare --rootless-netns cni-exec check --all"); err != nil {
		return err
	}
	if _, err := user("restart -t 0 web"); err != nil {
		return err
	}
	if err := fetch(d.outside.NS, at); err != nil {
		return err
	}
	if _, err := user("rm -f -t 0 ask"); err != nil {
		return err
	}
	left, err := user("unshare --rootless-netns cni-exec ls")
	if err == nil && strings.Count(left, "\n") != 1 {
		err = fmt.Errorf("ls: %s", left)
	}
	_, rmErr := user("rm -f -t 0 web")
	_, netErr := user("network rm own")
	return errors.Join(err, rmErr, netErr, eventually(d.empty))
}

func (d *driverHost) refused() error {
	for line, want := range map[string]string{
		"network create -d cnibox --subnet 10.81.0.128/25 over": "overlaps 10.81.0.0/24",
		"network create -d cnibox -o nosuch=1 over":             "option nosuch=1: it is unknown",
		"network create -d cnibox -o network=nosuch over":       "nosuch",
	} {
		if _, err := d.podman(strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("podman %s: %w", line, err)
		}
	}
	return nil
}

func (d *driverHost) end() error {
	if err := d.podmen("network rm one two alone1 alone2 inner fixed cni"); err != nil {
		return err
	}
	links, err := d.links.Links()
	if err != nil {
		return err
	}
	for _, l := range links {
		if strings.HasPrefix(l.Name, "cb") {
			err = errors.Join(err, fmt.Errorf("left behind: %s", l.Name))
		}
	}
	return errors.Join(err, eventually(d.empty))
}
