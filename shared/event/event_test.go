package event_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const (
	session = harness.SessionID("ses_01k5zzzzzzzzzzzzzzzzzzzzzz")
	message = harness.MessageID("msg_01k5zzzzzzzzzzzzzzzzzzzzzz")
	command = harness.ExecutionID("exe_01k5zzzzzzzzzzzzzzzzzzzzzz")
	sandbox = harness.SandboxID("sbx_01k5zzzzzzzzzzzzzzzzzzzzzz")
	trace   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
)

// examples has one event of each type, as the functions make them.
var examples = map[event.Type]event.Event{
	event.MessageReceived:    {ID: "message.received:" + string(message), Channel: harness.ChannelWebhook, Payload: event.Payload{Session: session, Message: message}},
	event.MessageDraft:       {ID: "message.draft:" + string(message) + ":7:1", Channel: harness.ChannelTelegram, Payload: event.Payload{Session: session, Message: message}},
	event.MessageReply:       {ID: "message.reply:" + string(message), Channel: harness.ChannelWebhook, Payload: event.Payload{Session: session, Message: message}},
	event.MessageStatus:      {ID: "message.status:" + string(message) + ":SENT", Channel: harness.ChannelWebhook, Payload: event.Payload{Session: session, Message: message}},
	event.MediaRequested:     {ID: "media.requested:" + string(session) + ":1", Channel: harness.ChannelTelegram, Payload: event.Payload{Session: session}},
	event.SessionDue:         {ID: "session.due:" + string(session) + ":7", Payload: event.Payload{Session: session}},
	event.SessionChanged:     {ID: "session.changed:" + string(session) + ":8", Payload: event.Payload{Session: session}},
	event.ExecutionRequested: {ID: "execution.requested:" + string(command), Payload: event.Payload{Session: session, Execution: command}},
	event.ExecutionFinished:  {ID: "execution.finished:" + string(command), Payload: event.Payload{Session: session, Execution: command}},
	event.SandboxChanged:     {ID: "sandbox.changed:" + string(sandbox) + ":GONE", Payload: event.Payload{Session: session, Sandbox: sandbox}},
	event.ApprovalRequested:  {ID: "approval.requested:1", Channel: harness.ChannelTelegram, Payload: event.Payload{Session: session}},
	event.ApprovalDecided:    {ID: "approval.decided:1", Payload: event.Payload{Session: session}},
	event.AgentStatusChanged: {ID: "agent.status.changed:coder:1700000000000000", Payload: event.Payload{Agent: "coder", Revision: 3}},
}

func example(t event.Type) event.Event {
	e := examples[t]
	e.Type, e.Agent, e.TraceParent = t, "coder", trace
	e.Session = e.Payload.Session
	return e
}

// golden is the CloudEvent of t as a JSON file, which other languages read too.
func golden(t event.Type) string {
	return filepath.Join("testdata", strings.TrimSuffix(strings.TrimPrefix(string(t), "ai.tuluat."), ".v1")+".json")
}

