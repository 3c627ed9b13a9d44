package chain

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/cnibox/cnibox/spec"
)

// FoldType is the type of the plugin that runs the plugins of its member "plugins" in its own process,
// as the delegation of the specification has it (CNI 1.0.0, section 4). A [List] has these plugins
// in its place, so a runtime of this program runs a folded list as any other.
const FoldType = "cnibox"

// A Fold has the keys of a folded list.
type Fold struct {
	Plugins []json.RawMessage `json:"plugins"`
}

// members returns the plugins of a folded list. Each has of the capabilities those that the folded
// list has too, since it gets no others, in its runtimeConfig what that of the folded list has of its
// capabilities, and args.
func (p *Plugin) members() ([]Plugin, error) {
	var fold struct {
		Plugins, RuntimeConfig, Args json.RawMessage
	}
	if err := json.Unmarshal(p.conf, &fold); err != nil {
		return nil, decodeError(p.From.Key, p.conf, &fold, err)
	}
	key := spec.JoinKeys(p.From.Key, "plugins")
	if fold.Plugins == nil {
		return nil, spec.Errorf(spec.CodeConfig, "%q is missing: it has the plugins that %s runs", key, FoldType).AtKey(p.From.Key)
	}
	docs, err := elements(key, fold.Plugins)
	if err != nil {
		return nil, err
	}
	members := make([]Plugin, len(docs))
	for i, doc := range docs {
		m, err := parsePlugin(spec.ElementKey(key, i), doc)
		if err == nil && m.Type == FoldType {
			err = spec.Errorf(spec.CodeConfig, "%s is of the type %q in another of that type: write its plugins into the outer one", m.From.Key, FoldType).AtKey(m.From.Key + ".type")
		}
		if err == nil {
			err = m.enter(p, fold.RuntimeConfig, fold.Args)
		}
		if err != nil {
			return nil, err
		}
		members[i] = m
	}
	return members, nil
}

// enter makes p a member of a folded list. A member without args has those of the list, where a runtime
// adds them.
func (p *Plugin) enter(outer *Plugin, runtimeConfig, args json.RawMessage) error {
	p.From.File, p.From.Doc = outer.From.File, outer.From.Doc
	p.disableCheck = p.disableCheck || outer.disableCheck
	var given map[string]json.RawMessage
	if runtimeConfig != nil {
		if err := spec.Unmarshal(spec.JoinKeys(outer.From.Key, "runtimeConfig"), runtimeConfig, &given); err != nil {
			return spec.Errorf(spec.CodeConfig, "%w", err)
		}
	}
	own := make(map[string]json.RawMessage)
	declared := make(map[string]bool)
	for name, enabled := range p.Capabilities {
		declared[name] = enabled && outer.Capabilities[name]
		if v, ok := given[name]; ok && enabled {
			own[name] = v
		}
	}
	p.Capabilities = declared
	set := make(map[string]any)
	if len(own) > 0 {
		set["runtimeConfig"] = own
	}
	var has struct{ Args json.RawMessage }
	if args != nil && json.Unmarshal(p.conf, &has) == nil && has.Args == nil {
		set["args"] = args
	}
	if len(set) == 0 {
		return nil
	}
	conf, err := spec.Merge(p.conf, set)
	p.conf = conf
	return err
}

// FoldPlugin is the plugin of the type [FoldType], for runtimes that run it as any plugin. What it
// returns is that of the same list run by libcni: results, errors with the type of the member, codes,
// and the undo of a failed ADD.
func FoldPlugin() spec.Plugin {
	var f folded
	return spec.Plugin{
		Facts: spec.Facts{Args: true, Interface: true}, Validate: f.validate,
		Add: f.add, Get: f.get, Check: f.check, Del: f.del, Status: f.status, GC: f.gc, Restore: f.restore,
	}
}

// A folded has the verbs of the plugin.
type folded struct{}

// list returns the list of a request, and what runs it.
func (f folded) list(r *spec.Request) (*Runner, *List, RuntimeConf, error) {
	p := Plugin{Type: FoldType, conf: r.Conf()}
	l := &List{Name: r.Net.Name, CNIVersion: r.Net.CNIVersion}
	invoker := r.Invoker
	if i, ok := invoker.(*Invoker); ok { // the directory of plugins needs no file for a member
		own := *i
		own.BuiltIn = true
		invoker = &own
	}
	runner := &Runner{Invoker: invoker, Warn: r.Warn, Session: r.Call.Session, call: &r.Call}
	t := RuntimeConf{ContainerID: r.ContainerID, IfName: r.IfName, NetNS: r.Call.NetNS, session: r.Call.Session}
	return runner, l, t, l.append(p)
}

