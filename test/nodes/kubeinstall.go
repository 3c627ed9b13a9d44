package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/test/image"
)

// productImage and pauseImage are the images that dist/kubernetes names.
const (
	productImage = "ghcr.io/cnibox/cnibox:0.2.0"
	pauseImage   = "registry.k8s.io/pause:3.10"
	flannelImage = "docker.io/library/flannel-cni-plugin:1" // of flannelSet
)

// referencePlugins are the plugins of the network that the reference has.
var referencePlugins = []string{"bridge", "host-local", "loopback", "portmap", "bandwidth"}

// installReference installs the reference's plugins on a node. The reference has no flannel: that
// is a copy of our binary. cni-exec is in another directory.
func (n *kubeNode) installReference(reference string) error {
	if err := os.MkdirAll(n.root(pluginDir), 0o755); err != nil {
		return err
	}
	files := map[string]string{"flannel": n.c.bin}
	for _, name := range referencePlugins {
		files[name] = filepath.Join(reference, name)
	}
	for name, from := range files {
		program, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(n.root(filepath.Join(pluginDir, name)), program, 0o755); err != nil {
			return err
		}
	}
	const runtime = "/opt/cni/runtime"
	_, err := n.run("sh", "-c", `mkdir -p "$1" && cp "$2" "$1/cnibox" && "$1/cnibox" install "$1" cni-exec`, "sh", runtime, n.c.bin)
	return err
}

// writeProductImage writes an image like the released one, with the binary under test.
func writeProductImage(bin, file string) error {
	program, err := os.ReadFile(bin)
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	i := &image.Image{Name: productImage, Entrypoint: []string{pluginDir + "/cnibox"},
		Files: []image.File{{Name: pluginDir[1:] + "/cnibox", Mode: 0o755, Body: program}}}
	return errors.Join(i.Write(f), f.Close())
}

// flannelSet installs the plugin flannel as kube-flannel.yml does, with busybox's cp as there.
const flannelSet = `apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: kube-flannel
  namespace: kube-system
spec:
  selector:
    matchLabels: {app: kube-flannel}
  template:
    metadata:
      labels: {app: kube-flannel}
    spec:
      hostNetwork: true
      tolerations: [{operator: Exists}]
      initContainers:
        - name: install-cni-plugin
          image: ` + flannelImage + `
          command: [cp]
          args: [-f, /flannel, /opt/cni/bin/flannel]
          volumeMounts:
            - {name: cni-plugin, mountPath: /opt/cni/bin}
      containers:
        - name: pause
          image: ` + kubeImage + `
      volumes:
        - name: cni-plugin
          hostPath: {path: /opt/cni/bin}
`

// flannelProgram returns a program that is not the installed one, and works: ours with a byte more.
func flannelProgram(bin string) ([]byte, error) {
	program, err := os.ReadFile(bin)
	return append(program, 0), err
}

