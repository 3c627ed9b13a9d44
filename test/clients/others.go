package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/test/debian"
)

// othersDebian has programs of Debian 13 that have no networks of CNI.
var othersDebian = debian.System{
	Name: "others", Suite: "trixie", Without: debian.Unused,
	Packages: []string{"busybox-static", "iproute2", "jq", "nftables"},
	Later:    []string{"docker-cli", "docker.io", "lxc", "systemd-container"},
}

const othersPort = 8780 // of the host; the containers have a web server on port 80

// lxcConfig is a container of LXC, whose network the recipes add.
const lxcConfig = `lxc.rootfs.path = dir:/srv/rootfs
lxc.uts.name = web
lxc.apparmor.profile = unconfined
lxc.init.cmd = /bin/httpd -f -p 80 -h /www
`

// runcWithHooks is a runtime for Docker: runc, with the hooks in the configuration of each container.
const runcWithHooks = `#!/bin/sh
# runc, with cni-exec hook in the configuration of each container
for arg; do
	[ "$before" = --bundle ] && bundle=$arg
	before=$arg
done
if [ -n "$bundle" ]; then
	jq '{path: "/usr/local/sbin/cni-exec", args: ["cni-exec", "hook"]} as $hook
		| .hooks.createRuntime += [$hook] | .hooks.poststop += [$hook]' "$bundle/config.json" >"$bundle/new.json"
	mv "$bundle/new.json" "$bundle/config.json"
fi
exec runc "$@"
`

// othersFiles are files of the system.
var othersFiles = map[string]string{
	"srv/rootfs/www/index.html": page,
	"srv/rootfs/proc/.dir":      "",
	"srv/rootfs/sys/.dir":       "",
	"srv/rootfs/dev/.dir":       "",
	"srv/rootfs/etc/os-release": "ID=busybox\n", // systemd-nspawn wants it
	"srv/rootfs/usr/.dir":       "",
	"srv/rootfs/run/.dir":       "",
	"srv/rootfs/tmp/.dir":       "",
	"etc/docker/daemon.json":    `{"runtimes":{"cni":{"path":"/usr/local/sbin/runc-cni"}}}`,
	"usr/local/sbin/.dir":       "",
	"var/lib/lxc/hooked/config": lxcConfig + lxcHooks,
	"var/lib/lxc/shared/config": lxcConfig + "lxc.namespace.share.net = /run/netns/box\n",
	"var/lib/lxc/inner/config":  lxcConfig + "lxc.net.0.type = none\n",
}

var lxcHooks = fmt.Sprintf(`lxc.net.0.type = empty
lxc.hook.version = 1
lxc.hook.start-host = sh -c "exec cni-exec add --container-id $LXC_NAME -p %d:80 clients /proc/$LXC_PID/ns/net"
lxc.hook.post-stop = sh -c "exec cni-exec del --container-id $LXC_NAME"
`, othersPort)

// otherRecipes are the commands of docs/runtimes.md: begin attaches a container with a web server, ask is a command in
// it, and end detaches it.
var otherRecipes = []struct{ what, begin, ask, end string }{
	{"LXC: hooks", "lxc-start -n hooked", "lxc-attach -n hooked --", "lxc-stop -k -n hooked"},
	{"LXC: lxc.namespace.share.net", "cni-exec add --create -p 8780:80 clients box; lxc-start -n shared", "lxc-attach -n shared --",
		"lxc-stop -k -n shared; cni-exec del --delete clients box"},
	{"LXC: lxc.net.0.type = none in cni-exec run", "cni-exec run --name inner --net clients -p 8780:80 -- lxc-start -F -n inner >/dev/null 2>&1 &",
		"cni-exec enter inner -- lxc-attach -n inner --", "cni-exec enter inner -- lxc-stop -k -n inner"},
	{"systemd-nspawn: --network-namespace-path", `cni-exec add --create -p 8780:80 clients box
systemd-nspawn -q --register=no --keep-unit -D /srv/rootfs --network-namespace-path=/run/netns/box httpd -f -p 80 -h /www >/dev/null 2>&1 &
echo $! >/run/nspawn`, "cni-exec enter box -- busybox", "kill -s KILL $(cat /run/nspawn); cni-exec del --delete clients box"},
	{"Docker: --network none, and its process", `docker run -d --network none --name web web httpd -f -p 80 -h /www
cni-exec add --container-id web -p 8780:80 clients /proc/$(docker inspect -f '{{.State.Pid}}' web)/ns/net`, "docker exec web",
		"docker rm -f web; cni-exec del --container-id web"},
	{"Docker: --network none, and a runtime with hooks", `docker run -d --runtime cni --network none --name hooked \
  --annotation cni.cnibox/networks=clients --annotation cni.cnibox/ports=8780:80 web httpd -f -p 80 -h /www
docker restart -t 0 hooked`, "docker exec hooked", "docker rm -f hooked"},
}

