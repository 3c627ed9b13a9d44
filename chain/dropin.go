package chain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/memory"
	"github.com/cnibox/cnibox/spec"
)

// Load finds a network in a directory, as libcni does: first among *.conflist, then among *.conf
// and *.json, each in the order of file names. It skips broken files. If no file is left, the error
// is that of the first broken file with the network's name, or os.ErrNotExist with the errors of
// all files; its code is that of a broken file, or 3 without one.
//
// With the error of a file that has the name, Load returns a list with only the name and the
// version.
//
// If several files have the name, the first one wins, as with libcni: two runtimes on a host must
// agree. The list's Ignored has the others.
func Load(dir, network string) (*List, error) { return NewDir(dir).Load(network) }

// A Dir is a directory of configurations whose files are read once, for several networks.
type Dir struct {
	path  string
	read  bool
	files []configFile
	err   error
}

// A configFile is what [read] returns.
type configFile struct {
	list *List
	err  error
}

// NewDir returns a directory that is read when the first network is loaded.
func NewDir(path string) *Dir { return &Dir{path: path} }

// Load is [Load] in the directory.
func (d *Dir) Load(network string) (*List, error) {
	// libcni joins the name to the path of the drop-in directory without a check.
	if err := spec.CheckNetworkName(network); err != nil {
		return nil, err
	}
	if !d.read {
		d.err = configs(d.path, func(l *List, err error) { d.files = append(d.files, configFile{l, err}) })
		d.read = true
	}
	if d.err != nil {
		return nil, d.err
	}
	var found, defective *List
	var defect error
	var broken []error
	for _, f := range d.files {
		l, err := f.list, f.err
		switch {
		case err != nil:
			broken = append(broken, err)
			if l == nil && mentions(err, network) {
				l = &List{Name: network}
			}
			if defective == nil && l != nil && l.Name == network {
				defective, defect = l, err
			}
		case l.Name != network:
		case found == nil:
			found = l.copy()
		default:
			found.Ignored = append(found.Ignored, l.File)
		}
	}
	switch {
	case found != nil:
		return found, found.dropIn()
	case defective != nil:
		return defective, defect
	case len(d.files) == 0:
		e := &spec.Error{Code: spec.CodeUnknown, Msg: "no net configurations found in " + d.path, Err: os.ErrNotExist}
		if _, err := os.Stat(d.path); errors.Is(err, os.ErrNotExist) {
			e.Msg += ": no such directory"
		}
		return nil, e
	}
	e := spec.Errorf(spec.CodeUnknown, "%w", errors.Join(append(broken, os.ErrNotExist)...)) // or the code of a broken file
	e.Msg, e.Details = fmt.Sprintf("no net configuration with name %q in %s", network, d.path), ""
	for _, err := range broken { // it may be in this file
		e = e.WithDetails("%v", err)
	}
	return nil, e
}

// copy returns a list of its own for a file, which the drop-in directory is added to.
func (l *List) copy() *List {
	own := *l
	own.Plugins, own.Folds = slices.Clone(l.Plugins), slices.Clone(l.Folds)
	return &own
}

// mentions reports whether an error is about a file that is not JSON but seems to have the name of
// a network.
func mentions(err error, network string) bool {
	var source *SourceError
	var syntax *json.SyntaxError
	return errors.As(err, &source) && errors.As(err, &syntax) &&
		bytes.Contains(bytes.Join(bytes.Fields(source.Doc), nil), []byte(`"name":"`+network+`"`))
}

// configs reads the configurations in a directory, lists before single ones and each kind in the
// order of file names, and calls fn for each. A missing directory has none.
func configs(dir string, fn func(*List, error)) error {
	names, err := filesIn(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return spec.Errorf(spec.CodeIO, "configuration: %w", err)
	}
	for _, exts := range [][]string{{".conflist"}, {".conf", ".json"}} {
		for _, name := range names {
			if hasExt(name, exts) {
				fn(read(filepath.Join(dir, name)))
			}
		}
	}
	return nil
}

// LoadFile loads one file and its drop-in directory: a list, or a single configuration if the name
// ends in .conf or .json.
func LoadFile(file string) (*List, error) {
	l, err := read(file)
	if err != nil {
		return nil, err
	}
	return l, l.dropIn()
}

