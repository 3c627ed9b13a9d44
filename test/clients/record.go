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

// recorded are the plugins in whose place this program stands there: it writes
// down what it was asked and asks cnibox.
var recorded = []string{"loopback", "bridge", "portmap", "bandwidth"}

func isRecorded(name string) bool { return slices.Contains(recorded, name) }

// A call is what a runtime passed to one plugin. Members of the configuration that the
// trial does not look at are left out.
type call struct {
	Plugin, Verb, ID, NetNS, IfName, Args string
	Conf                                  struct {
		CNIVersion    string
		PrevResult    json.RawMessage
		RuntimeConfig json.RawMessage
	}
}

// record is the program under a plugin's name. What cnibox writes and its exit code
// go to the runtime as they are.
func record(plugin string) (code int) {
	conf, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = note(plugin, conf)
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

// note appends one line by one write, since plugins run at the same time.
func note(plugin string, conf []byte) error {
	line, err := json.Marshal(map[string]any{
		"Plugin": plugin, "Verb": os.Getenv("CNI_COMMAND"), "ID": os.Getenv("CNI_CONTAINERID"),
		"NetNS": os.Getenv("CNI_NETNS"), "IfName": os.Getenv("CNI_IFNAME"), "Args": os.Getenv("CNI_ARGS"),
		"Conf": json.RawMessage(conf),
	})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(calls, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// callsOf returns the calls of a plugin with a verb for a container.
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
