package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/test/sandbox"
)

// recipes are the commands of docs/runtimes.md for programs that have no network of their own.
// outside is the machine outside, which answers to ping; each deletes what it has made.
var recipes = []struct{ what, commands string }{
	{"unshare: a namespace of a process, and cni-exec run", `
unshare --net sleep 60 & pid=$!
until [ "$(readlink /proc/$pid/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do :; done
cni-exec add clients /proc/$pid/ns/net
cni-exec enter /proc/$pid/ns/net -- busybox ping -c 1 -W 5 $outside
cni-exec del clients /proc/$pid/ns/net
kill $pid
cni-exec run --net clients -- unshare --pid --fork busybox ping -c 1 -W 5 $outside
`},
	{"bubblewrap: cni-exec run, enter, and --info-fd with --block-fd", `
cni-exec run --net clients -- bwrap --ro-bind / / --dev /dev --unshare-pid --proc /proc busybox ping -c 1 -W 5 $outside
cni-exec add --create clients box
cni-exec enter box -- bwrap --ro-bind / / --dev /dev busybox ping -c 1 -W 5 $outside
cni-exec del --delete clients box
mkfifo info block
bwrap --ro-bind / / --dev /dev --unshare-net --cap-add CAP_NET_RAW --info-fd 3 --block-fd 4 busybox ping -c 1 -W 5 $outside 3>info 4<>block & box=$!
pid=$(sed -n 's/.*"child-pid": *\([0-9]*\).*/\1/p' <info)
cni-exec add --container-id box clients /proc/$pid/ns/net
echo >block
wait $box
cni-exec del --container-id box
`},
	{"cni-exec add --create, del --delete around runc", `
cni-exec add --create clients c1
sed 's|{"type":"network"}|{"type":"network","path":"/run/netns/c1"}|; s|"hooks":{[^}]*}[^}]*}\]}|"x":{}|' hooks/bundle/config.json >config.json
mkdir -p bundle
mv config.json bundle
grep -q '/run/netns/c1' bundle/config.json
runc --root runc run --bundle bundle c1
cni-exec del --delete clients c1
`},
}

// programs runs the recipes.
func (h *host) programs() error {
	dir := filepath.Join(work, "recipes")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.Symlink(hooksDir, filepath.Join(dir, "hooks")); err != nil {
		return err
	}
	if _, err := h.bundle("ping -c 1 -W 5 "+outsideAddr.String(), nil); err != nil {
		return err
	}
	for _, r := range recipes {
		err := step(r.what, func() error {
			script := "set -e\ncd " + dir + "\noutside=" + outsideAddr.String() + "\n" + r.commands
			env := append(os.Environ(), "PATH="+pluginDir+":"+os.Getenv("PATH"))
			out, _, err := sandbox.Call{Argv: []string{"sh", "-c", script}, Env: env}.Run()
			if err == nil && !strings.Contains(string(out), "1 packets received") {
				err = fmt.Errorf("no answer: %s", out)
			}
			if err != nil {
				return err
			}
			return eventually(h.empty)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
