package main

import (
	"io"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/function/functiontest"
	"tuluat.ai/harness/shared/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Without an address the function takes every decision, touches no row, and says
// once that nobody is told.
func TestOffWithoutAnAddress(t *testing.T) {
	w := functiontest.NewWorld(t)
	w.Agents("a")
	w.Exec(`INSERT INTO sessions (session_id, agent_name, channel, account, chat, state, temporal) VALUES ('ses_1', 'a', 'API', 'a', 'c', 'IDLE', '{"workflowId": "w"}')`)
	w.Exec(`INSERT INTO approvals (approval_id, session_id, agent_name, title, digest, state, decided_at) VALUES ('apr_1', 'ses_1', 'a', 't', 'd', 'APPROVED', now())`)
	w.Exec(`SELECT plan_signal('apr_1')`)
	p := w.Start("temporal-bridge", build)
	p.DeliverTwice(event.Event{ID: "1", Type: event.ApprovalDecided, Session: "ses_1", Payload: event.Payload{Session: "ses_1"}})
	p.Hears("", event.ApprovalDecided)
	p.Stop()
	if state := w.Query(`SELECT state || ' ' || attempts FROM temporal_signals`); state != "PENDING 0" {
		t.Errorf("the signal is %s", state)
	}
	if n := strings.Count(w.Logs.String(), "TEMPORAL_ADDRESS is not set"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

func TestConfiguration(t *testing.T) {
	const database = "postgres://u:hidden@h/d"
	for name, test := range map[string]struct {
		env  map[string]string
		want []string
	}{
		"nothing":          {nil, []string{"DATABASE_URL is not set"}},
		"no port":          {map[string]string{"TEMPORAL_ADDRESS": "temporal.example.com"}, []string{"TEMPORAL_ADDRESS is no host:port"}},
		"half a pair":      {map[string]string{"TEMPORAL_TLS_CLIENT_CERT_DATA": "hidden"}, []string{"TEMPORAL_TLS_CLIENT_CERT_DATA and TEMPORAL_TLS_CLIENT_KEY_DATA"}},
		"a key in clear":   {map[string]string{"TEMPORAL_API_KEY": "hidden", "TEMPORAL_TLS": "false"}, []string{"TEMPORAL_TLS is false"}},
		"perhaps TLS":      {map[string]string{"TEMPORAL_TLS": "maybe"}, []string{`TEMPORAL_TLS is "maybe"`}},
		"no certificate":   {map[string]string{"TEMPORAL_ADDRESS": "t:1", "DATABASE_URL": database, "TEMPORAL_TLS_SERVER_CA_CERT_DATA": "hidden"}, []string{"TEMPORAL_TLS_SERVER_CA_CERT holds no certificate"}},
		"no pair":          {map[string]string{"TEMPORAL_ADDRESS": "t:1", "DATABASE_URL": database, "TEMPORAL_TLS_CLIENT_CERT_DATA": "hidden", "TEMPORAL_TLS_CLIENT_KEY_DATA": "hidden"}, []string{"no pair in PEM"}},
		"a file not there": {map[string]string{"TEMPORAL_ADDRESS": "t:1", "DATABASE_URL": database, "TEMPORAL_TLS_CLIENT_CERT_PATH": "/none", "TEMPORAL_TLS_CLIENT_KEY_PATH": "/none"}, []string{"TEMPORAL_TLS_CLIENT_CERT cannot be read", "/none"}},
	} {
		err := function.Run(t.Context(), "temporal-bridge", func(variable string) string { return test.env[variable] }, io.Discard, build, nil)
		functiontest.Complains(t, err, test.want...)
		if strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", name, err)
		}
	}
	cfg, err := parseConfig(func(variable string) string {
		return map[string]string{"DATABASE_URL": database, "TEMPORAL_ADDRESS": "eu-west-1.aws.api.temporal.io:7233", "TEMPORAL_API_KEY_PATH": "/key"}[variable]
	})
	if err != nil || cfg.Namespace != "default" || !cfg.Temporal.TLS || cfg.Temporal.APIKey.File != "/key" || cfg.DatabaseURL != harness.Secret(database) {
		t.Errorf("%+v, %v", cfg, err)
	}
}