// dockerd starts the engine, without networks of its own, and makes the image.
const dockerd = `
dockerd --iptables=false --ip6tables=false --bridge=none --storage-driver=vfs --data-root=/var/lib/containers/docker >/run/dockerd.log 2>&1 &
for n in $(seq 100); do docker version >/dev/null 2>&1 && break; sleep 0.3; done
tar -C /srv/rootfs -c . | docker import - web
`

// others runs the recipes for programs of Debian 13.
func (h *host) others() error {
	s := &system{host: h}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := step("Debian 13 with LXC, systemd-nspawn and Docker", func() error { return s.installOthers(ctx) }); err != nil {
		return err
	}
	for _, r := range otherRecipes {
		err := step(r.what, func() error {
			if strings.HasPrefix(r.what, "Docker") {
				if _, err := s.inside("sh", "-ec", "[ -e /run/dockerd.log ] || {\n"+dockerd+"}"); err != nil {
					return s.dockerLog(err)
				}
			}
			if _, err := s.inside("sh", "-ec", r.begin); err != nil {
				return s.dockerLog(err)
			}
			err := h.publishedAt(othersPort)
			out, askErr := s.inside("sh", "-ec", r.ask+" ping -c 1 -W 5 "+outsideAddr.String())
			if askErr == nil && !strings.Contains(out, "1 packets received") {
				askErr = fmt.Errorf("no answer: %s", out)
			}
			_, checkErr := s.inside("cni-exec", "check")
			_, endErr := s.inside("sh", "-ec", r.end)
			return errors.Join(err, askErr, checkErr, endErr, eventually(h.empty))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *system) dockerLog(err error) error {
	log, logErr := s.inside("tail", "-n", "20", "/run/dockerd.log")
	if logErr != nil {
		return err
	}
	return fmt.Errorf("%w\n%s", err, log)
}

func (s *system) installOthers(ctx context.Context) error {
	cache, err := debian.Cache()
	if err != nil {
		return err
	}
	root := filepath.Join(work, "others")
	if err := errors.Join(s.configure(""), os.MkdirAll(root, 0o755)); err != nil {
		return err
	}
	if err := othersDebian.Unpack(cache, root); err != nil {
		return err
	}
	binary, err := os.ReadFile(s.bin)
	if err != nil {
		return err
	}
	list, err := os.ReadFile(filepath.Join(confDir, "10-clients.conflist"))
	if err != nil {
		return err
	}
	sbin := filepath.Join(root, "usr/local/sbin")
	err = errors.Join(debian.Write(root, othersFiles), debian.Write(root, map[string]string{"etc/cni/net.d/10-clients.conflist": string(list)}),
		busyboxIn(filepath.Join(root, "srv/rootfs")),
		os.WriteFile(filepath.Join(sbin, "runc-cni"), []byte(runcWithHooks), 0o755),
		os.WriteFile(filepath.Join(sbin, "cnibox"), binary, 0o755), os.Symlink("cnibox", filepath.Join(sbin, "cni-exec")))
	if err != nil {
		return err
	}
	return s.enter(ctx, root)
}
