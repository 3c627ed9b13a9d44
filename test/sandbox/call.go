package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// callTime limits one process, which is then killed. It is generous for busy machines.
const callTime = 5 * time.Minute

// A Call is one process, as a runtime or a user would start it.
type Call struct {
	Argv  []string
	Env   []string // the whole environment
	Stdin []byte
}

// Plugin returns the environment of a runtime's call of a plugin. The reference starts iptables and
// needs PATH.
func Plugin(verb, containerID, netns, ifname, path string) []string {
	return []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + containerID, "CNI_NETNS=" + netns,
		"CNI_IFNAME=" + ifname, "CNI_PATH=" + path, "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
	}
}

// Run runs the process in the namespaces of this thread and returns its stdout and the time from
// before its start until after its end. The error has the process's own message.
func (c Call) Run() (stdout []byte, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	var out, diag bytes.Buffer
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = c.Env, &out, &diag
	if c.Stdin != nil {
		cmd.Stdin = bytes.NewReader(c.Stdin)
	}
	begin := time.Now()
	err = cmd.Run()
	took = time.Since(begin)
	if err != nil {
		return nil, took, fmt.Errorf("%s: %w: %s", strings.Join(c.Argv, " "), err, reason(out.Bytes(), diag.Bytes()))
	}
	return out.Bytes(), took, nil
}

// reason returns the message of a failed process: the error object of a plugin on stdout, else its
// stderr.
func reason(stdout, stderr []byte) string {
	var e struct{ Msg, Details string }
	if json.Unmarshal(stdout, &e) == nil && e.Msg != "" {
		return strings.TrimSpace(e.Msg + " " + e.Details)
	}
	return strings.TrimSpace(string(stderr))
}
