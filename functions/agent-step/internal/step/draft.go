package step

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

const (
	// draftEvery is how often at most what the model writes is kept.
	draftEvery = 1200 * time.Millisecond
	// draftTime bounds one write of it: the reading of the answer waits meanwhile.
	draftTime = 2 * time.Second
	// maxDraft is how much of it is kept, in bytes: more than any channel shows.
	maxDraft = 32 << 10
)

// drafting keeps what the model writes while it does.
type drafting struct {
	*Stepper
	claim *postgres.Claim
	next  time.Time // not before
	kept  string
	count int
}

// drafts returns what is told the text of an answer while it grows, nil where
// nobody may see it: without stream, and where guardrails judge what is sent.
func (s *Stepper) drafts(ctx context.Context, c *postgres.Claim) func(text string) {
	if c.Agent == nil || !c.Agent.Model.Stream || len(c.Agent.Guardrails.Of(harness.StageOutput)) > 0 {
		return nil
	}
	d := &drafting{Stepper: s, claim: c, next: time.Now().Add(draftEvery)} // an answer that comes at once needs none
	return func(text string) { d.keep(ctx, text) }
}

// keep keeps text as far as it may be shown and says that it has grown. What
// cannot be kept now is in the next text, or in the answer.
func (d *drafting) keep(ctx context.Context, text string) {
	now := time.Now()
	if now.Before(d.next) || ctx.Err() != nil {
		return
	}
	if text = showable(text, d.Secrets); text == "" || text == d.kept {
		return
	}
	d.next = now.Add(draftEvery)
	writing, cancel := context.WithTimeoutCause(ctx, draftTime, errors.New("draft deadline of "+draftTime.String()))
	defer cancel()
	if err := d.Store.WriteDraft(writing, d.claim, text); err != nil {
		if !errors.Is(err, postgres.ErrLeaseLost) {
			d.Log.Info("a draft was not kept", "session", string(d.claim.ID), "agent", string(d.claim.Session.Agent), "err", err)
		}
		return
	}
	d.kept, d.count = text, d.count+1
	if !d.claim.Channel.Drafts() {
		return
	}
	message := d.claim.Turns[len(d.claim.Turns)-1].Message
	d.Publish(ctx, event.Event{
		ID: fmt.Sprintf("message.draft:%s:%d:%d", message, d.claim.Token, d.count), Type: event.MessageDraft, Session: d.claim.ID, Agent: d.claim.Session.Agent,
		Channel: d.claim.Channel, TraceParent: d.claim.TraceParent, Payload: event.Payload{Session: d.claim.ID, Message: message},
	})
}

// showable is what may be seen of an answer that is still written: known secrets
// are cut out, and an end that may become one is held back, as is half a rune.
func showable(text string, secrets []harness.Secret) string {
	text = harness.Redact(harness.CleanText(strings.ToValidUTF8(text, "")), secrets)
	held := 0
	for _, secret := range secrets {
		value := secret.Reveal()
		for n := min(len(value)-1, len(text)); n > held; n-- {
			if strings.HasSuffix(text, value[:n]) {
				held = n
			}
		}
	}
	text = text[:len(text)-held]
	if len(text) > maxDraft {
		text = text[:maxDraft]
	}
	return strings.TrimSpace(strings.ToValidUTF8(text, ""))
}