// writeFlannelImage writes an image with the plugin flannel, and with cp.
func writeFlannelImage(bin, file string) error {
	program, err := flannelProgram(bin)
	if err != nil {
		return err
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	cp, err := os.ReadFile(busybox)
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	i := &image.Image{Name: flannelImage, Files: []image.File{
		{Name: "flannel", Mode: 0o755, Body: program}, {Name: "bin/busybox", Mode: 0o755, Body: cp}, {Name: "bin/cp", Target: "busybox", Mode: 0o777}}}
	return errors.Join(i.Write(f), f.Close())
}

// A daemonSet is a file in dist/kubernetes.
type daemonSet struct{ file, name string }

const daemonSetsPath = "/apis/apps/v1/namespaces/kube-system/daemonsets"

// apply creates the daemon set, and waits until it runs on both nodes.
func (d *daemonSet) apply(dist string) error {
	text, err := os.ReadFile(filepath.Join(dist, d.file))
	if err != nil {
		return err
	}
	local := strings.ReplaceAll(string(text), pauseImage, kubeImage)
	if local == string(text) || !strings.Contains(local, productImage) {
		return fmt.Errorf("%s does not name the images %s and %s", d.file, pauseImage, productImage)
	}
	return d.create(local)
}

// create creates the daemon set of a text, and waits until it runs on both nodes.
func (d *daemonSet) create(text string) error {
	if err := apiYAML(http.MethodPost, daemonSetsPath, text); err != nil {
		return err
	}
	return within(rolloutTime, func() error {
		var got struct {
			Status struct{ DesiredNumberScheduled, NumberReady int }
		}
		if err := api(http.MethodGet, daemonSetsPath+"/"+d.name, nil, &got); err != nil {
			return err
		}
		if s := got.Status; s.DesiredNumberScheduled != 2 || s.NumberReady != 2 {
			return fmt.Errorf("daemon set %s: %+v", d.name, s)
		}
		return nil
	})
}

// delete deletes the daemon set, and waits until its pods are gone, and it is.
func (d *daemonSet) delete() error {
	if err := api(http.MethodDelete, daemonSetsPath+"/"+d.name+"?propagationPolicy=Foreground", nil, nil); err != nil {
		return err
	}
	return within(rolloutTime, func() error {
		var list struct{ Items []kubePod }
		err := api(http.MethodGet, "/api/v1/namespaces/kube-system/pods?labelSelector=app%3D"+d.name, nil, &list)
		if err != nil || len(list.Items) > 0 {
			return errors.Join(err, fmt.Errorf("daemon set %s: %d pods", d.name, len(list.Items)))
		}
		switch err := api(http.MethodGet, daemonSetsPath+"/"+d.name, nil, nil); {
		case err == nil:
			return fmt.Errorf("daemon set %s is there", d.name)
		case strings.Contains(err.Error(), ": 404 "):
			return nil
		default:
			return err
		}
	})
}

// installed replaces the reference's plugins as in a cluster, while pods start and stop.
func (k *kube) installed() error {
	const pods = 20
	theirs := &deployment{app: "theirs", node: "node1", replicas: pods, hostPort: 0}
	churn := &deployment{app: "churn", node: "node1", replicas: 1}
	install, remove := &daemonSet{"cnibox.yaml", "cnibox"}, &daemonSet{"remove.yaml", "cnibox-remove"}
	return k.walk(
		stage{"20 pods that the reference's plugins attach", func() error { return inTurn(theirs.create, churn.create) }},
		stage{"a DaemonSet replaces the plugins while pods start and stop, and verifies", func() error {
			done := make(chan error, 1)
			go func() { done <- install.apply(k.dist) }()
			for i := 0; ; i++ {
				select {
				case err := <-done:
					return err
				default:
				}
				if err := inTurn(func() error { return churn.scale(1 + 3*(i%2)) }, churn.wait); err != nil {
					return errors.Join(err, <-done)
				}
			}
		}},
		stage{"the 20 pods end by ours, and leave nothing", func() error {
			return inTurn(theirs.delete, func() error { return within(rolloutTime, k.onlyPods) }, k.a.noChains)
		}},
		stage{"removal puts back what was there", func() error {
			if err := inTurn(churn.delete, install.delete, func() error { return remove.apply(k.dist) }); err != nil {
				return err
			}
			for _, n := range k.nodes() {
				for _, name := range referencePlugins {
					got, err1 := os.ReadFile(n.root(filepath.Join(pluginDir, name)))
					want, err2 := os.ReadFile(filepath.Join(k.reference, name))
					if err := errors.Join(err1, err2); err != nil || !bytes.Equal(got, want) {
						return errors.Join(err, fmt.Errorf("%s: %s is not what was there", n.name, name))
					}
				}
				for _, name := range []string{"cnibox", "ptp", ".cnibox-kept"} {
					if _, err := os.Lstat(n.root(filepath.Join(pluginDir, name))); !errors.Is(err, os.ErrNotExist) {
						return fmt.Errorf("%s: %s is still there: %w", n.name, name, err)
					}
				}
			}
			return remove.delete()
		}},
		stage{"and it is installed again", func() error { return install.apply(k.dist) }},
		stage{"kube-flannel copies its plugin by cp -f at each start: no other name changes, and verify names this one", func() error {
			flannel := &daemonSet{name: "kube-flannel"}
			for range 2 { // the pods stay, for the reboot
				if err := flannel.create(flannelSet); err != nil {
					return err
				}
				for _, n := range k.nodes() {
					if err := n.onlyFlannelCopied(); err != nil {
						return err
					}
				}
				if err := flannel.delete(); err != nil {
					return err
				}
			}
			return flannel.create(flannelSet)
		}},
	)
}

// onlyFlannelCopied returns an error unless the plugin flannel, and no other, is that of kube-flannel.
func (n *kubeNode) onlyFlannelCopied() error {
	want, err1 := flannelProgram(n.c.bin)
	got, err2 := os.ReadFile(n.root(filepath.Join(pluginDir, "flannel")))
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s: flannel is not what was copied", n.name)
	}
	out, err := n.run("sh", "-c", `"$1/cnibox" verify "$1" 2>&1; [ $? = 1 ] && "$1/bridge" 2>&1`, "sh", pluginDir)
	if err != nil || !strings.HasPrefix(out, "flannel: another program (") || !strings.Contains(out, "\ncnibox: 1 of ") || !strings.Contains(out, "\nCNI bridge plugin ") {
		return errors.Join(err, fmt.Errorf("%s: the names lead to: %s", n.name, out))
	}
	return nil
}

// noChains returns an error if a node has chains of the reference for single attachments (CNI-DN-,
// CNI-SN-).
func (n *kubeNode) noChains() error {
	rules, err := n.run("nft", "list", "ruleset")
	if err != nil {
		return err
	}
	for line := range strings.Lines(rules) {
		if strings.Contains(line, "CNI-DN-") || strings.Contains(line, "CNI-SN-") {
			return fmt.Errorf("%s: %s", n.name, strings.TrimSpace(line))
		}
	}
	return nil
}
