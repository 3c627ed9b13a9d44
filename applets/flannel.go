//go:build !no_flannel

package applets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"cnibox/spec"
)

func init() {
	register(&Applet{
		Name:    "flannel",
		Summary: "runs another plugin with the subnet that flanneld gave this node",
		Help: `
key            type    default                  meaning
subnetFile     string  /run/flannel/subnet.env  what flanneld writes; an absolute path
dataDir        string  /var/lib/cni/flannel     what delegates were told, until DEL; absolute
delegate       object  {}                       configuration of the plugin to run: "type" is
                                                bridge unless given; no "name", no "ipam"
ipam           object  {}                       its "ipam": "type" is host-local unless given;
                                                ranges are set, routes to the cluster added
runtimeConfig  object  -                        handed on as it is

Keys that delegate does not have are set: ipMasq true unless flanneld masquerades (FLANNEL_IPMASQ),
mtu from FLANNEL_MTU, and isGateway true for a bridge.
subnet.env has FLANNEL_NETWORK and FLANNEL_IPV6_NETWORK (networks between commas), FLANNEL_SUBNET,
FLANNEL_IPV6_SUBNET, FLANNEL_MTU and FLANNEL_IPMASQ; of each pair one will do.`,
		Verbs: spec.Verbs{Add: addFlannel, Check: checkFlannel, Del: delFlannel, Get: getFlannel, Status: statusFlannel, GC: gcFlannel, Args: true},
	})
}

// flannelUndoTime is how long undoing a failed ADD may take, whatever became of
// the context of the ADD itself.
const flannelUndoTime = 5 * time.Second

// delegate makes the request of a delegate of a configuration.
func (f *flannel) delegate(r *spec.Request, env *subnetEnv) (*spec.Request, []byte, error) {
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

// runDelegate runs the verb of a delegate's request. Errors keep the delegate's code.
func runDelegate(ctx context.Context, d *spec.Request) (*spec.Result, error) {
	res, err := d.Invoker.Invoke(ctx, d.Net.Type, d)
	if err != nil {
		return nil, fmt.Errorf("flannel: delegate %s: %w", d.Net.Type, err)
	}
	return res, nil
}

// addFlannel writes down what the delegate is told, then runs it.
// Errors of subnet.env have code 11: flanneld may be about to write it.
func addFlannel(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	f, err := readFlannel(r)
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
	// What a DEL would not find either must not be written down.
	if known, ok := d.Invoker.(interface{ Find(plugin string) error }); ok {
		if err := known.Find(d.Net.Type); err != nil {
			return nil, fmt.Errorf("delegate: %w", err)
		}
	}
	before, err := f.dir.find(r)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := f.dir.save(r.Attachment, conf); err != nil {
		return nil, fmt.Errorf("state of the delegate: %w", err)
	}
	res, err := runDelegate(ctx, d)
	if err != nil {
		return nil, f.undo(ctx, r, conf, before, err)
	}
	return res, nil
}

// env reads subnet.env; what is wrong with it has the given code.
func (f *flannel) env(code int) (*subnetEnv, error) {
	env, err := readSubnetEnv(f.SubnetFile)
	if err != nil {
		return nil, spec.Errorf(code, "failed to load flannel 'subnet.env' file: %w (flanneld writes it when it has got a subnet: "+
			"is it running? see the log of this node's flannel pod)", err)
	}
	return env, nil
}

// undo follows a failed ADD of the delegate by its DEL, as the specification
// has it, and forgets it. Not so if the attachment was there before: a second ADD
// takes nothing away from the first. Nor after code 100, where what the delegate
// would delete is somebody else's.
func (f *flannel) undo(ctx context.Context, r *spec.Request, conf []byte, before *flannelRecord, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flannelUndoTime)
	defer cancel()
	var left error
	switch {
	case before != nil && before.file == flannelFile(r.Attachment):
		left = f.dir.save(r.Attachment, before.conf)
	case before != nil:
		left = f.dir.remove(flannelFile(r.Attachment))
	default:
		if spec.AsError(err).Code != spec.CodeBusy {
			left = f.release(ctx, r, conf)
		}
		// What could not be released is for a later DEL, which needs the file.
		if left == nil {
			left = f.dir.forget(r.Attachment)
		}
	}
	if left == nil {
		return err
	}
	return spec.AsError(err).WithDetails("undo: %v", left)
}

// release runs the delegate's DEL after its ADD.
func (f *flannel) release(ctx context.Context, r *spec.Request, conf []byte) error {
	del := r.Call
	del.Verb = spec.Del
	d, err := r.Derive(del, conf)
	if err == nil {
		_, err = runDelegate(ctx, d)
	}
	return err
}

// saved returns the request of the attachment's delegate as it was at ADD, with
// prevResult. The error is os.ErrNotExist if there is no record that can be used.
func (f *flannel) saved(r *spec.Request) (*spec.Request, error) {
	s, err := f.dir.find(r)
	if err != nil {
		return nil, err
	}
	d, err := r.Derive(r.Call, s.conf)
	if err != nil {
		f.dir.setAside(r, s.file, err)
		return nil, os.ErrNotExist
	}
	if r.Prev != nil && d.Net.Version.AtLeast(spec.V040) {
		d.Prev = r.Prev.Clone()
	}
	return d, nil
}

