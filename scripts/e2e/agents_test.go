//go:build e2e

package e2e_test

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

// applySecret makes a Secret that an agent may name.
func (s *system) applySecret(ctx context.Context, name, agent string, values map[string]string) error {
	object := map[string]any{
		"apiVersion": "v1", "kind": "Secret", "stringData": values,
		"metadata": map[string]any{"name": name, "namespace": s.agents(), "labels": map[string]string{"tuluat.ai/agent-access": agent}},
	}
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	_, err = s.cluster.kubectl(ctx, string(text), "apply", "-f", "-")
	return err
}

// applyAgent applies an AiAgent as a person does.
func (s *system) applyAgent(ctx context.Context, yaml string) error {
	_, err := s.cluster.kubectl(ctx, yaml, "-n", s.agents(), "apply", "-f", "-")
	return err
}

// applySample applies an agent of config/samples with its Secrets. Its sandboxes
// end sooner when idle than the sample says, so that nobody waits five minutes,
// and take half of a small cluster's processors, not all.
func (s *system) applySample(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(s.home, "config", "samples", sampleAgent+".yaml"))
	if err != nil {
		return err
	}
	yaml := string(text)
	for _, change := range [][2]string{{"idleSeconds: 300", "idleSeconds: 90"}, {`cpu: "1"`, "cpu: 500m"}} {
		if strings.Count(yaml, change[0]) != 1 {
			return fmt.Errorf("the sample %s says %q no more", sampleAgent, change[0])
		}
		yaml = strings.Replace(yaml, change[0], change[1], 1)
	}
	number, bot := s.accounts.Numbers[0], s.accounts.Bots[0]
	return errors.Join(
		s.applySecret(ctx, sampleAgent+"-hook", sampleAgent, map[string]string{"secret": rand.Text()}),
		s.applySecret(ctx, sampleAgent+"-whatsapp", sampleAgent, map[string]string{"verify-token": number.VerifyToken, "app-secret": number.AppSecret, "access-token": number.AccessToken}),
		s.applySecret(ctx, sampleAgent+"-telegram", sampleAgent, map[string]string{"bot-token": bot.Token, "webhook-secret": bot.Secret}),
		s.applyAgent(ctx, yaml),
	)
}

// standing is an AiAgent as the cluster has it.
type standing struct {
	Metadata struct {
		Name       string `json:"name"`
		Generation int64  `json:"generation"`
	} `json:"metadata"`
	Status v1alpha1.Status `json:"status"`
}

func (r standing) condition(kind v1alpha1.ConditionType) v1alpha1.Condition {
	for _, c := range r.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return v1alpha1.Condition{}
}

func (r standing) String() string {
	var words []string
	for _, c := range r.Status.Conditions {
		words = append(words, fmt.Sprintf("%s=%s %s %q", c.Type, c.Status, c.Reason, c.Message))
	}
	return fmt.Sprintf("generation %d, observed %d, phase %q, %s", r.Metadata.Generation, r.Status.ObservedGeneration, r.Status.Phase, strings.Join(words, ", "))
}

// agent reads an AiAgent.
func (s *system) agent(ctx context.Context, name string) (standing, error) {
	var r standing
	text, err := s.cluster.client.CoreV1().RESTClient().Get().
		AbsPath("/apis/tuluat.ai/v1alpha1/namespaces", s.agents(), "aiagents", name).DoRaw(ctx)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}

// awaitAgent returns the agent once it stands as done wants, for its newest spec.
func (s *system) awaitAgent(ctx context.Context, patience time.Duration, name string, done func(standing) bool) (standing, error) {
	var last standing
	state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		r, err := s.agent(ctx, name)
		if err != nil {
			return false, err.Error()
		}
		last = r
		return r.Status.ObservedGeneration == r.Metadata.Generation && done(r), r.String()
	})
	if !ok {
		return last, fmt.Errorf("agent %s after %s: %s", name, patience, state)
	}
	return last, nil
}

func ready(r standing) bool { return r.Status.Phase == harness.AgentReady }

// deleteAgents removes them and waits until their rows know.
func (s *system) deleteAgents(ctx context.Context, names ...string) error {
	_, err := s.cluster.kubectl(ctx, "", append([]string{"-n", s.agents(), "delete", "aiagent", "--ignore-not-found", "--wait=true"}, names...)...)
	return err
}

// hook is an agent that is reached by a signed webhook, and one chat with it.
type hook struct {
	s    *system
	name string
	key  string
	chat string
}

// sandboxBlock is spec.harness.sandbox of an agent made here, in flow style:
// short-lived, so that nothing is left when the tests end.
const sandboxBlock = `{cpu: 200m, memory: 64Mi, volumeSize: 16Mi, timeoutSeconds: 300, ttlSeconds: 600, idleSeconds: 15, egress: none}`

