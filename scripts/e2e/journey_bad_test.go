//go:build e2e

package e2e_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

// badAgent is an agent with one thing wrong, and the words that say what.
type badAgent struct {
	name    string
	sandbox string
	more    string // of its channel
	phase   harness.AgentPhase
	is      v1alpha1.ConditionType // False, in words of which names is one
	names   string                 // in the condition and in the answer
	run     string                 // what is asked of it, where only a command shows it; empty: anything
}

// journeyBad: whatever is wrong with an agent is told in its phase, in a
// condition, and to whoever writes to it; no Pod is left.
func journeyBad(t *testing.T, s *system) {
	nowhere := registryOf(s.settings.standard) + "tuluat-e2e/nowhere:1"
	noShell, err := s.cluster.kubectl(t.Context(), "", "-n", s.world(), "get", "deployment", "world", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
	must(t, err)
	with := func(change, for_ string) string { return strings.Replace(sandboxBlock, change, for_, 1) }
	refused := func(name, sandbox, names string) badAgent {
		return badAgent{name: name, sandbox: sandbox, phase: harness.AgentInvalid, is: v1alpha1.ConditionAccepted, names: names}
	}
	unusable := func(name, image, names string) badAgent {
		return badAgent{
			name: name, sandbox: with("{", `{image: "`+image+`", `), phase: harness.AgentDegraded, is: v1alpha1.ConditionSandboxes, names: names, run: "run: echo never",
		}
	}
	for _, b := range []badAgent{
		refused("bad-imageref", with("{", "{imageRef: cobol, "), "imageRef"),
		refused("bad-cpu", with("cpu: 200m", `cpu: "64"`), "cpu"),
		refused("bad-ttl", with("ttlSeconds: 600", "ttlSeconds: -5"), "ttlSeconds"),
		refused("bad-images", with("{", "{imageRef: python, image: docker.io/library/python:3, "), "image"),
		unusable("bad-nowhere", nowhere, "nowhere"),
		unusable("bad-noshell", strings.TrimSpace(noShell), "sh"),
	} {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			s.checkBad(t, b)
		})
	}
	t.Run("bad-secret", func(t *testing.T) {
		t.Parallel()
		s.checkMissingSecret(t)
	})
	t.Run("root-image", func(t *testing.T) {
		t.Parallel()
		s.checkRootImage(t)
	})
}

// registryOf is the part of an image reference that names its registry, with a
// slash; empty when it names none.
func registryOf(image string) string {
	host, _, ok := strings.Cut(image, "/")
	if !ok || !strings.ContainsAny(host, ".:") {
		return ""
	}
	return host + "/"
}

func (s *system) checkBad(t *testing.T, b badAgent) {
	ctx := t.Context()
	h := &hook{s: s, name: b.name, key: rand.Text(), chat: "ann"}
	must(t, s.applySecret(ctx, b.name+"-hook", b.name, map[string]string{"secret": h.key}))
	if err := s.applyAgent(ctx, hookAgent(b.name, b.sandbox, b.more)); err != nil {
		// The API server has read the types' own rules to its author.
		t.Logf("%s: refused at the door: %v", b.name, err)
		if !strings.Contains(err.Error(), b.names) {
			t.Errorf("%s: the refusal does not say %q: %v", b.name, b.names, err)
		}
		return
	}
	r, err := s.awaitAgent(ctx, patience, b.name, func(r standing) bool { return r.Status.Phase != "" })
	must(t, err)
	t.Logf("%s: %s", b.name, r)
	text := "hello"
	if b.run != "" {
		text = b.run
	}
	answered, err := h.ask(ctx, patience, text)
	must(t, err)
	t.Logf("%s answers: %q", b.name, answered.Text)
	if !strings.Contains(answered.Text, b.names) {
		t.Errorf("%s: the answer does not say %q: %q", b.name, b.names, answered.Text)
	}
	// What a command has shown is in the status some seconds later.
	r, err = s.awaitAgent(ctx, patience, b.name, func(r standing) bool {
		c := r.condition(b.is)
		return r.Status.Phase == b.phase && c.Status == v1alpha1.ConditionFalse && strings.Contains(c.Message, b.names)
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("%s: %s", b.name, r)
	if err := s.noPodsOf(ctx, patience, b.name); err != nil {
		t.Error(err)
	}
}

// checkMissingSecret: one of two channels names a Secret that is not there. The
// other still works, and says nothing wrong.
func (s *system) checkMissingSecret(t *testing.T) {
	ctx := t.Context()
	const name = "bad-secret"
	h := &hook{s: s, name: name, key: rand.Text(), chat: "ann"}
	must(t, errors.Join(
		s.applySecret(ctx, name+"-hook", name, map[string]string{"secret": h.key}),
		s.applyAgent(ctx, hookAgent(name, sandboxBlock, `
      - type: WEBHOOK
        name: bad-secret-two
        secretRef: {name: nobody-made-it, key: secret}
        senders: {policy: open}`)),
	))
	// A channel function looks for its Secrets when it runs; a message makes it.
	answered, err := h.ask(ctx, patience, "hello")
	must(t, err)
	t.Logf("%s answers: %q", name, answered.Text)
	r, err := s.awaitAgent(ctx, patience, name, func(r standing) bool {
		c := r.condition(v1alpha1.ConditionSecrets)
		return r.Status.Phase == harness.AgentDegraded && c.Status == v1alpha1.ConditionFalse && strings.Contains(c.Message, "nobody-made-it")
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("%s: %s", name, r)

	// What it says is to be done helps: at the latest when somebody writes there.
	two := &hook{s: s, name: "bad-secret-two", key: rand.Text(), chat: "ann"}
	must(t, s.applySecret(ctx, "nobody-made-it", name, map[string]string{"secret": two.key}))
	began := time.Now()
	if _, err := two.ask(ctx, patience, "hello"); err != nil {
		t.Error(err)
	}
	if _, err := s.awaitAgent(ctx, patience, name, ready); err != nil {
		t.Error(err)
	}
	t.Logf("%s: READY %s after its Secret came", name, short(time.Since(began)))
}

// checkRootImage: an image that would run as root is run as somebody else.
func (s *system) checkRootImage(t *testing.T) {
	ctx := t.Context()
	h, err := s.makeHook(ctx, "root-image", strings.Replace(sandboxBlock, "{", "{imageRef: python, ", 1), "")
	must(t, err)
	answered, err := h.ask(ctx, patience, "run: id -u")
	must(t, err)
	t.Logf("root-image: the user is %q", answered.Text)
	var uid int
	if _, err := fmt.Sscan(printed(answered.Text), &uid); err != nil || uid == 0 {
		t.Errorf("an image whose user is root runs as %q", answered.Text)
	}
}

// noPodsOf waits until no Pod of an agent is there.
func (s *system) noPodsOf(ctx context.Context, patience time.Duration, agent string) error {
	state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		pods, err := s.cluster.pods(ctx, s.sandboxes(), "tuluat.ai/agent="+agent)
		if err != nil {
			return false, err.Error()
		}
		return len(pods) == 0, podNames(pods)
	})
	if !ok {
		return fmt.Errorf("Pods of %s are left: %s", agent, state)
	}
	return nil
}
