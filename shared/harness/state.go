package harness

import "slices"

// transitions lists, for each state, the states that may follow it.
type transitions[S comparable] map[S][]S

func (t transitions[S]) may(from, to S) bool { return slices.Contains(t[from], to) }

func (t transitions[S]) known(s S) bool { _, ok := t[s]; return ok }

func (t transitions[S]) terminal(s S) bool { next, ok := t[s]; return ok && len(next) == 0 }