func (f folded) validate(r *spec.Request) (all spec.Resources, err error) {
	runner, l, t, err := f.list(r)
	for i := range l.Plugins {
		p := &l.Plugins[i]
		var req *spec.Request
		var own spec.Resources
		if req, err = runner.request(r.Call.Verb, l, p, t, nil); err == nil {
			own, err = req.Validate(p.Type)
		}
		if err != nil {
			return all, failed(spec.Add, l, p, err)
		}
		all.Add(own)
	}
	return all, err
}

func (f folded) add(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	runner, l, t, err := f.list(r)
	if err != nil {
		return nil, err
	}
	reqs, err := runner.addRequests(l, t)
	if err != nil {
		return nil, err
	}
	reqs[0].Prev = r.Prev
	res, done, err := runner.addAll(ctx, l, t, reqs, false)
	if err == nil {
		return res, nil
	}
	if errs := runner.delBegun(ctx, l, done, t); len(errs) > 0 {
		return nil, notUndone(err, errs)
	}
	return nil, err
}

func (f folded) check(ctx context.Context, r *spec.Request) error {
	runner, l, t, err := f.list(r)
	if err != nil || l.unchecked() {
		return err
	}
	return runner.checkAll(ctx, l, t, r.Prev)
}

func (f folded) get(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	runner, l, t, err := f.list(r)
	if err != nil {
		return nil, err
	}
	return runner.getAll(ctx, l, t, r.Prev)
}

// delFold runs DEL of all members that have a type, whatever is wrong with the others.
func (f folded) del(ctx context.Context, r *spec.Request) error {
	runner, l, t, err := f.list(r)
	if err != nil {
		r.Warn("ignored: %v", err)
		l.Plugins = namedMembers(r)
	}
	return errors.Join(runner.delAll(ctx, l, t, r.Prev, true)...)
}

// namedMembers returns the plugins of a folded list that is not valid as far as DEL needs them.
func namedMembers(r *spec.Request) (members []Plugin) {
	for i, doc := range Confs(r.Conf()) {
		var w struct{ Type string }
		_ = json.Unmarshal(doc, &w) // what has no type is none
		if w.Type != FoldType && spec.CheckType(w.Type) == nil {
			members = append(members, Plugin{Type: w.Type, conf: doc, From: Source{Key: spec.ElementKey("plugins", i)}})
		}
	}
	return members
}

// Confs returns the configurations of the plugins of a list, valid or not, or a configuration of one
// plugin itself; those of folded lists are in place of these.
func Confs(doc []byte) (all []json.RawMessage) {
	var list struct {
		Type    string
		Plugins []json.RawMessage
	}
	_ = json.Unmarshal(doc, &list)
	if list.Plugins == nil {
		return []json.RawMessage{doc}
	}
	for _, raw := range list.Plugins[:min(len(list.Plugins), MaxPlugins)] {
		var p struct {
			Type string
			Fold
		}
		if _ = json.Unmarshal(raw, &p); p.Type != FoldType || list.Type == FoldType {
			all = append(all, raw)
			continue
		}
		all = append(all, p.Plugins...)
	}
	return all[:min(len(all), MaxPlugins)]
}

func (f folded) status(ctx context.Context, r *spec.Request) error {
	runner, l, _, err := f.list(r)
	if err != nil {
		return err
	}
	return runner.statusAll(ctx, l)
}

func (f folded) gc(ctx context.Context, r *spec.Request) error {
	runner, l, _, err := f.list(r)
	if err != nil {
		return err
	}
	return errors.Join(runner.gcAll(ctx, l, r.Valid)...)
}

func (f folded) restore(ctx context.Context, r *spec.Request) error {
	runner, l, t, err := f.list(r)
	if err != nil {
		return err
	}
	var errs []error
	for i := range l.Plugins {
		p := &l.Plugins[i]
		if builtIn, err := runner.Invoker.Find(p.Type); err == nil && builtIn != nil && builtIn.Restore != nil {
			errs = append(errs, runner.restorePlugin(ctx, l, p, t, r.Prev, func(text string) { r.Did("%s", text) }))
		}
	}
	return errors.Join(errs...)
}