// delFlannel has the delegate release what it was told at ADD, whatever the
// configuration says by now. The file goes when that has succeeded; the reference
// removes it before it knows, and every later DEL does nothing.
func delFlannel(ctx context.Context, r *spec.Request) error {
	f, err := readFlannel(r)
	if err != nil {
		r.Warn("%v: looking in %s for what the delegate was told", err, f.dir.records)
	}
	d, serr := f.saved(r)
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
	return f.dir.forget(r.Attachment)
}

// delUnknown releases by the names what nothing is written down of: a file that
// was lost, or that the reference wrote over for another network. An attachment that
// never was is no error, so that nothing can be released is none either.
func (f *flannel) delUnknown(ctx context.Context, r *spec.Request) {
	env, _ := readSubnetEnv(f.SubnetFile) // releasing does without
	d, _, err := f.delegate(r, env)
	if err == nil {
		_, err = runDelegate(ctx, d)
	}
	if err != nil {
		r.Warn("no state file of %s: %v", r.Attachment, err)
	}
}

// checkFlannel has the delegate check what it made.
// The reference has no CHECK. runtimeConfig is the caller's, if there is one.
func checkFlannel(ctx context.Context, r *spec.Request) error {
	f, err := readFlannel(r)
	if err != nil {
		return err
	}
	s, err := f.dir.find(r)
	if errors.Is(err, os.ErrNotExist) {
		return spec.Errorf(spec.CodeCheck, "flannel: there is no state file of %s in %s", r.Attachment, f.dir.records)
	}
	if err != nil {
		return err
	}
	conf := s.conf
	if len(f.RuntimeConfig) > 0 {
		if conf, err = spec.Splice(conf, []spec.Member{{Name: "runtimeConfig", Value: f.RuntimeConfig}}); err != nil {
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

// getFlannel answers with what the delegate knows, or makes of prevResult.
// An attachment without a record has code 3.
func getFlannel(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	f, err := readFlannel(r)
	if err != nil {
		return nil, err
	}
	d, err := f.saved(r)
	if errors.Is(err, os.ErrNotExist) {
		return nil, spec.Errorf(spec.CodeUnknown, "flannel: no attachment %s is known", r.Attachment)
	}
	if err != nil {
		return nil, err
	}
	d.Prev = r.Prev.Clone()
	return runDelegate(ctx, d)
}

// statusFlannel is ready when flanneld has given the node its subnet, state can be
// kept, and the delegate is there and ready. Errors have code 50, or the delegate's if
// that is 51.
func statusFlannel(ctx context.Context, r *spec.Request) error {
	f, err := readFlannel(r)
	if err != nil {
		return err
	}
	env, err := f.env(spec.CodeNotReady)
	if err != nil {
		return err
	}
	if f.dir.records.notDir() {
		return spec.Errorf(spec.CodeNotReady, "data directory %s is not a directory", f.dir.records)
	}
	d, _, err := f.delegate(r, env)
	if err != nil {
		return err
	}
	_, err = runDelegate(ctx, d)
	if e := spec.AsError(err); e != nil && e.Code != spec.CodeNotReady && e.Code != spec.CodeLimited {
		return spec.Errorf(spec.CodeNotReady, "%v", err) // not wrapped: the code is ours
	}
	return err
}

// gcFlannel has the delegate collect, then releases each attachment of this
// network that is written down and not valid. It goes on past errors.
// In this order since the delegate's GC deletes its links together, which is much faster.
func gcFlannel(ctx context.Context, r *spec.Request) error {
	f, err := readFlannel(r)
	var errs []error
	if err != nil {
		r.Warn("%v: collecting what is written down in %s", err, f.dir.records)
	} else {
		env, _ := readSubnetEnv(f.SubnetFile) // releasing does without
		d, _, err := f.delegate(r, env)
		if err == nil {
			_, err = runDelegate(ctx, d)
		}
		errs = append(errs, err)
	}
	valid := make(map[recordOwner]bool, 2*len(r.Valid))
	for _, a := range r.Valid {
		valid[ownerOf(a)] = true
		// The reference's files do not say which interface of the container they are of.
		valid[recordOwner{Network: a.Network, ContainerID: a.ContainerID}] = true
	}
	errs = append(errs, f.dir.each(func(file string) error {
		if strings.HasSuffix(file, flannelBroken) {
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

// collect releases the attachment of one record. The interface of one of the
// reference's is taken to be the usual one.
func (f *flannel) collect(ctx context.Context, r *spec.Request, s *flannelRecord) error {
	a := spec.Attachment{Network: r.Network, ContainerID: s.owner.ContainerID, IfName: s.owner.IfName}
	if a.IfName == "" {
		a.IfName = "eth0"
	}
	d, err := r.Derive(spec.Call{Verb: spec.Del, ContainerID: a.ContainerID, IfName: a.IfName, Path: r.Call.Path}, s.conf)
	if err != nil {
		f.dir.setAside(r, s.file, err)
		return nil
	}
	if _, err := runDelegate(ctx, d); err != nil {
		return fmt.Errorf("%s: %w", a, err)
	}
	return f.dir.forget(a)
}
