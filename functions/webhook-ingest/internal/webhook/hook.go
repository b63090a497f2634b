package webhook

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/theory/jsonpath"
	"golang.org/x/sync/singleflight"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/secret"
)

// hook is one account of the channel, ready for use.
type hook struct {
	agent  harness.AgentName
	spec   harness.ChannelSpec
	keys   []harness.Secret // any of them signs what comes in; the first signs what goes out
	fields fields
	err    error // the hook cannot be used: a fault of its configuration
}

// fields are the paths of a message's parts in the hook's JSON; nil takes the
// part's own name.
type fields struct{ messageID, channelUserID, chat, text, metadata *jsonpath.Path }

// hooks finds hooks by name. It remembers an answer, "there is none" too, for
// hookTTL: a hook that is made, changed or removed takes effect within that.
type hooks struct {
	store   routeStore
	secrets secret.Source
	checks  *channel.Checks
	log     *slog.Logger
	now     func() time.Time

	asking singleflight.Group
	mu     sync.Mutex
	known  map[string]knownHook
}

type routeStore interface {
	Route(ctx context.Context, channel harness.Channel, account string) (postgres.Route, error)
}

type knownHook struct {
	hook  *hook // nil: there is none
	until time.Time
}

const (
	hookTTL   = 5 * time.Second
	maxHooks  = 1000 // remembered at once: guessed names must not fill the memory
	maxName   = 200  // bytes
	routeTime = 5 * time.Second
)

func newHooks(o Options) *hooks {
	return &hooks{store: o.Store, secrets: o.Secrets, checks: o.Checks, log: o.Log, now: o.Now, known: map[string]knownHook{}}
}

// find returns the hook called name, usable, or errUnknownHook.
func (h *hooks) find(ctx context.Context, name string) (*hook, error) {
	if name == "" || len(name) > maxName || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return nil, errUnknownHook
	}
	found, ok := h.recall(name)
	if !ok {
		answer, err, _ := h.asking.Do(name, func() (any, error) { return h.ask(ctx, name) })
		if err != nil {
			return nil, err
		}
		found = answer.(*hook)
	}
	if found == nil {
		return nil, errUnknownHook
	}
	return found, found.err
}

func (h *hooks) recall(name string) (*hook, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k, ok := h.known[name]
	return k.hook, ok && h.now().Before(k.until)
}

// ask reads the route. Others wait for the answer, so that it does not end when
// the first to ask goes away.
func (h *hooks) ask(ctx context.Context, name string) (*hook, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), routeTime, fmt.Errorf("route deadline of %s", routeTime))
	defer cancel()
	route, err := h.store.Route(ctx, harness.ChannelWebhook, name)
	var found *hook
	switch {
	case harness.KindOf(err) == harness.NotFound:
	case err != nil:
		return nil, err
	default:
		if found, err = h.prepare(ctx, name, route); err != nil {
			return nil, err
		}
	}
	h.remember(name, found)
	return found, nil
}

func (h *hooks) prepare(ctx context.Context, name string, route postgres.Route) (*hook, error) {
	keys, err := h.secrets.Values(ctx, route.Agent, route.Spec.Secret)
	if err != nil {
		return nil, err
	}
	if h.checks != nil {
		h.checks.Noticed(ctx, route.Agent, route.Spec.Secret, len(keys) > 0)
	}
	found := &hook{agent: route.Agent, spec: route.Spec, keys: keys}
	if len(found.keys) == 0 {
		// Nobody can sign for it: every request is refused as unsigned.
		h.log.Warn("the hook's secret is not set: every request to it is refused", "hook", name, "secret", route.Spec.Secret.Name, "key", route.Spec.Secret.Key)
	}
	if found.fields, found.err = parseFields(route.Spec.Fields); found.err != nil {
		found.err = harness.Wrap(harness.Internal, found.err, "the hook's field mapping is not valid")
	}
	return found, nil
}

func (h *hooks) remember(name string, found *hook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	if len(h.known) >= maxHooks {
		for old, k := range h.known {
			if k.hook == nil || now.After(k.until) {
				delete(h.known, old)
			}
		}
	}
	if len(h.known) >= maxHooks {
		clear(h.known)
	}
	h.known[name] = knownHook{hook: found, until: now.Add(hookTTL)}
}

func parseFields(spec *harness.ChannelFields) (fields, error) {
	var f fields
	if spec == nil {
		return f, nil
	}
	for _, field := range []struct {
		name, path string
		parsed     **jsonpath.Path
	}{
		{"messageId", spec.MessageID, &f.messageID},
		{"channelUserId", spec.ChannelUserID, &f.channelUserID},
		{"chat", spec.Chat, &f.chat},
		{"text", spec.Text, &f.text},
		{"metadata", spec.Metadata, &f.metadata},
	} {
		if field.path == "" {
			continue
		}
		parsed, err := jsonpath.Parse(field.path)
		if err != nil {
			return f, fmt.Errorf("fields.%s: %w", field.name, err)
		}
		*field.parsed = parsed
	}
	return f, nil
}