func TestEveryTypeMatchesItsGoldenFile(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || !*update && len(files) != len(event.Types()) {
		t.Errorf("%d golden files for %d types, %v", len(files), len(event.Types()), err)
	}
	for _, kind := range event.Types() {
		t.Run(string(kind), func(t *testing.T) {
			e := example(kind)
			ce, err := event.Encode(e, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(ce, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			if *update {
				if err := os.WriteFile(golden(kind), got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden(kind))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("encoded (-want +got):\n%s", diff)
			}
			if decoded, err := event.Decode(parse(t, want)); err != nil {
				t.Error(err)
			} else if diff := cmp.Diff(e, decoded); diff != "" {
				t.Errorf("decoded (-want +got):\n%s", diff)
			}
		})
	}
}

func parse(t *testing.T, text []byte) *cloudevents.Event {
	t.Helper()
	ce := cloudevents.New()
	if err := json.Unmarshal(text, &ce); err != nil {
		t.Fatal(err)
	}
	return &ce
}

// CloudEvents allows extension names of lower-case letters and digits; some
// brokers take no more than 20.
func TestAttributeNames(t *testing.T) {
	allowed := regexp.MustCompile(`^[a-z][a-z0-9]{0,19}$`)
	for _, kind := range event.Types() {
		ce, err := event.Encode(example(kind), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range ce.Extensions() {
			if !allowed.MatchString(name) || value == "" {
				t.Errorf("%s has extension %q = %q", kind, name, value)
			}
		}
		if !kind.Ours() || len(ce.Data()) > event.MaxBytes {
			t.Errorf("%s: ours %v, %d bytes", kind, kind.Ours(), len(ce.Data()))
		}
	}
	for _, kind := range []event.Type{event.Ping, event.ResourceAdd, event.ResourceUpdate, event.ResourceDelete} {
		if kind.Ours() {
			t.Errorf("%s is not ours", kind)
		}
	}
}

func TestEncodeRefusesWhatIsNoCloudEvent(t *testing.T) {
	for name, e := range map[string]event.Event{"no id": {Type: event.SessionDue}, "no type": {ID: "1"}} {
		if _, err := event.Encode(e, time.Now()); err == nil {
			t.Errorf("%s was encoded", name)
		}
	}
}

// received is a CloudEvent of the given type and data as it may arrive.
func received(kind event.Type, data string) *cloudevents.Event {
	ce := cloudevents.New()
	ce.SetID("1")
	ce.SetSource("elsewhere")
	ce.SetType(string(kind))
	ce.SetDataContentType(cloudevents.ApplicationJSON)
	ce.DataEncoded = []byte(data)
	return &ce
}

func TestDecode(t *testing.T) {
	tests := map[string]struct {
		in   *cloudevents.Event
		want event.Event
	}{
		"unknown payload fields": {received(event.SessionDue, `{"session": "ses_1", "colour": {"deep": [1]}}`), event.Event{ID: "1", Type: event.SessionDue, Payload: event.Payload{Session: "ses_1"}}},
		"no data":                {received(event.SessionDue, ""), event.Event{ID: "1", Type: event.SessionDue}},
		"a source's data":        {received(event.Ping, "anything at all"), event.Event{ID: "1", Type: event.Ping}},
		"a large source's data":  {received(event.ResourceAdd, strings.Repeat("x", 2*event.MaxBytes)), event.Event{ID: "1", Type: event.ResourceAdd}},
	}
	for name, test := range tests {
		got, err := event.Decode(test.in)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	noID := received(event.SessionDue, "{}")
	noID.SetID("")
	for name, in := range map[string]*cloudevents.Event{
		"no id":        noID,
		"torn data":    received(event.SessionDue, `{"session": "ses`),
		"a list":       received(event.SessionDue, `[]`),
		"a number id":  received(event.SessionDue, `{"session": 12}`),
		"too much":     received(event.SessionDue, `{"session": "`+strings.Repeat("x", event.MaxBytes)+`"}`),
		"another type": received(event.AgentStatusChanged, `{"revision": "three"}`),
	} {
		if _, err := event.Decode(in); harness.KindOf(err) != harness.Invalid {
			t.Errorf("%s: %v, want Invalid", name, err)
		}
	}
}

// Of all extensions that are not ours only the broker's account of a failed
// delivery is kept.
func TestDecodeKeepsTheBrokersErrors(t *testing.T) {
	in := received(event.SessionDue, "{}")
	in.SetExtension("knativeerrordest", "http://agent-step.example")
	in.SetExtension("knativeerrorcode", 503)
	in.SetExtension("knativeerrordata", "YnVzeQ==")
	in.SetExtension("knativearrivaltime", "2026-01-02T03:04:05Z")
	in.SetExtension("colour", "red")
	got, err := event.Decode(in)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"knativeerrordest": "http://agent-step.example", "knativeerrorcode": "503", "knativeerrordata": "YnVzeQ=="}
	if diff := cmp.Diff(want, got.Extensions); diff != "" {
		t.Error(diff)
	}
	again, err := event.Encode(got, time.Now())
	if err != nil || len(again.Extensions()) != 0 {
		t.Errorf("sent on: %v, %v", again.Extensions(), err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, file := range []string{"session.due", "message.received"} {
		text, err := os.ReadFile(filepath.Join("testdata", file+".json"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		ce := cloudevents.New()
		if json.Unmarshal(text, &ce) != nil {
			return
		}
		e, err := event.Decode(&ce)
		if err != nil {
			if harness.KindOf(err) != harness.Invalid {
				t.Errorf("kind %s: %v", harness.KindOf(err), err)
			}
			return
		}
		if out, err := event.Encode(e, time.Unix(0, 0)); err == nil {
			if again, err := event.Decode(&out); err != nil || again.ID != e.ID || !bytes.Equal(mustJSON(t, again.Payload), mustJSON(t, e.Payload)) {
				t.Errorf("round trip of %+v gave %+v, %v", e, again, err)
			}
		}
	})
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
