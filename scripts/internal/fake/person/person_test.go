package person_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

func TestAJumpEndsAWait(t *testing.T) {
	base := time.Unix(1788000000, 0)
	c := person.NewClock(func() time.Time { return base }, 0)
	done := make(chan bool)
	go func() { done <- c.Sleep(t.Context(), 24*time.Hour) }()
	c.Jump(23 * time.Hour)
	select {
	case <-done:
		t.Fatal("the wait is over an hour early")
	case <-time.After(20 * time.Millisecond):
	}
	for over := false; !over; {
		c.Jump(time.Hour)
		select {
		case slept := <-done:
			over = true
			if !slept {
				t.Error("the wait was cut short")
			}
		case <-time.After(20 * time.Millisecond): // it had not begun at the first jump
		}
	}
	if got := c.Now().Sub(base); got < 24*time.Hour {
		t.Errorf("the clock shows %s more", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if c.Sleep(ctx, time.Hour) {
		t.Error("a wait whose context has ended is over")
	}
}

func TestTicksNeverGoBack(t *testing.T) {
	lines := person.NewTranscript(nil)
	first := lines.Add(person.Line{Account: "a", Chat: "c", ID: "1", Text: "x"})
	lines.Tick("a", "c", "1", person.Read, "")
	lines.Tick("a", "c", "1", person.Delivered, "")
	got, next := lines.Lines("a", "c", first.Changed)
	if len(got) != 1 || got[0].Ticks != person.Read || got[0].Seq != first.Seq || next != got[0].Changed {
		t.Errorf("%+v, next %d", got, next)
	}
	if got, _ := lines.Lines("a", "c", next); len(got) != 0 {
		t.Errorf("nothing has changed, but %+v", got)
	}
	if got, _ := lines.Lines("b", "c", 0); len(got) != 0 {
		t.Errorf("of another account: %+v", got)
	}
	found := make(chan []person.Line)
	go func() {
		lines, _ := lines.Wait(t.Context(), "a", "c", next)
		found <- lines
	}()
	lines.Add(person.Line{Account: "a", Chat: "other", ID: "1"})
	lines.Add(person.Line{Account: "a", Chat: "c", ID: "2"})
	if got := <-found; len(got) != 1 || got[0].ID != "2" {
		t.Errorf("waited for %+v", got)
	}
}

func TestFaultsHappenSoOften(t *testing.T) {
	var f person.Faults
	if err := errors.Join(f.Add(person.Fault{On: "send", Do: "error", Chat: "c", Times: 2}), f.Add(person.Fault{On: "send", Do: "cutAfter", Times: -1})); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"error", "error", "cutAfter", "cutAfter"} {
		if got, ok := f.Take("send", "c"); !ok || got.Do != want {
			t.Errorf("%d: %+v", i, got)
		}
	}
	if _, ok := f.Take("webhook", "c"); ok {
		t.Error("a fault of something else has happened")
	}
	f.Clear()
	if _, ok := f.Take("send", "c"); ok {
		t.Error("a fault has happened that was cleared")
	}
}

func TestStateIsWhole(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	var got []string
	if err := person.Load(file, &got); err != nil || got != nil {
		t.Errorf("nothing kept: %v %v", got, err)
	}
	if err := person.Save(file, []string{"a"}); err != nil {
		t.Fatal(err)
	}
	if err := person.Load(file, &got); err != nil || len(got) != 1 {
		t.Errorf("%v %v", got, err)
	}
	if err := person.Save("", got); err != nil {
		t.Error(err)
	}
}

func TestJobsEndAtClose(t *testing.T) {
	j := person.NewJobs()
	began := make(chan struct{})
	j.Go(func(ctx context.Context) { close(began); <-ctx.Done() })
	<-began
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := j.Settled(ctx); err == nil {
		t.Error("a job goes on, but all is settled")
	}
	j.Close()
	if err := j.Settled(t.Context()); err != nil {
		t.Error(err)
	}
	j.Go(func(context.Context) { t.Error("a job was begun after Close") })
}
