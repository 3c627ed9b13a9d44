package sandbox

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The error is one line with what is missing and a solution that this kernel permits.
func TestMissingPrivilege(t *testing.T) {
	const all = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_SYS_ADMIN
	tests := map[string]struct {
		effective uint32
		foreign   bool
		sysctls   map[string]string
		want      []string // parts of the error; nil: none
	}{
		"root":        {all, false, nil, nil},
		"of another":  {all, true, nil, []string{"user namespace:", "unshare -Urnm"}},
		"none":        {0, false, nil, []string{"CAP_NET_ADMIN", "unshare -Urnm"}},
		"one":         {1 << unix.CAP_NET_ADMIN, false, nil, []string{"without CAP_SYS_ADMIN:"}},
		"none left":   {0, false, map[string]string{"user/max_user_namespaces": "0"}, []string{"user.max_user_namespaces=0 allows no user namespace"}},
		"Debian":      {0, false, map[string]string{"kernel/unprivileged_userns_clone": "0"}, []string{"kernel.unprivileged_userns_clone=0"}},
		"Debian, on":  {0, false, map[string]string{"kernel/unprivileged_userns_clone": "1"}, []string{"unshare -Urnm"}},
		"by AppArmor": {0, false, map[string]string{"kernel/apparmor_restrict_unprivileged_userns": "1"}, []string{"apparmor_restrict_unprivileged_userns=1"}},
	}
	for name, tt := range tests {
		err := missingPrivilege(tt.effective, tt.foreign, func(key string) string { return tt.sysctls[key] })
		if tt.want == nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, os.ErrPermission) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not have %q", name, err, want)
			}
		}
	}
}
