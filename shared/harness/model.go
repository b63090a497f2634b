package harness

import "cmp"

// ModelRef names a model that is asked when the one before it fails.
type ModelRef struct {
	Provider Provider `json:"provider,omitempty"` // empty: the platform's
	Name     string   `json:"name"`
	Images   bool     `json:"images,omitempty"`
}

// Chain are the models of m in the order in which they are asked: m itself, and
// its fallbacks with what else m says. None of them has fallbacks.
func (m ModelSpec) Chain() []ModelSpec {
	first := m
	first.Fallbacks = nil
	chain := []ModelSpec{first}
	for _, ref := range m.Fallbacks {
		next := first
		next.Provider, next.Name, next.Images = ref.Provider, ref.Name, ref.Images
		chain = append(chain, next)
	}
	return chain
}

// AttemptPurpose is what a model was asked for.
type AttemptPurpose string

// The purposes.
const (
	AttemptAnswer    AttemptPurpose = "TURN"      // what a turn is about
	AttemptSummary   AttemptPurpose = "SUMMARY"   // of a conversation that has become long
	AttemptGuardrail AttemptPurpose = "GUARDRAIL" // the verdict of one
)

// Known reports whether p is one of the purposes above.
func (p AttemptPurpose) Known() bool {
	return p == AttemptAnswer || p == AttemptSummary || p == AttemptGuardrail
}

// Tokens are what a question and its answer came to.
type Tokens struct {
	Input      int64 // all of them, the next two included
	CacheRead  int64 // that the provider had kept
	CacheWrite int64 // that it keeps from now on, where it charges for that
	Output     int64
}

// Price is what a model costs per million tokens.
type Price struct {
	Input       Micros
	Output      Micros
	CachedInput *Micros // of CacheRead; nil: as Input
	CacheWrite  *Micros // nil: as Input
}

// Of is the cost of t, rounded up: nothing is free.
func (p Price) Of(t Tokens) Micros {
	cached, kept := *cmp.Or(p.CachedInput, &p.Input), *cmp.Or(p.CacheWrite, &p.Input)
	total := (t.Input-t.CacheRead-t.CacheWrite)*int64(p.Input) + t.CacheRead*int64(cached) + t.CacheWrite*int64(kept) + t.Output*int64(p.Output)
	return Micros((total + unit - 1) / unit)
}

// Most is the most that so many tokens may cost, whatever a provider keeps.
func (p Price) Most(input, output int64) Micros {
	p.Input = max(p.Input, *cmp.Or(p.CacheWrite, &p.Input), *cmp.Or(p.CachedInput, &p.Input))
	return Price{Input: p.Input, Output: p.Output}.Of(Tokens{Input: input, Output: output})
}
