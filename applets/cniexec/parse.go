package cniexec

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/spec"
)

// The options are what the caller typed, and stay as parse has read them.
type options struct {
	flags
	set      *pflag.FlagSet
	verb     string // empty: none
	args     []string
	operands []string // the verb first
	command  []string // after "--"; nil: none
	dirsErr  error    // why the directories of state are not known, with code 4
}

// resolveDirs completes the directories of state: plugins get paths below them. The error has code 4.
func (f *flags) resolveDirs(getenv func(string) string) (err error) {
	if f.stateDir == "" {
		f.stateDir, err = spec.StateDir(getenv)
	}
	for _, dir := range []*string{&f.stateDir, &f.cacheDir} {
		if err == nil && *dir != "" {
			*dir, err = filepath.Abs(*dir)
		}
	}
	return err
}

// parse reads flags, in any place among the operands, up to "--", after which the command follows.
// They are the flags of the verb, or of all verbs if there is none. The error is the first one.
// Without a verb the action is nil.
func parse(p applet.Process) (c *call, a action, err error) {
	c = &call{Process: p, options: options{args: p.Args}}
	l := &c.options
	if i := slices.Index(p.Args, "--"); i >= 0 {
		l.args, l.command = p.Args[:i], append([]string{}, p.Args[i+1:]...)
	}
	v := findVerb(verbIn(l.args))
	if v != nil {
		a = v.new(c)
		l.set = l.flags.declare(a, p.Getenv)
	} else {
		l.set = allFlags(&l.flags, p.Getenv)
	}
	if v != nil && v.command && l.command == nil {
		if at := operandsAt(l.args, l.set); len(at) > v.before+1 {
			l.args, l.command = p.Args[:at[v.before+1]], slices.Clone(p.Args[at[v.before+1]:])
		}
	}
	if err = l.set.ParseAll(l.args, l.once); v != nil && v.command {
		err = cmp.Or(terminalFlag(v, l.args), err)
	}
	if f := l.set.Lookup("ifname"); err == nil && f != nil && !f.Changed && slices.Contains(p.Environ, "CNI_IFNAME=") {
		err = errors.New("CNI_IFNAME is set and empty: interface name is empty; unset it for eth0") // as cnitool
	}
	l.operands = l.set.Args()
	if err != nil && asksForJSON(l.args) { // it concerns this error
		l.output = outputJSON
	}
	if word := verbIn(l.args); err != nil && word != "" && len(l.operands) == 0 {
		l.operands = []string{word}
	}
	if len(l.operands) > 0 {
		l.verb = l.operands[0]
	}
	l.dirsErr = l.resolveDirs(p.Getenv)
	if err != nil {
		err = v.flagError(err)
	}
	return c, a, err
}

// once sets a flag. A second value of one that takes a single value is an error: only one would have
// an effect.
func (o *options) once(flag *pflag.Flag, value string) error {
	if flag.Changed && !repeatable(flag) {
		return fmt.Errorf("--%s is given twice", flag.Name)
	}
	return o.set.Set(flag.Name, value)
}

// terminalFlag returns an error for the flags that other tools take for a command at a terminal: -it
// would be the name of an interface here.
func terminalFlag(v *verb, args []string) error {
	for _, flag := range []string{"-it", "-ti", "-t"} {
		if slices.Contains(args, flag) {
			return fmt.Errorf("%s: %s is not needed: the command has this terminal; leave it out, or name an interface with --ifname", v.name, flag)
		}
	}
	return nil
}

// verbIn finds the verb among words: the first that is neither a flag nor the value of one; empty:
// none.
func verbIn(words []string) string {
	if len(words) > 0 && !strings.HasPrefix(words[0], "-") {
		return words[0]
	}
	if at := operandsAt(words, allFlags(new(flags), func(string) string { return "" })); len(at) > 0 {
		return words[at[0]]
	}
	return ""
}

// operandsAt returns the indexes of the words that are neither flags of the set nor values of these.
func operandsAt(words []string, set *pflag.FlagSet) (at []int) {
	needsValue := func(f *pflag.Flag) bool { return f != nil && f.NoOptDefVal == "" }
	for i := 0; i < len(words); i++ {
		w := words[i]
		if name, long := strings.CutPrefix(w, "--"); long {
			if !strings.Contains(name, "=") && needsValue(set.Lookup(name)) {
				i++
			}
			continue
		}
		if len(w) < 2 || w[0] != '-' {
			at = append(at, i)
		} else if len(w) == 2 && needsValue(set.ShorthandLookup(w[1:])) {
			i++
		}
	}
	return at
}

// asksForJSON reports whether words that cannot be parsed ask for --output json.
func asksForJSON(args []string) bool {
	line := " " + strings.Join(args, " ") + " "
	return slices.ContainsFunc([]string{" -o json ", " -o=json ", " -ojson ", " --output json ", " --output=json "}, func(flag string) bool {
		return strings.Contains(line, flag)
	})
}

// flagError rewords an error of pflag. A flag of other verbs is an error, since it would have no
// effect.
func (v *verb) flagError(err error) error {
	var unknown *pflag.NotExistError
	var needs *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	name := func(flag, short string) string {
		if short != "" {
			return "-" + flag
		}
		return "--" + flag
	}
	switch {
	case errors.As(err, &unknown) && v != nil:
		flag := unknown.GetSpecifiedName()
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			if f := allFlags(new(flags), func(string) string { return "" }).ShorthandLookup(flag); f != nil {
				return fmt.Errorf("%s: -%s is a flag of %s", v.name, flag, strings.Join(verbsWith(f.Name), ", "))
			}
		}
		with := verbsWith(flag)
		switch {
		case len(with) == 0:
			return v.unknownFlag(flag, unknown.GetSpecifiedShortnames() == "")
		}
		return fmt.Errorf("%s: --%s is a flag of %s", v.name, flag, strings.Join(with, ", "))
	case errors.As(err, &unknown):
		return v.unknownFlag(unknown.GetSpecifiedName(), unknown.GetSpecifiedShortnames() == "")
	case errors.As(err, &needs):
		return fmt.Errorf("%s needs a value", name(needs.GetSpecifiedName(), needs.GetSpecifiedShortnames()))
	case errors.As(err, &invalid):
		reason := invalid.Unwrap()
		var number *strconv.NumError
		if errors.As(reason, &number) {
			reason = fmt.Errorf("it must be %s", map[string]string{"int": "a number", "bool": "true or false"}[invalid.GetFlag().Value.Type()])
		}
		return fmt.Errorf("--%s %q: %w", invalid.GetFlag().Name, invalid.GetValue(), reason)
	}
	return err
}

// cniArgs reads CNI_ARGS in order; nil: none. cnitool refuses an empty pair and a second "=" in a
// pair; runtimes send both. The error has code 4.
func cniArgs(s string) (pairs [][2]string, err error) {
	for pair := range strings.SplitSeq(s, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, spec.Errorf(spec.CodeEnv, "CNI_ARGS: invalid pair %q: it must be KEY=VALUE", pair)
		}
		pairs = append(pairs, [2]string{key, value})
	}
	return pairs, nil
}

// capArgs reads CAP_ARGS; nil: none, also for null. A value that is not an object is an error.
// Errors have code 4.
func capArgs(s string) (caps map[string]json.RawMessage, err error) {
	if s == "" {
		return nil, nil
	}
	if err := spec.Unmarshal("CAP_ARGS", []byte(s), &caps); err != nil {
		return nil, spec.Errorf(spec.CodeEnv, "%w", err)
	}
	return caps, nil
}
