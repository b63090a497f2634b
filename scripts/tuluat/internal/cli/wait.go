package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/shared/harness"
)

const lookTime = time.Second

// notReadyError says that something did not become ready.
type notReadyError struct {
	what  string
	text  string
	final bool // waiting longer does not help
}

func (e *notReadyError) Error() string { return e.what + " " + e.text }

// until waits, if it is asked to, until all are READY with what was applied.
func (w *waiting) until(ctx context.Context, c *api.Client, all []applied) error {
	if !w.wait {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, w.time, errLate)
	defer cancel()
	var failed []error
	for _, one := range all {
		if err := w.ready(ctx, c, one); err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errLate) {
				return err
			}
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

var errLate = errors.New("not in time")

// ready waits for one and prints how it comes along. INVALID is final: only
// another text changes it.
func (w *waiting) ready(ctx context.Context, c *api.Client, one applied) error {
	what := one.kind.Noun + "/" + one.name
	said := ""
	ticker := time.NewTicker(lookTime)
	defer ticker.Stop()
	var last api.Object
	for {
		item, err := c.Object(ctx, one.kind, one.name)
		switch {
		case err == nil:
			last = item.View
		case ctx.Err() == nil:
			return &aboutError{what, err}
		}
		if state := one.standing(last, time.Now()); err == nil {
			if state == harness.AgentReady {
				fmt.Fprintf(w.sys.Stderr, "%s is READY\n", visible(what))
				return nil
			}
			if state == harness.AgentInvalid {
				return &notReadyError{what, "was refused" + conditions(last), true}
			}
			if text := progress(last, state); text != said {
				fmt.Fprintf(w.sys.Stderr, "%s: %s\n", visible(what), flatten(text))
				said = text
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errLate) {
				return &notReadyError{what, fmt.Sprintf("is not READY within %s%s", w.time, conditions(last)), false}
			}
			return ctx.Err()
		}
	}
}

// standing is the phase that speaks of the newest text; empty: none does yet.
func standing(o api.Object) harness.AgentPhase {
	if o.Status.ObservedGeneration < o.Metadata.Generation {
		return ""
	}
	return o.Status.Phase
}

// folderTime is how long a text in a folder, which counts no generations, may
// take to be looked at.
const folderTime = 70 * time.Second

// standing is that of what was applied. In a folder a status speaks of the new
// text when it has changed, or when there was time enough to look at it.
func (one applied) standing(o api.Object, now time.Time) harness.AgentPhase {
	if o.Metadata.Generation == 0 && one.old != nil && now.Sub(one.wrote) < folderTime &&
		o.Status.Revision == one.old.Status.Revision && o.Status.Phase == one.old.Status.Phase && changed(o).Equal(changed(*one.old)) {
		return ""
	}
	return standing(o)
}

// changed is when a condition last did.
func changed(o api.Object) time.Time {
	var last time.Time
	for _, c := range o.Status.Conditions {
		if c.LastTransitionTime.After(last) {
			last = c.LastTransitionTime
		}
	}
	return last
}

func progress(o api.Object, state harness.AgentPhase) string {
	if state == "" {
		return "nobody has looked at it yet"
	}
	text := "is " + string(state)
	if all := troubles(o); len(all) > 0 {
		text += ": " + strings.Join(all, "; ")
	}
	return text
}

// conditions are those of an object in words, one per line.
func conditions(o api.Object) string {
	var b strings.Builder
	for _, c := range o.Status.Conditions {
		if c.Status == "True" {
			continue
		}
		fmt.Fprintf(&b, "\n  %s is %s (%s)", c.Type, c.Status, c.Reason)
		if c.Message != "" {
			b.WriteString(": " + strings.ReplaceAll(c.Message, "\n", "\n    "))
		}
	}
	if b.Len() == 0 {
		return "; it says nothing of why"
	}
	return ":" + b.String()
}