// Networks returns the names of the networks configured in a directory, in the order of [Load], and
// the errors of the other files. A missing directory has none.
func Networks(dir string) (networks []string, broken []error) {
	lists, broken := Lists(dir)
	for _, l := range lists {
		networks = append(networks, l.Name)
	}
	return networks, broken
}

// Lists is [Networks] with the lists themselves. It includes lists with a broken drop-in plugin,
// without that plugin.
func Lists(dir string) (lists []*List, broken []error) {
	err := configs(dir, func(l *List, err error) {
		if err != nil {
			broken = append(broken, err)
			return
		}
		i := slices.IndexFunc(lists, func(other *List) bool { return other.Name == l.Name })
		if i >= 0 {
			lists[i].Ignored = append(lists[i].Ignored, l.File)
			return
		}
		if err := l.dropIn(); err != nil {
			broken = append(broken, err)
		}
		lists = append(lists, l)
	})
	if err != nil {
		broken = append(broken, err)
	}
	return lists, broken
}

// maxValues is the limit of values in a file, counted as commas. Real files have some hundreds;
// parsing hundreds of thousands takes seconds.
const maxValues = 50_000

// ReadFile reads a configuration file of at most [spec.MaxConf] bytes. The error has the path.
func ReadFile(file string) ([]byte, error) {
	doc, err := disk.Read(file, 0, spec.MaxConf)
	if err != nil {
		return nil, err
	}
	if n := bytes.Count(doc, []byte(",")); n > maxValues {
		return nil, fmt.Errorf("%s has %d commas, and so too many values: at most %d are taken", file, n, maxValues)
	}
	memory.For(len(doc))
	return doc, nil
}

// read parses a file without its drop-in directory. With an error the list has only the name and
// the version, if those can be read, or is nil.
func read(file string) (*List, error) {
	doc, err := ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	from := Source{File: file, Doc: doc}
	parse := Parse
	if hasExt(file, []string{".conf", ".json"}) {
		parse = ParseSingle
	}
	l, err := parse(doc)
	if err != nil {
		var w struct{ Name, CNIVersion string }
		if l = nil; json.Unmarshal(doc, &w) == nil {
			l = &List{Name: w.Name, CNIVersion: w.CNIVersion}
		}
		return l, from.within(err)
	}
	l.File, l.From = file, from
	for _, plugins := range [...][]Plugin{l.Plugins, l.Folds} {
		for i := range plugins {
			plugins[i].From = Source{file, doc, plugins[i].From.Key}
		}
	}
	return l, nil
}

// dropIn appends the plugins of <directory of the list>/<name>/*.conf in the order of file names.
// It checks the name before making a path of it. A missing directory has none; one bad file is an
// error, since a network must not be attached with a part of its plugins.
func (l *List) dropIn() error {
	if err := spec.CheckNetworkName(l.Name); err != nil {
		return l.From.within(spec.AtKey("name", err))
	}
	if l.OnlyInlined {
		return nil
	}
	dir := filepath.Join(filepath.Dir(l.File), l.Name)
	names, err := filesIn(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("drop-in plugins: %w", err)
	}
	for _, name := range names {
		if !hasExt(name, []string{".conf"}) {
			continue
		}
		file := filepath.Join(dir, name)
		doc, err := ReadFile(file)
		if err != nil {
			return fmt.Errorf("drop-in plugin: %w", err)
		}
		from := Source{File: file, Doc: doc}
		p, err := parsePlugin("", doc)
		if err != nil {
			return from.within(err)
		}
		p.From = from
		if err := l.append(p); err != nil {
			return from.within(err)
		}
		l.dropped = true
	}
	if len(l.Plugins) == 0 {
		return l.From.within(spec.Errorf(spec.CodeConfig, "no plugin configs found, neither in it nor in %s", dir))
	}
	return nil
}

// filesIn returns the sorted names in a directory, without directories if the file system reports
// types.
func filesIn(dir string) ([]string, error) {
	entries, err := disk.List(dir)
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// hasExt reports whether a name ends in one of the extensions; it is case sensitive.
func hasExt(name string, exts []string) bool {
	for _, e := range exts {
		if strings.HasSuffix(name, e) {
			return true
		}
	}
	return false
}
