// Package flannel is the CNI plugin flannel: runs another plugin with the subnet that flanneld gave this node.
package flannel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/internal/undo"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "flannel",
	Conf:    conf{},
	Summary: "runs another plugin with the subnet that flanneld gave this node",
	Help: `
key            type    default                  meaning
subnetFile     string  /run/flannel/subnet.env  the file that flanneld writes; an absolute path
dataDir        string  /var/lib/cni/flannel     stores the delegates' configurations until DEL; an
                                                absolute path; where the default cannot be
                                                written and is empty, /run/cnibox/flannel
delegate       object  {}                       configuration of the plugin to run: the default of
                                                "type" is bridge; without "name" and "ipam"
ipam           object  {}                       its "ipam": the default of "type" is host-local;
                                                ranges are set, routes to the cluster added
runtimeConfig  object  -                        passed to the delegate unchanged

Defaults for the delegate: ipMasq true unless flanneld masquerades (FLANNEL_IPMASQ), mtu from
FLANNEL_MTU, and isGateway true for a bridge.
subnet.env has FLANNEL_NETWORK or FLANNEL_IPV6_NETWORK (networks, comma-separated), FLANNEL_SUBNET
or FLANNEL_IPV6_SUBNET, FLANNEL_MTU and FLANNEL_IPMASQ.`,
	Plugin: func() spec.Plugin {
		return spec.Plugin{
			Facts: spec.Facts{Interface: true, Args: true},
			Add:   add, Check: check, Del: del, Get: get, Status: status, GC: gc, Restore: restore, Validate: validate,
		}
	},
}

// delegate returns the request for the delegate, and its configuration.
func (f *plan) delegate(r *spec.Request, env *subnetEnv) (*spec.Request, []byte, error) {
	conf, err := f.delegateConf(r, env)
	if err != nil {
		return nil, nil, err
	}
	d, err := r.Derive(r.Call, conf)
	if err != nil {
		return nil, nil, fmt.Errorf("delegate: %w", err)
	}
	return d, conf, nil
}

// validate checks the part of the delegate's configuration that does not depend on subnet.env.
func validate(r *spec.Request) (spec.Resources, error) {
	f, err := readPlan(r)
	if err != nil {
		return spec.Resources{}, err
	}
	without := r.Clone()
	without.Call.Verb = spec.Status // for STATUS host-local accepts a configuration without ranges
	d, _, err := f.delegate(without, nil)
	if err != nil {
		return spec.Resources{}, err
	}
	resources, err := d.Validate(d.Net.Type)
	return resources, ofDelegate(err)
}

// ofDelegate returns an error of the delegate, about the key as it is in flannel's own configuration, which has the
// delegate's "ipam" itself.
func ofDelegate(err error) error {
	key, keyed := spec.KeyOf(err)
	first, _, _ := strings.Cut(key, ".")
	if keyed == nil || first == "ipam" || first == "runtimeConfig" {
		return err
	}
	return spec.AtKey(strings.TrimSuffix("delegate."+key, "."), err)
}

// runDelegate runs the delegate. Errors keep its code.
func runDelegate(ctx context.Context, d *spec.Request) (*spec.Result, error) {
	failed := func(err error) error { return ofDelegate(fmt.Errorf("flannel: delegate %s: %w", d.Net.Type, err)) }
	d.Call.Session = d.Call.Session.Wrapping(failed)
	res, err := d.Invoker.Invoke(ctx, d.Net.Type, d)
	if err != nil {
		return nil, failed(err)
	}
	return res, nil
}

// add stores the delegate's configuration for DEL, then runs the delegate.
// Errors of subnet.env have code 11: flanneld may be about to write it.
func add(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	f, err := readPlan(r)
	if err != nil {
		return nil, err
	}
	env, err := f.env(spec.CodeTryAgain)
	if err != nil {
		return nil, err
	}
	d, conf, err := f.delegate(r, env)
	if err != nil {
		return nil, err
	}
	// no state file if DEL would not find the delegate
	if _, err := d.Invoker.Find(d.Net.Type); err != nil {
		return nil, fmt.Errorf("delegate: %w", err)
	}
	_, err = f.dir.find(r)
	again := err == nil
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if f.notice != "" {
		r.Warn("%s", f.notice)
	}
	restore, err := f.dir.save(r.Attachment, conf)
	if err != nil {
		return nil, fmt.Errorf("state of the delegate: %w", err)
	}
	res, err := runDelegate(ctx, d)
	if err == nil {
		return res, nil
	}
	// The undo of a repeated ADD must not release the first. After a failed DEL a later one needs
	// the state file.
	var back undo.Stack
	back.Add("delegate", func(ctx context.Context) error {
		if !again && d.NeedsDel(d.Net.Type, err) {
			if err := f.release(ctx, r, conf); err != nil {
				return err
			}
		}
		return restore()
	})
	return nil, back.Failed(ctx, err)
}

