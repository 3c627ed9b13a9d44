package applets_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets"
	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// ADD of a link without an end on the host gives its namespace an ID there, or goes without where it
// lacks the privilege; then RESTORE gives it.
func TestKernelNamesNamespaces(t *testing.T) {
	applettest.Plugins["macvlan"].Need(t)
	h := applettest.NewHost(t)
	conn := kerneltest.Dial(t, h.NS)
	id := func(c applettest.Container) int {
		t.Helper()
		n, err := conn.NSID(c.NS)
		h.NoError(err)
		return n
	}
	const keys = `"master":"up0"`
	h.Segment()
	named, later := h.Container("named"), h.Container("later")
	_, err := h.Do(spec.Add, "macvlan", named.Call(), keys, "")
	h.NoError(err)
	if id(named) < 0 {
		t.Error("ADD gives no ID")
	}
	fault.Hook = func(what string) error {
		if strings.HasPrefix(what, "netns set") {
			return os.ErrPermission
		}
		return nil
	}
	defer func() { fault.Hook = nil }()
	res, err := h.Do(spec.Add, "macvlan", later.Call(), keys, "")
	fault.Hook = nil
	h.NoError(err)
	if n := id(later); n >= 0 {
		t.Errorf("it has ID %d already", n)
	}
	prev, err := json.Marshal(res)
	h.NoError(err)
	call := later.Call()
	call.Verb = spec.Restore
	req, err := spec.NewRequest(call, fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net1","type":"macvlan",%s,"prevResult":%s}`, keys, prev))
	h.NoError(err)
	req.Invoker = &chain.Invoker{Lookup: applets.All().Plugin}
	macvlan, _ := applets.Lookup("macvlan")
	h.NoError(h.NS.Do(func() error {
		_, err := macvlan.Plugin().Do(t.Context(), req)
		return err
	}))
	if id(later) < 0 {
		t.Error("RESTORE gives no ID")
	}
}
