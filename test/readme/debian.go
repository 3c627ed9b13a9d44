package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
)

// home is the directory of the checkout in the Debian.
const home = "root/cnibox"

// passed are the settings of Go that the Debian shares with this machine.
var passed = []string{"GOROOT", "GOCACHE", "GOMODCACHE", "GOPROXY", "GOSUMDB", "GOFLAGS"}

// goEnv returns these settings of Go.
func goEnv() (map[string]string, error) {
	out, err := exec.Command("go", append([]string{"env", "-json"}, passed...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	env := map[string]string{}
	return env, json.Unmarshal(out, &env)
}

// environ returns the environment of a login as root, with the settings of Go.
func environ(env map[string]string) []string {
	list := []string{
		"HOME=/root", "USER=root", "TERM=dumb", "LC_ALL=C.UTF-8", "GOTOOLCHAIN=local",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:" + env["GOROOT"] + "/bin",
	}
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	return list
}

// copyCheckout copies the checkout without build results and .git.
func copyCheckout(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	pack := command("tar", "-C", from, "--exclude=./.git", "--exclude=./bin", "-cf", "-", ".")
	unpack := command("tar", "-C", to, "--no-same-owner", "-xf", "-")
	pack.Stdout = nil
	var err error
	if unpack.Stdin, err = pack.StdoutPipe(); err != nil {
		return err
	}
	if err := unpack.Start(); err != nil {
		return err
	}
	err = pack.Run()
	if e := unpack.Wait(); err == nil {
		err = e
	}
	return err
}
