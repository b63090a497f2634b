package channel

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/secret"
)

type checkStore struct {
	routes
	stored [][]harness.SecretCheck
	before func() // before a run is stored; nil: nothing
}

func (c *checkStore) StoreSecretChecks(_ context.Context, function string, checks []harness.SecretCheck) (int, error) {
	if function != "whatsapp-ingest" {
		panic(function)
	}
	if c.before != nil {
		c.before()
	}
	c.stored = append(c.stored, checks)
	return 1, nil
}

// Every Secret that an agent names on the channel is checked, the platform's own
// are not, and nothing of a value is stored.
func TestSecretsAreCheckedAndMissingOnesAgain(t *testing.T) {
	values := map[string]string{"S_APP": "a-value"}
	now := time.Now()
	spec := harness.ChannelSpec{
		Type: harness.ChannelWhatsApp, Account: "1", AppSecret: harness.SecretRef{Name: "s", Key: "app"}, AccessToken: harness.SecretRef{Name: "s", Key: "token"},
	}
	store := &checkStore{routes: routes{all: []postgres.AccountRoute{{Account: "1", Route: postgres.Route{Agent: "coder", Spec: spec}}}}}
	source := secret.Environment(func(name string) string { return values[name] })
	checks := NewChecks(ChecksOptions{Channel: harness.ChannelWhatsApp, Store: store, Secrets: source, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }})
	accounts := NewAccounts(AccountsOptions{
		Channel: harness.ChannelWhatsApp, Store: store, Secrets: source, Checks: checks, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now },
	})
	if err := checks.AgentStatusChanged(t.Context(), event.Event{}); err != nil {
		t.Fatal(err)
	}
	want := []harness.SecretCheck{
		{
			Agent: "coder", Ref: harness.SecretRef{Name: "s", Key: "token"}, State: harness.SecretNotFound,
			Reason: "the environment variable S_TOKEN is not set: set it for the function that reads it",
		},
		{Agent: "coder", Ref: harness.SecretRef{Name: "s", Key: "app"}, State: harness.SecretAvailable},
	}
	if diff := cmp.Diff([][]harness.SecretCheck{want}, store.stored); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	for _, step := range []struct {
		what  string
		after time.Duration
		token string
		runs  int
	}{
		{"missing for a send", 0, "", 1},
		{"still missing", time.Second, "", 0},
		{"still missing half a minute later", 31 * time.Second, "", 1},
		{"there again", time.Second, "t", 1},
		{"and still", time.Hour, "t", 0},
		{"gone", time.Second, "", 1},
	} {
		now, values["S_TOKEN"], store.stored = now.Add(step.after), step.token, nil
		if _, err := accounts.Of(t.Context(), "1", "coder", spec); err != nil {
			t.Fatal(err)
		}
		if len(store.stored) != step.runs {
			t.Errorf("%s: checked %d times, want %d", step.what, len(store.stored), step.runs)
		}
	}
}

// Requests that come while a run is under way share the next: theirs is one that
// began after them.
func TestRequestsShareARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, release := &checkStore{}, make(chan struct{})
		store.before = func() { <-release }
		checks := NewChecks(ChecksOptions{
			Channel: harness.ChannelWhatsApp, Store: store, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		})
		ask := func(ctx context.Context) {
			if err := checks.AgentStatusChanged(ctx, event.Event{}); err != nil {
				t.Error(err)
			}
		}
		go ask(t.Context())
		synctest.Wait() // it holds the run
		for range 50 {
			go ask(t.Context())
		}
		synctest.Wait() // they stand in line
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if err := checks.AgentStatusChanged(gone, event.Event{}); harness.KindOf(err) != harness.Unavailable {
			t.Errorf("whoever has gone: %v", err)
		}
		close(release)
		synctest.Wait()
		if len(store.stored) != 2 {
			t.Errorf("%d runs for 51 requests", len(store.stored))
		}
		ask(t.Context())
		if len(store.stored) != 3 {
			t.Errorf("a later request: %d runs", len(store.stored))
		}
	})
}
