package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// install installs what is missing of the Debian packages that the steps need; where there is no dpkg, tests skip
// what they do not find.
func (r *runner) install(steps []step) error {
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		return nil
	}
	var missing []string
	for _, s := range steps {
		missing = append(missing, s.needs...)
	}
	slices.Sort(missing)
	missing = lacking(slices.Compact(missing))
	if len(missing) == 0 {
		return nil
	}
	// RUNLEVEL=1 keeps the packages from starting their services.
	get := append([]string{"env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "apt-get", "-qq", "-o", "Dpkg::Use-Pty=0",
		"-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3", "install", "-y", "--no-install-recommends"}, missing...)
	update := []string{"apt-get", "-qq", "-o", "Acquire::Retries=3", "update"}
	if os.Geteuid() != 0 {
		sudo := []string{"sudo", "-n"}
		get, update = append(sudo, get...), append(sudo, update...)
	}
	begin := time.Now()
	for _, argv := range [][]string{update, get} {
		res, err := r.run(step{name: "packages", limit: 15 * time.Minute, argv: argv, fetch: true})
		if err != nil {
			return errors.Join(fmt.Errorf("could not install %s", strings.Join(missing, " ")), err)
		}
		if &argv[0] == &get[0] {
			res.took = time.Since(begin)
			r.results = append(r.results, res)
		}
	}
	return nil
}

// lacking returns those of the packages that are not installed.
func lacking(packages []string) []string {
	var out bytes.Buffer
	cmd := exec.Command("dpkg-query", append([]string{"-W", "-f", "${Package} ${db:Status-Status}\n"}, packages...)...)
	cmd.Stdout = &out // what it does not know is an error on stderr
	_ = cmd.Run()
	installed := strings.Split(out.String(), "\n")
	return slices.DeleteFunc(packages, func(p string) bool { return slices.Contains(installed, p+" installed") })
}
