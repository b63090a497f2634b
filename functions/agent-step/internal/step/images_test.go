package step_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/functions/agent-step/internal/step"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// objects is an object store.
type objects map[string]string

func (o objects) Get(_ context.Context, key string) (io.ReadCloser, int64, error) {
	data, ok := o[key]
	if !ok {
		return nil, 0, harness.Errorf(harness.NotFound, "nothing is there")
	}
	return io.NopCloser(strings.NewReader(data)), int64(len(data)), nil
}

const png = "\x89PNG\r\n\x1a\n picture"

// seeing is an agent whose model takes images, with an object store.
func seeing(t *testing.T, kept objects, answers ...any) *bench {
	t.Helper()
	agent := coder()
	agent.Model.Images = true
	b := newBench(t, agent, answers...)
	b.options.Objects = kept
	b.step = step.New(b.options)
	return b
}

// fetched is what a channel's function does when it hears that a file is needed.
func (b *bench) fetched(o postgres.MediaOutcome) {
	b.t.Helper()
	c, err := b.store.ClaimMedia(b.t.Context(), b.session, postgres.Lease{Owner: "telegram", For: time.Minute})
	if err != nil {
		b.t.Fatal(err)
	}
	events, err := b.store.MarkMedia(b.t.Context(), c, o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.events = append(b.events, events...)
}

func TestAModelIsShownAnImage(t *testing.T) {
	b := seeing(t, objects{"k": png}, says("a heron"), says("yes"), says("2"), says("3"))
	b.arrive("1", "what is it?", "", harness.Attachment{Kind: harness.AttachmentImage, ProviderID: "a", MimeType: "image/jpeg", Bytes: int64(len(png))})
	b.wake()
	if len(b.model.asked) != 0 || b.state() != "RUNNING" {
		t.Fatalf("asked %d times before the image is there; %s", len(b.model.asked), b.state())
	}
	if b.events[0].Type != event.MediaRequested || b.text(`SELECT state FROM attachments`) != "REQUESTED" {
		t.Fatalf("nobody is asked for it: %+v", b.events)
	}
	b.wake() // a repeat asks nobody
	b.fetched(postgres.MediaOutcome{State: harness.AttachmentStored, ObjectKey: "k", Digest: "d", Bytes: int64(len(png))})
	if last := b.events[len(b.events)-1]; last.Type != event.SessionDue || last.Session != b.session {
		t.Fatalf("the turn is not woken: %+v", last)
	}
	b.wake()
	turn := b.model.asked[0].Turns[0]
	if len(turn.Images) != 1 || !bytes.Equal(turn.Images[0].Data, []byte(png)) || turn.Images[0].MimeType != "image/png" || !strings.Contains(turn.Text, "You are shown it") {
		t.Fatalf("the model is asked %+v", turn)
	}
	for i, want := range []int{1, 1, 0} { // the newest three turns
		b.arrive(string(rune('2'+i)), "sure?", "")
		b.wake()
		shown := 0
		for _, turn := range b.model.asked[i+1].Turns {
			shown += len(turn.Images)
		}
		if shown != want {
			t.Errorf("turn %d shows %d images, want %d", i+2, shown, want)
		}
	}
}

// What cannot be shown is told in words, and the turn goes on.
func TestAnImageThatCannotBeShown(t *testing.T) {
	stored := postgres.MediaOutcome{State: harness.AttachmentStored, ObjectKey: "k", Digest: "d", Bytes: 9}
	for name, c := range map[string]struct {
		kept    objects
		outcome postgres.MediaOutcome
		words   string
	}{
		"the object is missing":    {objects{}, stored, "cannot be shown to you"},
		"it is no image":           {objects{"k": "<html></html>"}, stored, "cannot be shown to you"},
		"the provider has it not":  {objects{}, postgres.MediaOutcome{State: harness.AttachmentFailed, Reason: "it was deleted"}, "It could not be had: it was deleted"},
		"it never comes":           {objects{}, postgres.MediaOutcome{}, "It is at /workspace"},
		"it is larger than is fit": {objects{"k": png}, postgres.MediaOutcome{State: harness.AttachmentStored, ObjectKey: "k", Digest: "d", Bytes: 6 << 20}, "It is at /workspace"},
	} {
		t.Run(name, func(t *testing.T) {
			b := seeing(t, c.kept, says("fine"))
			b.arrive("1", "look", "", harness.Attachment{Kind: harness.AttachmentImage, ProviderID: "a", MimeType: "image/png"})
			b.wake()
			if c.outcome.State == "" {
				b.exec(`UPDATE sessions SET due_at = now(), turn_started_at = turn_started_at - interval '31 seconds'`)
			} else {
				b.fetched(c.outcome)
			}
			b.wake()
			if len(b.model.asked) != 1 || b.reply() != "fine" {
				t.Fatalf("asked %d times", len(b.model.asked))
			}
			if turn := b.model.asked[0].Turns[0]; len(turn.Images) > 0 || !strings.Contains(turn.Text, c.words) {
				t.Errorf("the model is asked %+v, want %q", turn, c.words)
			}
		})
	}
}
