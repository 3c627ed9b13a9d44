package main

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A cost is the elapsed time of one step, and the processor time of its processes with the kernel's
// part. Where the kernel samples that part (CONFIG_TICK_CPU_ACCOUNTING) it is right only for the
// sum of many: a process shorter than a tick may count as zero.
type cost struct{ wall, cpu, kernel time.Duration }

// A watch measures from [begin] on.
type watch struct {
	at   time.Time
	used cost
}

// begin starts a watch. It counts the processor time of processes that end and are waited for
// meanwhile, so only one subject may run at a time.
func begin() watch { return watch{used: childTimes(), at: time.Now()} }

// took returns the cost since begin.
func (w watch) took() cost {
	wall := time.Since(w.at)
	now := childTimes()
	return cost{wall, now.cpu - w.used.cpu, now.kernel - w.used.kernel}
}

// childTimes is the processor time of all processes that have ended, getrusage(2).
func childTimes() (c cost) {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_CHILDREN, &r) == nil {
		c.kernel = time.Duration(r.Stime.Nano())
		c.cpu = c.kernel + time.Duration(r.Utime.Nano())
	}
	return c
}

// A series is the costs of one step of one subject, and its last error. The costs from before the
// error stay.
type series struct {
	took []cost
	bare time.Duration // median of an empty Go process in the same rounds; 0: not measured
	err  error
}

// quantile returns the time that the share q of all costs does not exceed; 0 if there are none.
func (s series) quantile(q float64) time.Duration {
	if len(s.took) == 0 {
		return 0
	}
	var sorted []time.Duration
	for _, c := range s.took {
		sorted = append(sorted, c.wall)
	}
	slices.Sort(sorted)
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*q))]
}

func (s series) median() time.Duration { return s.quantile(0.5) }

// mean averages the processor times, which are not exact for each call.
func (s series) mean() (c cost) {
	for _, t := range s.took {
		c.cpu += t.cpu
		c.kernel += t.kernel
	}
	n := time.Duration(max(1, len(s.took)))
	return cost{0, c.cpu / n, c.kernel / n}
}

// A subject repeats the same work. Each round returns the cost of every step.
type subject struct {
	name  string
	steps []string
	round func() ([]cost, error)
}

// results maps "step, subject" to its series.
type results map[string]series

// key returns the key of a series in [results].
func key(step, name string) string { return step + ", " + name }

// of returns the series of one step of one subject, empty if there is none.
func (r results) of(step, name string) series { return r[key(step, name)] }

// interleave runs the subjects in turns, in reverse order every second round: otherwise the same
// subject would always pay for the work that the one before it leaves to the kernel. The first
// round is not counted. A subject that fails is left out from then on, and all its series have the
// error.
func interleave(rounds int, subjects ...subject) results {
	r := results{}
	failed := map[string]bool{}
	for i := -1; i < rounds; i++ {
		for _, s := range turn(subjects, i) {
			if failed[s.name] {
				continue
			}
			took, err := s.round()
			failed[s.name] = err != nil
			for j, step := range s.steps {
				x := r[key(step, s.name)]
				x.err = err
				if err == nil && i >= 0 {
					x.took = append(x.took, took[j])
				}
				r[key(step, s.name)] = x
			}
		}
	}
	return r
}

// interleave is the function [interleave] with an empty Go process in the same rounds, whose median
// each series gets.
func (l *lab) interleave(rounds int, subjects ...subject) results {
	r := interleave(rounds, append(slices.Clone(subjects), l.bareStart())...)
	bare := r.of("start", "bare").median()
	for k, s := range r {
		s.bare = bare
		r[k] = s
	}
	return r
}

// turn returns the subjects in the order of round i.
func turn(subjects []subject, i int) []subject {
	if i%2 == 0 {
		return subjects
	}
	back := slices.Clone(subjects)
	slices.Reverse(back)
	return back
}
