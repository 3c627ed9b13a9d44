package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// calls is the file with a line for each call of a plugin by the CRI plugin.
const calls = work + "/calls"

// recorded are the plugins that this program replaces in criDir: it records the call and calls
// cnibox.
var recorded = []string{"loopback", "bridge", "portmap", "bandwidth"}

// recordedFolded are those with a folded list.
var recordedFolded = []string{"loopback", fold}

// fold is the type of a folded list, whose members are recorded as plugins of their own.
const fold = "cnibox"

func isRecorded(name string) bool { return slices.Contains(append(recordedFolded, recorded...), name) }

// A call is what a runtime passed to one plugin, with the members of the configuration that the
// trials check.
type call struct {
	Plugin, Verb, ID, NetNS, IfName, Args string
	Conf                                  struct {
		CNIVersion    string
		PrevResult    json.RawMessage
		RuntimeConfig json.RawMessage
	}
}

// record is the program under a plugin's name. It passes on the output and the exit code of cnibox.
func record(plugin string) (code int) {
	conf, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = appendCall(plugin, conf)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		return 1
	}
	cmd := exec.Command(filepath.Join(pluginDir, plugin))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(conf), os.Stdout, os.Stderr
	err = cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1)
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		return 1
	}
	return 0
}

// appendCall appends one line by one write, since plugins run concurrently.
func appendCall(plugin string, conf []byte) error {
	line, err := json.Marshal(map[string]any{
		"Plugin": plugin, "Verb": os.Getenv("CNI_COMMAND"), "ID": os.Getenv("CNI_CONTAINERID"),
		"NetNS": os.Getenv("CNI_NETNS"), "IfName": os.Getenv("CNI_IFNAME"), "Args": os.Getenv("CNI_ARGS"),
		"Conf": json.RawMessage(conf),
	})
	if err != nil {
		return err
	}
	line = append(line, '\n')
	for _, member := range members(plugin, conf) {
		line = append(line, bytes.Replace(line[:bytes.IndexByte(line, '\n')+1], []byte(`"Plugin":"`+plugin+`"`), []byte(`"Plugin":"`+member+`"`), 1)...)
	}
	f, err := os.OpenFile(calls, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(line)
	return errors.Join(err, f.Close())
}

// members returns the types of the plugins of a folded list.
func members(plugin string, conf []byte) (types []string) {
	var list struct{ Plugins []struct{ Type string } }
	if plugin != fold || json.Unmarshal(conf, &list) != nil {
		return nil
	}
	for _, p := range list.Plugins {
		types = append(types, p.Type)
	}
	return types
}

func callsOf(plugin, verb, id string) (found []call, err error) {
	f, err := os.Open(calls)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for dec := json.NewDecoder(f); ; {
		var c call
		if err := dec.Decode(&c); err == io.EOF {
			return found, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", calls, err)
		}
		if c.Plugin == plugin && c.Verb == verb && c.ID == id {
			found = append(found, c)
		}
	}
}
