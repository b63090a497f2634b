package channel

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/secret"
)

// AccountsOptions are what Accounts needs.
type AccountsOptions struct {
	Channel  harness.Channel
	Store    RouteStore
	Secrets  secret.Source
	Fallback map[Role][]harness.Secret // for accounts that name no secret of their own
	Checks   *Checks                   // told when a secret is missing, or there again; nil: nobody is
	Log      *slog.Logger
	Now      func() time.Time
}

// RouteStore is what Accounts reads.
type RouteStore interface {
	Routes(ctx context.Context, channel harness.Channel) ([]postgres.AccountRoute, error)
}

// Accounts knows our accounts on one channel with their secrets. What it knows
// is at most accountsFresh old; while the database or the secrets' keeper does
// not answer, at most accountsStale.
type Accounts struct {
	AccountsOptions

	mu      sync.Mutex
	failed  error // of the last load, while it counts
	failing time.Time
	known   map[string]*Account
	read    time.Time
	retired map[retiredKey]time.Time // when a secret that was replaced stops counting
	missing map[string]bool          // what was said to be missing
}

type retiredKey struct {
	account string
	role    Role
	value   harness.Secret
}

const (
	accountsFresh = 5 * time.Second
	accountsStale = time.Minute
	accountsTime  = 5 * time.Second
	// replacedFor is how long a secret still proves what comes in after another
	// took its place: a provider may be told of it later than we are.
	replacedFor = 10 * time.Minute
)

// NewAccounts reads nothing yet.
func NewAccounts(o AccountsOptions) *Accounts {
	return &Accounts{AccountsOptions: o, retired: map[retiredKey]time.Time{}, missing: map[string]bool{}}
}

// All returns every account by name; the map and what it holds must not be
// changed. harness.Unavailable: they cannot be read now.
func (a *Accounts) All(ctx context.Context) (map[string]*Account, error) {
	asked := a.Now()
	a.mu.Lock() // those who come meanwhile wait for the one answer, good or bad
	defer a.mu.Unlock()
	now := a.Now()
	age := now.Sub(a.read)
	if a.known != nil && age < accountsFresh {
		return a.known, nil
	}
	if a.failed != nil && !asked.After(a.failing) {
		return a.stale(age)
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), accountsTime, fmt.Errorf("accounts deadline of %s", accountsTime))
	defer cancel()
	fresh, err := a.load(ctx)
	if err != nil {
		a.failed, a.failing = err, a.Now()
		return a.stale(age)
	}
	a.retire(fresh, now)
	a.known, a.read, a.failed = fresh, now, nil
	return fresh, nil
}

// stale is what was known before, while it may still be used.
func (a *Accounts) stale(age time.Duration) (map[string]*Account, error) {
	if a.known != nil && age < accountsStale {
		return a.known, nil
	}
	return nil, a.failed
}

func (a *Accounts) load(ctx context.Context) (map[string]*Account, error) {
	routes, err := a.Store.Routes(ctx, a.Channel)
	if err != nil {
		return nil, err
	}
	fresh := make(map[string]*Account, len(routes))
	for _, r := range routes {
		account, err := a.Of(ctx, r.Account, r.Agent, r.Spec)
		if err != nil {
			return nil, err
		}
		fresh[r.Account] = account
	}
	return fresh, nil
}

// Of returns an account with its secrets as they are now.
func (a *Accounts) Of(ctx context.Context, name string, agent harness.AgentName, spec harness.ChannelSpec) (*Account, error) {
	account := &Account{Name: name, Agent: agent, Spec: spec, Keys: map[Role][]harness.Secret{}}
	for role, ref := range refs(spec) {
		if ref == (harness.SecretRef{}) {
			account.Keys[role] = a.Fallback[role]
			continue
		}
		values, err := a.Secrets.Values(ctx, agent, ref)
		if err != nil {
			return nil, err
		}
		account.Keys[role] = values
		if a.Checks != nil {
			a.Checks.Noticed(ctx, agent, ref, len(values) > 0)
		}
	}
	return account, nil
}

// refs names the secrets of a channel by what they are for.
func refs(spec harness.ChannelSpec) map[Role]harness.SecretRef {
	switch spec.Type {
	case harness.ChannelWebhook:
		return map[Role]harness.SecretRef{RoleSigning: spec.Secret}
	case harness.ChannelWhatsApp:
		return map[Role]harness.SecretRef{
			RoleVerifyToken: spec.VerifyToken, RoleAppSecret: spec.AppSecret, RoleAccessToken: spec.AccessToken, RolePairingCode: spec.Senders.PairingCode,
		}
	case harness.ChannelTelegram:
		return map[Role]harness.SecretRef{RoleBotToken: spec.BotToken, RoleWebhookSecret: spec.WebhookSecret, RolePairingCode: spec.Senders.PairingCode}
	}
	return nil
}

// retire keeps secrets that were replaced for a while, behind the new ones, and
// says once which account lacks one.
func (a *Accounts) retire(fresh map[string]*Account, now time.Time) {
	for name, account := range a.known {
		for role, keys := range account.Keys {
			for _, key := range keys {
				id := retiredKey{name, role, key}
				if after := fresh[name]; after == nil || slices.Contains(after.Keys[role], key) {
					continue
				}
				if _, known := a.retired[id]; !known {
					a.retired[id] = now.Add(replacedFor)
				}
			}
		}
	}
	for id, until := range a.retired {
		account := fresh[id.account]
		if account == nil || !now.Before(until) {
			delete(a.retired, id)
			continue
		}
		if !slices.Contains(account.Keys[id.role], id.value) {
			account.Keys[id.role] = append(slices.Clone(account.Keys[id.role]), id.value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fresh)) {
		for _, role := range slices.Sorted(maps.Keys(fresh[name].Keys)) {
			mark := name + "/" + string(role)
			if role == RolePairingCode && fresh[name].Spec.Senders.Policy != harness.SendersPairing {
				continue
			}
			if len(fresh[name].Keys[role]) > 0 {
				delete(a.missing, mark)
			} else if !a.missing[mark] {
				a.missing[mark] = true
				ref := refs(fresh[name].Spec)[role]
				a.Log.Error("an account lacks a secret: what needs it is refused", "channel", string(a.Channel), "account", name, "agent", string(fresh[name].Agent), "role", string(role), "secret", ref.Name, "key", ref.Key)
			}
		}
	}
}
