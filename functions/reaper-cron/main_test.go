package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/reaper-cron/internal/reap"
	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
)

func env(values map[string]string) func(string) string {
	return func(name string) string { return values[name] }
}

func TestConfigReportsEveryProblem(t *testing.T) {
	_, err := parseConfig(env(map[string]string{
		"SANDBOX_DRIVER": "local", "STAY": "-1s", "SWEEP_BATCH": "0", "DIRECT_SINKS": "session.due=http://x, ai.tuluat.session.due.v1=agent-step", "MORE_SINKS": "signal.due=http://x",
	}))
	if harness.KindOf(err) != harness.Invalid {
		t.Fatalf("error %v", err)
	}
	functiontest.Complains(t, err,
		"DATABASE_URL ", "BROKER_URL ", "STAY ", "SWEEP_BATCH ", `DIRECT_SINKS names "session.due"`, "DIRECT_SINKS has no absolute", `MORE_SINKS names "signal.due"`, "SANDBOX_LOCAL_DIR ", "SANDBOX_LOCAL_RUNNER ")
}

func TestConfig(t *testing.T) {
	values := map[string]string{"DATABASE_URL": "postgres://u:hidden@h/d", "BROKER_URL": "http://broker"}
	cfg, err := parseConfig(env(values))
	if err != nil || cfg.Stay != 55*time.Second || cfg.Batch != 200 || len(cfg.Direct) != 0 {
		t.Errorf("defaults %+v, %v", cfg, err)
	}
	values["MORE_SINKS"] = "ai.tuluat.session.due.v1=http://another/events"
	values["STAY"], values["DIRECT_SINKS"] = "0", "ai.tuluat.session.due.v1=http://agent-step/events, ai.tuluat.message.reply.v1=https://hook/events?a=b, ai.tuluat.message.reply.v1/telegram=http://telegram/events"
	cfg, err = parseConfig(env(values))
	want := map[reap.Sink][]string{
		{Type: event.SessionDue}:                                     {"http://agent-step/events", "http://another/events"},
		{Type: event.MessageReply}:                                   {"https://hook/events?a=b"},
		{Type: event.MessageReply, Channel: harness.ChannelTelegram}: {"http://telegram/events"},
	}
	if diff := cmp.Diff(want, cfg.Direct); err != nil || cfg.Stay != 0 || diff != "" {
		t.Errorf("given %+v, %v", cfg, err)
	}
}

func TestPodsNeedACluster(t *testing.T) {
	values := map[string]string{"PORT": "0", "METRICS_PORT": "0", "DATABASE_URL": "postgres://u:hidden@h/d", "BROKER_URL": "http://broker"}
	err := function.Run(t.Context(), "reaper-cron", env(values), t.Output(), build, nil)
	if err == nil || !strings.Contains(err.Error(), "SANDBOX_DRIVER") || !strings.Contains(err.Error(), "KUBECONFIG") || strings.Contains(err.Error(), "hidden") {
		t.Errorf("without a cluster: %v", err)
	}
}
