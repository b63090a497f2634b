package person

import (
	"fmt"
	"slices"
	"sync"
)

// Fault is something that goes wrong, once or several times.
type Fault struct {
	On string `json:"on"` // webhook, send, status or media
	Do string `json:"do"` // which of Kinds

	Times      int      `json:"times,omitempty"`      // 0: once; -1: until the faults are cleared
	Chat       string   `json:"chat,omitempty"`       // only in this one
	Code       int      `json:"code,omitempty"`       // of an error, as the provider counts them
	Status     int      `json:"status,omitempty"`     // of an error: HTTP's
	Text       string   `json:"text,omitempty"`       // of an error
	RetryAfter int      `json:"retryAfter,omitempty"` // of an error: seconds
	Delay      Duration `json:"delay,omitempty"`
}

// Kinds lists what can go wrong, and how.
func Kinds() map[string][]string {
	return map[string][]string{
		// drop: never told; double: twice at once; delay: later; reorder: after the next one.
		"webhook": {"drop", "double", "delay", "reorder"},
		// error: refused; cutBefore, cutAfter: no answer, before or after it is
		// done; stall: done after Delay; delay: done at once, answered after Delay.
		"send": {"error", "cutBefore", "cutAfter", "stall", "delay"},
		// withhold: told at release; reorder: backwards; fail: the message fails with Code.
		"status": {"drop", "delay", "withhold", "reorder", "fail"},
		"media":  {"error"},
	}
}

// Faults are those that wait to happen.
type Faults struct {
	mu   sync.Mutex
	list []Fault
}

// Add lets f happen from now on.
func (l *Faults) Add(f Fault) error {
	if !slices.Contains(Kinds()[f.On], f.Do) {
		return fmt.Errorf("there is no fault %q on %q; known: %v", f.Do, f.On, Kinds())
	}
	if f.Times == 0 {
		f.Times = 1
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, f)
	return nil
}

// Take returns the first fault for this and counts it down; false: all goes well.
func (l *Faults) Take(on, chat string) (Fault, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, f := range l.list {
		if f.On != on || f.Chat != "" && f.Chat != chat {
			continue
		}
		if l.list[i].Times--; l.list[i].Times == 0 {
			l.list = slices.Delete(l.list, i, i+1)
		}
		return f, true
	}
	return Fault{}, false
}

// All returns the faults that have not happened yet.
func (l *Faults) All() []Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Fault{}, l.list...)
}

// Clear forgets all.
func (l *Faults) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = nil
}
