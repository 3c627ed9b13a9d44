package main

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	stepsOfRecord = 60
	cutsOfRecord  = 20
	names         = 4 // containers of each runtime on a network
	never         = math.MaxInt
)

// An attachment lasts from its ADD to its DEL. It has the points of the record at which these began
// and ended.
type attachment struct {
	network, id string
	addrs       []netip.Addr
	begun, made int
	ended       int // its DEL, or the next boot, began
}

// A step is one random action.
type step struct {
	what       string
	begin, end int
}

// A history is the sequence of steps on a medium.
type history struct {
	r     *rand.Rand
	w     *world
	at    func() int // the point of the record
	all   []*attachment
	steps []step
}

// attached returns the attachments of a network that have not ended.
func (h *history) attached(network string) (list []*attachment) {
	for _, a := range h.all {
		if a.network == network && a.ended == never {
			list = append(list, a)
		}
	}
	return list
}

// step takes a random action.
func (h *history) step() error {
	begin := h.at()
	what, err := h.random()
	h.steps = append(h.steps, step{what, begin, h.at()})
	if err != nil {
		return fmt.Errorf("before any cut: %w", err)
	}
	return nil
}

func (h *history) random() (what string, err error) {
	network := networks[h.r.IntN(len(networks))]
	list := h.attached(network)
	switch n := h.r.IntN(100); {
	case n < 6:
		return "reboot", h.reboot()
	case n < 14:
		return "sync", syncDisk()
	case len(list) == 0, len(list) < hosts && n < 60:
		return h.add(network)
	default:
		a := list[h.r.IntN(len(list))]
		a.ended = h.at()
		return "del " + network + " " + a.id, h.w.del(network, a.id)
	}
}

// add attaches a container that is not attached.
func (h *history) add(network string) (what string, err error) {
	list := h.attached(network)
	var id string
	var args []string
	for {
		n := h.r.IntN(names)
		id = fmt.Sprintf("%s-%d", network, n)
		args = nil
		if h.r.IntN(3) == 0 {
			id = "other-" + id
		} else if network == loose && n%2 == 0 {
			args = publish(n)
		}
		if !slices.ContainsFunc(list, func(a *attachment) bool { return a.id == id }) {
			break
		}
	}
	a := &attachment{network: network, id: id, begun: h.at(), ended: never}
	a.addrs, err = h.w.add(network, id, args...)
	a.made = h.at()
	h.all = append(h.all, a)
	return "add " + network + " " + id, err
}

// publish returns the flags for a host port, which a later boot uses again.
func publish(n int) []string { return []string{"-p", fmt.Sprintf("%d:80", 8000+n)} }

// reboot ends all attachments but those of another runtime whose leases are kept.
func (h *history) reboot() (err error) {
	for _, a := range h.all {
		if a.ended == never && (a.network == loose || !foreign(a.id)) {
			a.ended = h.at()
		}
	}
	if err := h.w.end(); err != nil {
		return err
	}
	if h.w, err = boot(); err != nil {
		return err
	}
	_, err = h.w.bootVerb()
	return err
}

