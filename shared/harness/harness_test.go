package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
)

func checkMachine[S ~string](t *testing.T, name string, machine transitions[S], ended ...S) {
	t.Helper()
	for from, next := range machine {
		for _, to := range next {
			if !machine.known(to) {
				t.Errorf("%s: %s leads to %s, which is no state", name, from, to)
			}
			if from == to || !machine.may(from, to) {
				t.Errorf("%s: %s -> %s", name, from, to)
			}
		}
		if machine.terminal(from) != slices.Contains(ended, from) {
			t.Errorf("%s: %s ended = %v", name, from, machine.terminal(from))
		}
	}
	if machine.known("NOPE") || machine.may("NOPE", ended[0]) {
		t.Errorf("%s knows a state that is none", name)
	}
}

func TestStateMachines(t *testing.T) {
	checkMachine(t, "session", sessionTransitions, SessionCompleted, SessionCancelled)
	checkMachine(t, "message", messageTransitions, MessageDone)
	checkMachine(t, "reply", replyTransitions, ReplyRead, ReplyFailed)
	checkMachine(t, "toolCall", toolCallTransitions, ToolCallDone, ToolCallFailed, ToolCallDenied, ToolCallExpired)
	checkMachine(t, "execution", executionTransitions, ExecutionCompleted, ExecutionFailed, ExecutionTimedOut, ExecutionOutOfMemory,
		ExecutionDiskLimit, ExecutionSandboxGone, ExecutionCancelled, ExecutionUnknown)
	checkMachine(t, "sandbox", sandboxTransitions, SandboxGone)
	checkMachine(t, "approval", approvalTransitions, ApprovalApproved, ApprovalRejected, ApprovalExpired, ApprovalCancelled)
	// A command whose start is unknown is never started again.
	if ExecutionUnknown.May(ExecutionRunning) || ExecutionRunning.May(ExecutionPending) {
		t.Error("an execution may start twice")
	}
}

func TestSecretsDoNotPrint(t *testing.T) {
	s := Secret("hunter2hunter2")
	encoded, err := json.Marshal(map[string]any{"key": s})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "key", s)
	for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%+v %#v %q", struct{ S Secret }{s}, s, s), string(encoded), log.String()} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("printed: %s", text)
		}
	}
	if got := Redact("key=hunter2hunter2!", []Secret{s, "", "short"}); got != "key=[secret]!" {
		t.Errorf("redacted to %q", got)
	}
}

func TestIDs(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	a, b := NewID("x", now), NewID("x", now.Add(time.Millisecond))
	if len(a) != len("x_")+26 || a >= b || a == NewID("x", now) {
		t.Errorf("%q %q", a, b)
	}
}

func TestErrors(t *testing.T) {
	cause := errors.New("pq: password is hunter2")
	err := fmt.Errorf("load session ses_1: %w", Wrap(Unavailable, cause, "the database does not answer"))
	if KindOf(err) != Unavailable || MessageOf(err) != "the database does not answer" || !errors.Is(err, cause) {
		t.Errorf("%v %v", KindOf(err), MessageOf(err))
	}
	if KindOf(nil) != "" || KindOf(cause) != Internal || MessageOf(cause) != "internal error" {
		t.Error("an unclassified error must be internal and say nothing")
	}
}

func TestCleanText(t *testing.T) {
	if got := CleanText("a\x00b\xffc\U0001F600"); got != "ab\uFFFDc\U0001F600" {
		t.Errorf("%q", got)
	}
}