// release runs the delegate's DEL with the configuration of its ADD.
func (f *plan) release(ctx context.Context, r *spec.Request, conf []byte) error {
	del := r.Call
	del.Verb = spec.Del
	d, err := r.Derive(del, conf)
	if err == nil {
		_, err = runDelegate(ctx, d)
	}
	return err
}

// env reads subnet.env; errors have that code.
func (f *plan) env(code int) (*subnetEnv, error) {
	env, err := readSubnetEnv(f.SubnetFile)
	if err != nil {
		return nil, spec.Errorf(code, "failed to load flannel 'subnet.env' file: %w (flanneld writes it when it has got a subnet: "+
			"is it running? see the log of this node's flannel pod)", err)
	}
	return env, nil
}

// savedRequest returns the request for the attachment's delegate, with the configuration of ADD and
// prevResult. The error is os.ErrNotExist without a usable record.
func (f *plan) savedRequest(r *spec.Request) (*spec.Request, error) {
	s, err := f.dir.find(r)
	if err != nil {
		return nil, err
	}
	d, err := r.Derive(r.Call, s.conf)
	if err != nil {
		f.dir.quarantine(r, s.file, err)
		return nil, os.ErrNotExist
	}
	if r.Prev != nil && d.Net.Version.AtLeast(spec.V040) {
		d.Prev = r.Prev.Clone()
	}
	return d, nil
}

// del runs the delegate's DEL with the configuration of ADD. It deletes the state file after that
// has succeeded, so that DEL can be repeated.
func del(ctx context.Context, r *spec.Request) error {
	return r.Call.Session.Together(ctx, func(s *session.Session) error {
		r.Call.Session = s
		return release(ctx, r)
	})
}

func release(ctx context.Context, r *spec.Request) error {
	f, err := readPlan(r)
	if err != nil {
		r.Warn("%v: going by the state files in %s", err, f.dir.Dir)
	}
	d, serr := f.savedRequest(r)
	switch {
	case serr == nil:
		if _, err := runDelegate(ctx, d); err != nil {
			return err
		}
	case err == nil:
		f.delUnknown(ctx, r)
	}
	if serr != nil && !errors.Is(serr, os.ErrNotExist) {
		return serr
	}
	r.Call.Session.Last(func(context.Context) error { return f.dir.remove(r.Attachment) })
	return nil
}

// delUnknown runs DEL of the configured delegate for an attachment without a state file: the file
// was lost, or the reference overwrote it for another network of the container. Errors are
// warnings, since the attachment may never have existed.
func (f *plan) delUnknown(ctx context.Context, r *spec.Request) {
	env, _ := readSubnetEnv(f.SubnetFile) // not needed for DEL
	d, _, err := f.delegate(r, env)
	if err == nil {
		d.Call.Session = r.Call.Session.AtOnce()
		_, err = runDelegate(ctx, d)
	}
	if err != nil {
		r.Warn("no state file of %s: %v", r.Attachment, err)
	}
}

// check runs the delegate's CHECK with the configuration of ADD. The runtimeConfig of this call, if
// there is one, replaces that of ADD.
func check(ctx context.Context, r *spec.Request) error {
	f, err := readPlan(r)
	if err != nil {
		return err
	}
	s, err := f.dir.find(r)
	if errors.Is(err, os.ErrNotExist) {
		return spec.Errorf(spec.CodeCheck, "flannel: there is no state file of %s in %s", r.Attachment, f.dir.Dir)
	}
	if err != nil {
		return err
	}
	conf := s.conf
	if len(f.RuntimeConfig) > 0 {
		if conf, err = spec.Merge(conf, map[string]any{"runtimeConfig": f.RuntimeConfig}); err != nil {
			return spec.Errorf(spec.CodeConfig, "runtimeConfig: %w", err)
		}
	}
	d, err := r.Derive(r.Call, conf)
	if err != nil {
		return spec.Errorf(spec.CodeCheck, "flannel: state file %s: %v", s.file, err)
	}
	d.Prev = r.Prev.Clone()
	_, err = runDelegate(ctx, d)
	return err
}

