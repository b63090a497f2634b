//go:build e2e

package e2e_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/api/v1alpha1"
)

// journeySecrets: an agent cannot use another's Secret by naming it, and a
// callback does not lead into the cluster.
func journeySecrets(t *testing.T, s *system) {
	ctx := t.Context()
	one, err := s.makeHook(ctx, "keeper", sandboxBlock, "")
	must(t, err)
	two, err := s.makeHook(ctx, "other", sandboxBlock, "")
	must(t, err)

	// Each is reached with its own key, and not with the other's.
	for _, h := range []*hook{one, two} {
		if _, err := h.ask(ctx, patience, "hello"); err != nil {
			t.Error(err)
		}
	}
	crossed := *one
	crossed.key = two.key
	body, err := json.Marshal(map[string]any{"messageId": rand.Text(), "channelUserId": "ann", "text": "hello"})
	must(t, err)
	status, _, err := crossed.post(ctx, body)
	must(t, err)
	t.Logf("keeper's hook with other's key: %d", status)
	if status != http.StatusUnauthorized {
		t.Errorf("keeper's hook takes other's key: %d", status)
	}

	// A thief names keeper's Secret. It is told that it may not, and its hook
	// does not open with it.
	thief := &hook{s: s, name: "thief", key: one.key, chat: "ann"}
	must(t, errors.Join(
		s.applySecret(ctx, "thief-hook", "thief", map[string]string{"secret": rand.Text()}),
		s.applyAgent(ctx, strings.Replace(hookAgent("thief", sandboxBlock, ""), "thief-hook", "keeper-hook", 1)),
	))
	_, err = s.awaitAgent(ctx, patience, "thief", func(r standing) bool { return r.Status.Phase != "" })
	must(t, err)
	state, ok := eventually(ctx, 30*time.Second, func(ctx2 context.Context) (bool, string) { // until the hook is known
		status, text, err := thief.post(ctx2, body)
		return err == nil && status != http.StatusNotFound, fmt.Sprint(status, " ", string(text), err)
	})
	if !ok {
		t.Errorf("thief's hook is never known: %s", state)
	}
	status, text, err := thief.post(ctx, body)
	must(t, err)
	t.Logf("thief's hook with keeper's key: %d %s", status, text)
	if status == http.StatusAccepted {
		t.Error("an agent uses a Secret that is another's")
	}
	r, err := s.awaitAgent(ctx, patience, "thief", func(r standing) bool {
		c := r.condition(v1alpha1.ConditionSecrets)
		return c.Status == v1alpha1.ConditionFalse && strings.Contains(c.Message, "keeper-hook")
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("thief: %s", r)

	// A callback whose name resolves to an address of the cluster is refused
	// when it is dialled.
	private, err := s.makeHook(ctx, "inward", sandboxBlock,
		fmt.Sprintf("callbackURL: http://world.%s.svc.cluster.local:%d/callbacks", s.world(), portControl))
	must(t, err)
	answered, err := private.ask(ctx, patience, "hello")
	must(t, err)
	t.Logf("callback to a private address: %s %q", answered.State, answered.Reason)
	var seen []struct{ Body string }
	must(t, s.outside.call(ctx, http.MethodGet, portControl, "/callbacks", nil, &seen))
	if len(seen) > 0 {
		t.Errorf("the callback was called: %v", seen)
	}
	if answered.State != "FAILED" || !strings.Contains(answered.Reason, "not public") {
		t.Errorf("the reply is %s %q", answered.State, answered.Reason)
	}
	must(t, s.deleteAgents(ctx, "thief", "inward"))
}
