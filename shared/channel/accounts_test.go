package channel

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/secret"
)

type routes struct {
	all   []postgres.AccountRoute
	err   error
	asked int
}

func (r *routes) Routes(context.Context, harness.Channel) ([]postgres.AccountRoute, error) {
	r.asked++
	return r.all, r.err
}

func TestAccountsAreKeptBrieflyAndRotateWithoutLoss(t *testing.T) {
	values := map[string]string{"S_APP": "first-value"}
	now := time.Now()
	store := &routes{all: []postgres.AccountRoute{{Account: "1", Route: postgres.Route{Agent: "coder", Spec: harness.ChannelSpec{
		Type: harness.ChannelWhatsApp, Account: "1", AppSecret: harness.SecretRef{Name: "s", Key: "app"},
	}}}}}
	var log bytes.Buffer
	accounts := NewAccounts(AccountsOptions{
		Channel: harness.ChannelWhatsApp, Store: store, Secrets: secret.Environment(func(name string) string { return values[name] }),
		Fallback: map[Role][]harness.Secret{RoleVerifyToken: {"platform"}}, Log: slog.New(slog.NewTextHandler(&log, nil)), Now: func() time.Time { return now },
	})
	keys := func() string {
		t.Helper()
		all, err := accounts.All(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var text []string
		for _, key := range all["1"].Keys[RoleAppSecret] {
			text = append(text, key.Reveal())
		}
		return strings.Join(text, ",")
	}
	expect := func(want string) {
		t.Helper()
		if got := keys(); got != want {
			t.Errorf("keys %q, want %q", got, want)
		}
	}
	expect("first-value")
	expect("first-value")
	if store.asked != 1 {
		t.Errorf("asked %d times within one moment", store.asked)
	}
	all, err := accounts.All(t.Context())
	if err != nil || all["1"].Key(RoleVerifyToken).Reveal() != "platform" || all["1"].Key(RoleAccessToken) != "" {
		t.Errorf("fallbacks %v", err)
	}
	if n := strings.Count(log.String(), "lacks a secret"); n != 1 || !strings.Contains(log.String(), "ACCESS_TOKEN") || strings.Contains(log.String(), "first-value") {
		t.Errorf("said %d times: %s", n, log.String())
	}

	values["S_APP"], now = "second-value", now.Add(6*time.Second)
	expect("second-value,first-value") // the provider may not know yet
	now = now.Add(5 * time.Minute)
	expect("second-value,first-value")
	values["S_APP"], now = "third-value,second-value", now.Add(5*time.Second)
	expect("third-value,second-value,first-value")
	now = now.Add(6 * time.Minute)
	expect("third-value,second-value")

	store.err, now = harness.Errorf(harness.Unavailable, "down"), now.Add(30*time.Second)
	expect("third-value,second-value")
	now = now.Add(time.Minute)
	if _, err := accounts.All(t.Context()); harness.KindOf(err) != harness.Unavailable {
		t.Errorf("after a minute without the database: %v", err)
	}
	store.err, store.all, now = nil, nil, now.Add(time.Minute)
	if all, err := accounts.All(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("an account that went is still served: %v %v", all, err)
	}
}

// slowRoutes is a database that takes connections and answers nothing.
type slowRoutes struct{ wait time.Duration }

func (r slowRoutes) Routes(ctx context.Context, _ harness.Channel) ([]postgres.AccountRoute, error) {
	select {
	case <-time.After(r.wait):
	case <-ctx.Done():
	}
	return nil, harness.Errorf(harness.Unavailable, "the database does not answer")
}

// The loads of requests that wait for each other add up: with the real 5 s, the
// twentieth request of one second is refused after 100 s.
func TestAccountsThatCannotBeReadAreNotAskedForOneAfterTheOther(t *testing.T) {
	a := NewAccounts(AccountsOptions{Channel: harness.ChannelTelegram, Store: slowRoutes{100 * time.Millisecond}, Secrets: secret.Environment(func(string) string { return "" }), Log: slog.New(slog.DiscardHandler), Now: time.Now})
	begin := time.Now()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { _, _ = a.All(t.Context()) })
	}
	all.Wait()
	if took := time.Since(begin); took > time.Second {
		t.Errorf("20 requests at once were refused after %s; one load takes 100ms", took.Round(10*time.Millisecond))
	}
}