// restore restores what the delegate made, with the configuration of ADD.
func restore(ctx context.Context, r *spec.Request) error {
	f, err := readPlan(r)
	if err != nil {
		return err
	}
	d, err := f.savedRequest(r)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("flannel: there is no state file of %s in %s", r.Attachment, f.dir.Dir)
	}
	if err != nil {
		return err
	}
	d.Prev = r.Prev.Clone()
	_, err = runDelegate(ctx, d)
	return err
}

// get runs the delegate's GET. An attachment without a state file has code 3.
func get(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	f, err := readPlan(r)
	if err != nil {
		return nil, err
	}
	d, err := f.savedRequest(r)
	if errors.Is(err, os.ErrNotExist) {
		return nil, spec.Errorf(spec.CodeUnknown, "flannel: no attachment %s is known", r.Attachment)
	}
	if err != nil {
		return nil, err
	}
	d.Prev = r.Prev.Clone()
	return runDelegate(ctx, d)
}

// status requires that flanneld has written subnet.env, that state files can be stored, and that
// the delegate is found and ready. Errors have code 50, or 51 if the delegate's error has that.
func status(ctx context.Context, r *spec.Request) error {
	f, err := readPlan(r)
	if err != nil {
		return err
	}
	env, err := f.env(spec.CodeNotReady)
	if err != nil {
		return err
	}
	if err := f.dir.CheckWritable(); err != nil {
		return err
	}
	d, _, err := f.delegate(r, env)
	if err != nil {
		return err
	}
	_, err = runDelegate(ctx, d)
	if e := spec.AsError(err); e != nil && e.Code != spec.CodeNotReady && e.Code != spec.CodeLimited {
		return spec.Errorf(spec.CodeNotReady, "%v", err) // not wrapped, for the code
	}
	return err
}

// gc runs the delegate's GC, then DEL of each attachment of this network that has a state file and
// is not valid. An error does not stop it. GC comes first: it deletes all links in one request,
// which is much faster.
func gc(ctx context.Context, r *spec.Request) error {
	f, err := readPlan(r)
	var errs []error
	if err != nil {
		r.Warn("%v: going by the state files in %s", err, f.dir.Dir)
	} else {
		env, _ := readSubnetEnv(f.SubnetFile) // not needed for GC
		d, _, err := f.delegate(r, env)
		if err == nil {
			_, err = runDelegate(ctx, d)
		}
		errs = append(errs, err)
	}
	valid := make(map[spec.Attachment]bool, 2*len(r.Valid))
	for _, a := range r.Valid {
		valid[a] = true
		// The reference's state files do not name the interface.
		valid[spec.Attachment{Network: a.Network, ContainerID: a.ContainerID}] = true
	}
	errs = append(errs, f.dir.Each(func(file string) error {
		if strings.HasSuffix(file, brokenSuffix) {
			return nil
		}
		s, err := f.dir.load(file)
		if err != nil || s.owner.Network != r.Network || valid[s.owner] {
			return nil
		}
		return f.collect(ctx, r, s)
	}))
	return errors.Join(errs...)
}

// collect releases the attachment of one record. A record of the reference may not name the
// interface, which is then eth0.
func (f *plan) collect(ctx context.Context, r *spec.Request, s *delegateRecord) error {
	a := spec.Attachment{Network: r.Network, ContainerID: s.owner.ContainerID, IfName: s.owner.IfName}
	if a.IfName == "" {
		a.IfName = "eth0"
	}
	d, err := r.Derive(spec.Call{Verb: spec.Del, ContainerID: a.ContainerID, IfName: a.IfName, Path: r.Call.Path, Session: r.Call.Session}, s.conf)
	if err != nil {
		f.dir.quarantine(r, s.file, err)
		return nil
	}
	if _, err := runDelegate(ctx, d); err != nil {
		return fmt.Errorf("%s: %w", a, err)
	}
	return f.dir.remove(a)
}