// hookAgent is the YAML of an agent that a hook reaches.
func hookAgent(name, sandbox, more string) string {
	return fmt.Sprintf(`apiVersion: tuluat.ai/v1alpha1
kind: AiAgent
metadata:
  name: %[1]s
  annotations: {tuluat.ai/allow-open-code: "true"}
spec:
  systemPrompt: You run commands.
  harness:
    type: BOTH
    sandbox: %[2]s
    maxSandboxes: 4
    channels:
      - type: WEBHOOK
        name: %[1]s
        secretRef: {name: %[1]s-hook, key: secret}
        senders: {policy: open}
        %[3]s
`, name, sandbox, more)
}

// makeHook applies an agent and its Secret, and returns when it can be talked to.
func (s *system) makeHook(ctx context.Context, name, sandbox, more string) (*hook, error) {
	h := &hook{s: s, name: name, key: rand.Text(), chat: "ann"}
	if err := errors.Join(
		s.applySecret(ctx, name+"-hook", name, map[string]string{"secret": h.key}),
		s.applyAgent(ctx, hookAgent(name, sandbox, more)),
	); err != nil {
		return nil, err
	}
	_, err := s.awaitAgent(ctx, patience, name, ready)
	return h, err
}

// in is the same agent in another chat.
func (h *hook) in(chat string) *hook {
	other := *h
	other.chat = chat
	return &other
}

// say posts one message and returns the id of its row. A hook that is not known
// yet is asked again: nothing was taken.
func (h *hook) say(ctx context.Context, text string) (string, error) {
	body, err := json.Marshal(map[string]any{"messageId": rand.Text(), "channelUserId": "ann", "chat": h.chat, "text": text})
	if err != nil {
		return "", err
	}
	var message string
	state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		status, answer, err := h.post(ctx, body)
		if err != nil {
			return false, err.Error()
		}
		var taken struct{ Message string }
		if status != http.StatusAccepted || json.Unmarshal(answer, &taken) != nil || taken.Message == "" {
			return false, fmt.Sprintf("%d %s", status, answer)
		}
		message = taken.Message
		return true, ""
	})
	if !ok {
		return "", fmt.Errorf("hook %s does not take a message: %s", h.name, state)
	}
	return message, nil
}

func (h *hook) post(ctx context.Context, body []byte) (int, []byte, error) {
	now := strconv.FormatInt(time.Now().Unix(), 10)
	mac := hmac.New(sha256.New, []byte(h.key))
	mac.Write([]byte(now + "." + string(body)))
	header := http.Header{"Content-Type": {"application/json"}, "X-Tuluat-Timestamp": {now}, "X-Tuluat-Signature": {"v1=" + hex.EncodeToString(mac.Sum(nil))}}
	return h.s.ingress.send(ctx, "webhook-ingest", http.MethodPost, "/api/v1/channels/webhook/"+h.name, header, body)
}

// reply is how a message was answered.
type reply struct {
	Text, State, Reason string
	CreatedAt           time.Time // when it was planned
}

// answer waits for the reply to a message.
func (h *hook) answer(ctx context.Context, patience time.Duration, message string) (reply, error) {
	var answered reply
	state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		rows, err := h.s.rows.Query(ctx, `SELECT r.text, r.state, r.reason, r.created_at FROM replies r JOIN messages m USING (message_id)
			WHERE m.in_reply_to = $1 AND r.part = 1`, message)
		if err != nil {
			return false, err.Error()
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[reply])
		if err != nil || len(found) == 0 {
			return false, fmt.Sprint("no reply yet ", err)
		}
		answered = found[0]
		return answered.State != "PLANNED" || answered.Reason != "", answered.State
	})
	if !ok {
		return answered, fmt.Errorf("no answer of %s to %s after %s: %s", h.name, message, patience, state)
	}
	return answered, nil
}

// ask says something and waits for the answer.
func (h *hook) ask(ctx context.Context, patience time.Duration, text string) (reply, error) {
	message, err := h.say(ctx, text)
	if err != nil {
		return reply{}, err
	}
	return h.answer(ctx, patience, message)
}

// awaitExecution waits until the newest execution with a mark in its command is
// as done wants.
func (h *hook) awaitExecution(ctx context.Context, patience time.Duration, mark string, done func(*execution) bool) (*execution, error) {
	var last *execution
	state, ok := eventually(ctx, patience, func(ctx context.Context) (bool, string) {
		e, err := h.s.executionWith(ctx, h.name, mark)
		if err != nil || e == nil {
			return false, fmt.Sprint("no execution ", err)
		}
		last = e
		return done(e), fmt.Sprintf("%s %s", e.State, e.Reason)
	})
	if !ok {
		return last, fmt.Errorf("the command with %q of %s after %s: %s", mark, h.name, patience, state)
	}
	return last, nil
}

// printed is what a command printed, of an answer that tells its result.
func printed(answer string) string {
	_, out, ok := strings.Cut(answer, "stdout:\n")
	if !ok {
		out = answer
	}
	return strings.TrimSpace(out)
}

func isRunning(e *execution) bool { return e.State == "RUNNING" }
func hasEnded(e *execution) bool  { return e.EndedAt != nil }

// gone reports whether err says that the API server does not have it.
func gone(err error) bool { return apierrors.IsNotFound(err) }

// must ends the test when something it needs does not work.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