func syncDisk() error {
	d, err := os.Open(mounted)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

// moment chooses a point of the record, and its step: either each step is equally likely, or each
// change of the disk, since most steps change nothing and a few change much.
func (h *history) moment(r *rand.Rand) (s step, point int) {
	s = h.steps[r.IntN(len(h.steps))]
	if r.IntN(2) == 0 {
		return s, s.begin + r.IntN(s.end-s.begin+1)
	}
	last := h.steps[len(h.steps)-1].end
	point = h.steps[0].begin + r.IntN(last-h.steps[0].begin+1)
	for _, s = range h.steps {
		if point <= s.end {
			break
		}
	}
	return s, point
}

// random returns the random numbers for one part of a run.
func random(seed uint64, what ...any) *rand.Rand {
	key := fnv.New64a()
	fmt.Fprint(key, what...)
	return rand.New(rand.NewPCG(seed, key.Sum64()))
}

// cuts makes n cuts, and calls failed for each that fails, until that returns false. An error is
// one of the machine, or of a verb without a cut.
func (m medium) cuts(n int, seed uint64, failed func(cut int, what string, err error) bool) error {
	for first := 1; first <= n; first += cutsOfRecord {
		r := random(seed, m.name, "record", first)
		var cut func(r *rand.Rand) (what string, err error)
		var err error
		if m.name == overlay {
			cut, err = recordLayers(r)
		} else {
			cut, err = m.record(r, m.options[first/cutsOfRecord%len(m.options)])
		}
		if err != nil {
			return err
		}
		for number := first; number < first+cutsOfRecord && number <= n; number++ {
			if what, err := cut(random(seed, m.name, "cut", number)); err != nil && !failed(number, what, err) {
				return nil
			}
		}
	}
	return nil
}

// record makes attachments come and go on a disk that records its changes, mounted with options,
// and returns a function that cuts the power at a random point.
func (m medium) record(r *rand.Rand, options string) (cut func(r *rand.Rand) (string, error), err error) {
	image := filepath.Join(work, m.name+".img")
	if err := m.make(image); err != nil {
		return nil, err
	}
	d, err := newDisk(image)
	if err != nil {
		return nil, err
	}
	file, stop, err := d.serve(filepath.Join(work, "fuse"))
	if err != nil {
		return nil, err
	}
	if err := m.mount(file, mounted, options); err != nil {
		return nil, errors.Join(err, stop())
	}
	h := &history{r: r, at: d.point}
	err = syncDisk()
	if err == nil {
		d.record()
		err = h.run(stepsOfRecord)
	}
	if err := errors.Join(err, unix.Unmount(mounted, 0), stop()); err != nil {
		return nil, err
	}
	return func(r *rand.Rand) (string, error) {
		s, point := h.moment(r)
		content, l := d.cut(point, r)
		what := fmt.Sprintf("during %q, %s", s.what, l)
		if err := content.store(image, d.size); err != nil {
			return what, err
		}
		if err := m.mount(image, mounted, m.after); err != nil {
			return what, err
		}
		err := trial(r, h, point)
		return what, errors.Join(err, unix.Unmount(mounted, 0))
	}, nil
}

// run begins with a boot, takes some steps, and ends without a shutdown.
func (h *history) run(steps int) (err error) {
	if h.w, err = boot(); err != nil {
		return err
	}
	if _, err = h.w.bootVerb(); err == nil {
		for range steps {
			if err = h.step(); err != nil {
				break
			}
		}
	}
	return errors.Join(err, h.w.end())
}

// Directories of the overlay, in tmpfs.
const (
	lower     = work + "/lower"
	upper     = work + "/upper"
	snapshots = 6 // of a record
)

// layer mounts an overlay with an empty upper layer.
func layer(lower string) error {
	if err := os.RemoveAll(upper); err != nil {
		return err
	}
	for _, dir := range []string{lower, upper + "/files", upper + "/work"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	err := unix.Mount("overlay", mounted, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s/files,workdir=%s/work", lower, upper, upper))
	return os.NewSyscallError("mount overlay", err)
}

// recordLayers makes attachments come and go on an overlay, and saves it now and then, as routers
// do. The function that it returns boots a machine whose lower layer is one of these, makes some
// attachments come and go, and cuts its power: the upper layer is lost.
func recordLayers(r *rand.Rand) (cut func(r *rand.Rand) (string, error), err error) {
	if err := os.RemoveAll(lower); err != nil {
		return nil, err
	}
	if err := layer(lower + "/0"); err != nil {
		return nil, err
	}
	last := 0
	h := &history{r: r, at: func() int { last++; return last }}
	points := []int{h.at()} // of the snapshots
	h.w, err = boot()
	for err == nil && len(points) < snapshots {
		for range 1 + r.IntN(stepsOfRecord/snapshots) {
			if err = h.step(); err != nil {
				break
			}
		}
		if err == nil {
			_, err = command("cp", "-a", mounted, fmt.Sprintf("%s/%d", lower, len(points)))
			points = append(points, h.at())
		}
	}
	if h.w != nil {
		err = errors.Join(err, h.w.end())
	}
	if err := errors.Join(err, unix.Unmount(mounted, 0)); err != nil {
		return nil, err
	}
	return func(r *rand.Rand) (string, error) {
		n := r.IntN(len(points))
		what := fmt.Sprintf("lower layer %d of %d", n, snapshots)
		saved := fmt.Sprintf("%s/%d", lower, n)
		if err := layer(saved); err != nil {
			return what, err
		}
		lost := &history{r: r, at: h.at}
		for _, a := range h.all {
			if a.keepsLease(points[n]) && foreign(a.id) {
				again := *a
				again.ended = never
				lost.all = append(lost.all, &again)
			}
		}
		err := lost.run(1 + r.IntN(5))
		if err := errors.Join(err, unix.Unmount(mounted, 0)); err != nil {
			return what, err
		}
		if err := layer(saved); err != nil {
			return what, err
		}
		return what, errors.Join(trial(r, h, points[n]), unix.Unmount(mounted, 0))
	}, nil
}

// keepsLease reports whether the lease of an attachment must be there after a cut.
func (a *attachment) keepsLease(point int) bool {
	return a.network == kept && a.made <= point && point <= a.ended
}

// An aftermath is the boot after a cut.
type aftermath struct {
	*rand.Rand
	*world
	known  []*attachment         // whose ADD had begun: readable state belongs to one of them
	cached []entry               // cache before boot
	held   map[netip.Addr]string // containers by the leases that must be there
	given  map[netip.Addr]string // containers by the addresses given since the boot
	named  map[string]string     // networks by the containers attached since the boot
}

// trial boots the machine after a cut at a point of its history, attaches containers, and detaches
// all.
func trial(r *rand.Rand, h *history, point int) (err error) {
	t := &aftermath{Rand: r, held: map[netip.Addr]string{}, given: map[netip.Addr]string{}, named: map[string]string{}}
	for _, a := range h.all {
		if a.begun <= point {
			t.known = append(t.known, a)
		}
		if a.keepsLease(point) {
			for _, addr := range a.addrs {
				t.held[addr] = a.id
			}
		}
	}
	if t.world, err = boot(); err != nil {
		return err
	}
	for _, f := range []func() error{t.checkStored, t.clock, t.booted, t.attach, t.detach} {
		if err = f(); err != nil {
			break
		}
	}
	return errors.Join(err, t.end())
}

// checkStored checks that the readable state on the disk was written that way, and that what must be
// there is.
func (t *aftermath) checkStored() error {
	if err := t.leases(); err != nil {
		return err
	}
	var err error
	if t.cached, err = t.ls(); err != nil {
		return err
	}
	for _, e := range t.cached {
		if e.State == "alive" {
			return fmt.Errorf("ls: %s of an earlier boot is alive", e.ContainerID)
		}
		var addrs []netip.Addr
		for _, p := range e.Addresses {
			addrs = append(addrs, p.Addr())
		}
		if !slices.ContainsFunc(t.known, func(a *attachment) bool {
			return a.network == e.Network && a.id == e.ContainerID && (len(addrs) == 0 || slices.Equal(a.addrs, addrs))
		}) {
			return fmt.Errorf("ls has %s of network %s with %v, which was never so", e.ContainerID, e.Network, addrs)
		}
	}
	return nil
}

// leases compares the leases on the disk with those given, and with those that must be there.
func (t *aftermath) leases() error {
	for _, network := range networks {
		owners, err := leased(network)
		if err != nil {
			return err
		}
		for addr, owner := range owners {
			id, link, _ := strings.Cut(owner, "\r\n")
			if link != ifName || !slices.ContainsFunc(t.known, func(a *attachment) bool {
				return a.network == network && a.id == id && slices.Contains(a.addrs, addr)
			}) {
				return fmt.Errorf("the lease of %s is %q's, which was never so", addr, owner)
			}
		}
		for addr, id := range t.held {
			if network == kept && owners[addr] != id+"\r\n"+ifName {
				return fmt.Errorf("the lease of %s is %q's, and was %s's when its ADD had ended", addr, owners[addr], id)
			}
		}
	}
	return nil
}

// clock sets the files' times as a wrong clock would: in the past, in the future, or mixed.
func (t *aftermath) clock() error {
	ago, ahead := time.Unix(1, 0), time.Now().AddDate(60, 0, 0)
	kind := t.IntN(4)
	if kind == 0 {
		return nil
	}
	err := filepath.WalkDir(state, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		when := ago
		if kind == 2 || kind == 3 && t.IntN(2) == 0 {
			when = ahead
		}
		times := []unix.Timespec{unix.NsecToTimespec(when.UnixNano()), unix.NsecToTimespec(when.UnixNano())}
		return unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW)
	})
	if errors.Is(err, os.ErrNotExist) { // nothing was on the disk yet
		return nil
	}
	return err
}

// booted runs cni-exec reload, which deletes all attachments that have an entry, and keeps other
// leases.
func (t *aftermath) booted() error {
	deleted, err := t.bootVerb()
	if err != nil {
		return err
	}
	names := func(entries []entry) (all []string) {
		for _, e := range entries {
			all = append(all, e.Network+" "+e.ContainerID)
		}
		slices.Sort(all)
		return all
	}
	if got, want := names(deleted), names(t.cached); !slices.Equal(got, want) {
		return fmt.Errorf("boot has deleted %q, and the cache had %q", got, want)
	}
	for _, e := range deleted {
		for addr, id := range t.held {
			if e.Network == kept && e.ContainerID == id {
				delete(t.held, addr)
			}
		}
	}
	return t.leases()
}

// attach attaches containers until no address is free: none is lost, and none is given twice.
func (t *aftermath) attach() error {
	owners, err := leased(kept)
	if err != nil {
		return err
	}
	for _, network := range networks {
		free := hosts
		if network == kept {
			free -= len(owners)
		}
		for n := range free + 1 {
			id := fmt.Sprintf("new-%s-%d", network, n)
			var args []string
			if network == loose && n < names {
				if t.IntN(2) == 0 {
					id = fmt.Sprintf("%s-%d", network, n) // attached before the cut
				}
				args = publish(n)
			}
			if n == free && t.IntN(4) > 0 { // an ADD without a free address takes longer
				break
			}
			addrs, err := t.add(network, id, args...)
			if n == free && (err == nil || !strings.Contains(err.Error(), full)) {
				return fmt.Errorf("ADD of one container too many: %v, %w", addrs, err)
			}
			if n == free {
				break
			}
			if err != nil {
				return fmt.Errorf("ADD %d of %d: %w", n+1, free, err)
			}
			t.named[id] = network
			for _, a := range addrs {
				if other := t.held[a] + t.given[a]; other != "" {
					return fmt.Errorf("%s was given to %s and to %s", a, other, id)
				}
				t.given[a] = id
			}
		}
	}
	if _, err = t.cni("check"); incomplete(err) {
		return nil
	}
	return err
}

// detach detaches all that was attached before or after the cut. Then a container from before the
// cut can be attached again, and in the end nothing is left.
func (t *aftermath) detach() error {
	files, err := left()
	if err != nil {
		return err
	}
	owners, err := leased(kept)
	if err != nil {
		return err
	}
	traces := strings.Join(slices.AppendSeq(files, maps.Values(owners)), " ")
	for _, a := range t.known {
		if strings.Contains(traces, a.id) {
			t.named[a.id] = a.network
		}
	}
	for _, id := range slices.Sorted(maps.Keys(t.named)) {
		if err := t.del(t.named[id], id); err != nil {
			return err
		}
	}
	if len(t.known) > 0 {
		a := t.known[t.IntN(len(t.known))]
		if _, err := t.add(a.network, a.id); err != nil {
			return fmt.Errorf("ADD after DEL: %w", err)
		}
		if err := t.del(a.network, a.id); err != nil {
			return err
		}
	}
	if _, err := t.cni("gc"); err != nil {
		return err
	}
	if files, err = left(); err != nil {
		return err
	}
	links, err := t.links()
	if slices.Sort(links); err != nil || len(files) > 0 || !slices.Equal(links, []string{"kept0", "loose0"}) {
		return fmt.Errorf("after DEL of all there are files %q, links %q: %w", files, links, err)
	}
	return nil
}
