package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/functions/management-api/internal/api"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
)

type started struct {
	Session   harness.SessionID
	Duplicate bool
}

// A session keeps the Temporal workflow that it was started with.
func TestASessionNamesATemporalWorkflow(t *testing.T) {
	w := newWorld(t)
	const workflow = `{"namespace":"orders","workflowId":"order-7","runId":"0F3B7b0e-6c3f-4b53-8d4e-1c3c2a8c9f10"}`
	start := func(key, text, chat, temporal string) answer {
		body := `{"agent":"coder","text":"` + text + `"`
		if chat != "" {
			body += `,"chat":"` + chat + `"`
		}
		if temporal != "" {
			body += `,"temporal":` + temporal
		}
		return w.do(request{method: http.MethodPost, path: "/api/v1/sessions", body: body + "}", header: map[string]string{"Idempotency-Key": key}})
	}
	if p := problem(t, start("k0", "hello", "mine", workflow), http.StatusUnprocessableEntity); !cmp.Equal(pointers(p), []string{"#/temporal"}) {
		t.Errorf("without a bridge: %+v", p)
	}
	w.stop()
	w.start("127.0.0.1:0", func(o *api.Options) { o.Temporal = true })

	one := decode[started](t, start("k1", "hello", "mine", workflow), http.StatusAccepted)
	want := &harness.TemporalLink{Namespace: "orders", WorkflowID: "order-7", RunID: "0F3B7b0e-6c3f-4b53-8d4e-1c3c2a8c9f10"}
	if got := decode[view.Session](t, w.get("/sessions/"+string(one.Session)), http.StatusOK); !cmp.Equal(got.Temporal, want) {
		t.Errorf("got %+v", got.Temporal)
	}
	if again := decode[started](t, start("k1", "hello", "mine", workflow), http.StatusAccepted); again.Session != one.Session || !again.Duplicate {
		t.Errorf("repeated: %+v", again)
	}
	if more := decode[started](t, start("k2", "more", "mine", ""), http.StatusAccepted); more.Session != one.Session {
		t.Errorf("goes on: %+v", more)
	}
	if again := decode[started](t, start("k2", "more", "mine", ""), http.StatusAccepted); !again.Duplicate {
		t.Errorf("goes on, repeated: %+v", again)
	}
	alone := decode[started](t, start("k3", "alone", "", workflow), http.StatusAccepted)
	rows := `SELECT count(*)::text FROM messages`
	before := w.Query(rows)
	for name, test := range map[string]struct{ key, text, chat, temporal, pointer string }{
		"the open one has another":       {"k4", "more", "mine", `{"workflowId":"order-8"}`, "#/temporal"},
		"the key had another":            {"k1", "hello", "mine", `{"workflowId":"order-8"}`, "header/Idempotency-Key"},
		"the key had one, and now none":  {"k3", "alone", "", "", "header/Idempotency-Key"},
		"the key had none, and now one":  {"k2", "more", "mine", `{"workflowId":"order-8"}`, "header/Idempotency-Key"},
		"the open one, that of the same": {"k3", "alone", "", `{"workflowId":"order-7"}`, "header/Idempotency-Key"},
	} {
		if p := problem(t, start(test.key, test.text, test.chat, test.temporal), http.StatusConflict); !cmp.Equal(pointers(p), []string{test.pointer}) {
			t.Errorf("%s: %+v", name, p)
		}
	}
	for temporal, pointer := range map[string]string{
		`{}`:                                   "#/temporal",
		`{"workflowId":""}`:                    "#/temporal/workflowId",
		`{"workflowId":"a\u0007b"}`:            "#/temporal/workflowId",
		`{"workflowId":" a"}`:                  "#/temporal/workflowId",
		`{"workflowId":"a","namespace":"b\n"}`: "#/temporal/namespace",
		`{"workflowId":"a","runId":"7"}`:       "#/temporal/runId",
		`{"workflowId":"a","runID":"7"}`:       "#/temporal/runID",

		`{"workflowId":"` + strings.Repeat("ä", 501) + `"}`:  "#/temporal/workflowId",
		`{"workflowId":"` + strings.Repeat("a", 1001) + `"}`: "#/temporal/workflowId",
	} {
		if p := problem(t, start("k9", "hello", "", temporal), http.StatusUnprocessableEntity); len(p.Errors) != 1 || !strings.HasPrefix(p.Errors[0].Pointer, pointer) {
			t.Errorf("%.80s: %+v", temporal, p)
		}
	}
	if after := w.Query(rows); after != before {
		t.Errorf("%s messages, then %s", before, after)
	}
	if got := decode[view.Session](t, w.get("/sessions/"+string(alone.Session)), http.StatusOK); !cmp.Equal(got.Temporal, want) {
		t.Errorf("got %+v", got.Temporal)
	}
}

// So does a run of a workflow of ours.
func TestARunNamesATemporalWorkflow(t *testing.T) {
	w := newWorld(t)
	w.flow()
	start := func(key, temporal string) answer {
		body := `{"workflow":"release","input":{"service":"web"}` + temporal + `}`
		return w.do(request{method: http.MethodPost, path: "/api/v1/sessions", body: body, header: map[string]string{"Idempotency-Key": key}})
	}
	const link = `,"temporal":{"workflowId":"order-7"}`
	if p := problem(t, start("k1", link), http.StatusUnprocessableEntity); !cmp.Equal(pointers(p), []string{"#/temporal"}) {
		t.Errorf("without a bridge: %+v", p)
	}
	w.stop()
	w.start("127.0.0.1:0", func(o *api.Options) { o.Temporal = true })
	one := decode[started](t, start("k1", link), http.StatusAccepted)
	if got := decode[view.Session](t, w.get("/sessions/"+string(one.Session)), http.StatusOK); !cmp.Equal(got.Temporal, &harness.TemporalLink{WorkflowID: "order-7"}) {
		t.Errorf("got %+v", got.Temporal)
	}
	if again := decode[started](t, start("k1", link), http.StatusAccepted); again.Session != one.Session || !again.Duplicate {
		t.Errorf("repeated: %+v", again)
	}
	for _, other := range []string{"", `,"temporal":{"workflowId":"order-8"}`} {
		if p := problem(t, start("k1", other), http.StatusConflict); !cmp.Equal(pointers(p), []string{"header/Idempotency-Key"}) {
			t.Errorf("the key had another: %+v", p)
		}
	}
	if p := problem(t, start("k2", `,"temporal":{"workflowId":"a","runId":"7"}`), http.StatusUnprocessableEntity); !cmp.Equal(pointers(p), []string{"#/temporal/runId"}) {
		t.Errorf("a run that is none: %+v", p)
	}
}
