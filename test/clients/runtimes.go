package main

import (
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	types "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cnibox/cnibox/test/sandbox"
)

// An attachedBy is an attachment, and what cni-exec must print of it.
type attachedBy struct {
	runtime, network, name string
	ip                     netip.Addr
}

// runtimes attaches with containerd, podman and cnitool on one host at the same time: cni-exec
// shows all of them.
func (h *host) runtimes() error {
	p := &pod{name: "seen", ports: []port{{host: 8085, container: 80}}}
	var tool *toolAttachment
	var all []attachedBy
	return walk(
		stage{"a pod of containerd, a container of podman and cnitool's at the same time", func() (err error) {
			if err := errors.Join(h.run(p), h.podmanRun("seen", "-p", fmt.Sprintf("%d:80", podmanPort))); err != nil {
				return err
			}
			if tool, err = newToolAttachment(); err != nil {
				return err
			}
			ofPod, err := h.addr(p)
			if err != nil {
				return err
			}
			ofPodman, err := podmanAddr("seen", "podman", false)
			all = []attachedBy{
				{"containerd", network, "default/seen", ofPod}, {"podman", "podman", "seen", ofPodman},
				{"cnitool", network, filepath.Base(tool.ns.Path), tool.ip},
			}
			return err
		}},
		stage{"cni-exec ls shows all three, and who names them", func() error { return checkAttachments(all) }},
		stage{"each runtime ends its own; nothing is left behind", func() error {
			return errors.Join(tool.end(), h.stopPod(p), h.remove(p), podmanRemove("seen"), eventually(h.empty))
		}},
	)
}

// checkAttachments compares the output of cni-exec with the attachments of the runtimes. containerd
// also has its own network for lo.
func checkAttachments(all []attachedBy) error {
	type attachment struct {
		Network, Name, Runtime, State string
		Faults                        []string
		Addresses                     []netip.Prefix
	}
	var list struct{ Attachments []attachment }
	if err := cniExecJSON(&list, "ls", "-o", "json"); err != nil {
		return err
	}
	for _, want := range all {
		i := slices.IndexFunc(list.Attachments, func(a attachment) bool { return a.Runtime == want.runtime && a.Network == want.network })
		if i < 0 {
			return fmt.Errorf("ls has none of %s: %+v", want.runtime, list.Attachments)
		}
		got := list.Attachments[i]
		if !strings.Contains(got.Name, want.name) || got.State != "alive" || len(got.Addresses) == 0 || got.Addresses[0].Addr() != want.ip {
			return fmt.Errorf("ls has %+v, want %+v", got, want)
		}
		var owner struct {
			Owners []struct{ Network, Name, Runtime string }
		}
		if err := cniExecJSON(&owner, "show", "-o", "json", want.ip.String()); err != nil {
			return err
		}
		if len(owner.Owners) != 1 || owner.Owners[0].Runtime != want.runtime || owner.Owners[0].Name != got.Name {
			return fmt.Errorf("who %s: %+v, want %+v", want.ip, owner, want)
		}
	}
	return nil
}

// cniExecJSON decodes the output of a verb of cni-exec.
func cniExecJSON(into any, args ...string) error {
	out, _, err := sandbox.Call{Argv: append([]string{filepath.Join(pluginDir, "cni-exec")}, args...), Env: os.Environ()}.Run()
	if err != nil {
		return err
	}
	return json.Unmarshal(out, into)
}

// A toolAttachment is made as by cnitool: by libcni, with a container ID that is a hash of the
// namespace's path.
type toolAttachment struct {
	ns   *sandbox.NetNS
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
	conf *libcni.RuntimeConf
	ip   netip.Addr
}

func newToolAttachment() (*toolAttachment, error) {
	ns, err := sandbox.NewNetNS("tool")
	if err != nil {
		return nil, err
	}
	t := &toolAttachment{ns: ns, cni: libcni.NewCNIConfig([]string{pluginDir}, nil)}
	if t.list, err = libcni.LoadNetworkConf(confDir, network); err != nil {
		return nil, err
	}
	id := fmt.Sprintf("cnitool-%x", sha512.Sum512([]byte(ns.Path)))[:len("cnitool-")+20]
	t.conf = &libcni.RuntimeConf{ContainerID: id, NetNS: ns.Path, IfName: "eth0"}
	added, err := t.cni.AddNetworkList(context.Background(), t.list, t.conf)
	if err != nil {
		return nil, err
	}
	result, err := types.NewResultFromResult(added)
	if err != nil {
		return nil, err
	}
	if len(result.IPs) == 0 {
		return nil, fmt.Errorf("no address: %+v", result)
	}
	t.ip, _ = netip.AddrFromSlice(result.IPs[0].Address.IP.To4())
	return t, nil
}

// end does what cnitool del does.
func (t *toolAttachment) end() error {
	return errors.Join(t.cni.DelNetworkList(context.Background(), t.list, t.conf), t.ns.Remove())
}
