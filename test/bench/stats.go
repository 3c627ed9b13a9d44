package main

import (
	"slices"
	"time"
)

// A series is the times that one step of one subject took, and what went wrong.
// An error is the last one; the times from before it stay.
type series struct {
	took []time.Duration
	err  error
}

// quantile returns the time that the share q of all stays below; 0 without any.
func (s series) quantile(q float64) time.Duration {
	if len(s.took) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s.took))
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*q))]
}

// median is the 0.5 quantile.
func (s series) median() time.Duration { return s.quantile(0.5) }

// A subject does the same work again and again. Each round it returns the time
// of every step.
type subject struct {
	name  string
	steps []string
	round func() ([]time.Duration, error)
}

// results has a series for each "step, subject".
type results map[string]series

// key names a series.
func key(step, name string) string { return step + ", " + name }

// of returns the series of one step of one subject, empty if there is none.
func (r results) of(step, name string) series { return r[key(step, name)] }

// interleave lets the subjects take turns, in the other direction every second
// round: what a subject leaves for the kernel to do later would otherwise always
// be paid by the same neighbour. A first round is not counted. A subject that
// fails is left out from then on, with its error in all its series.
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

// turn returns the subjects in the order of round i.
func turn(subjects []subject, i int) []subject {
	if i%2 == 0 {
		return subjects
	}
	back := slices.Clone(subjects)
	slices.Reverse(back)
	return back
}
