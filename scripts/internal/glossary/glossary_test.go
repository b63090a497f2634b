package glossary

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/shared/event"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

// foreign are folders and names that are somebody else's to choose.
var foreign = map[string]string{
	"functions/agent-step/internal/a2a":                   "the wire of the Agent2Agent protocol",
	"functions/agent-step/internal/model":                 "the wires of OpenAI and Anthropic",
	"functions/whatsapp-ingest/internal/whatsapp":         "WhatsApp's wire",
	"functions/sandbox-exec/runner/internal/mcp":          "the wire of the Model Context Protocol",
	"shared/sandbox/stdio":                                "the same, and what the runner is asked for",
	"functions/agent-status/internal/image":               "the form of registries' credentials",
	"shared/secret/kubernetes":                            "the wire of the Kubernetes API",
	"functions/agent-status/internal/cluster":             "the same",
	"shared/resource/resourcetest":                        "the same",
	"functions/management-api/internal/access/cluster.go": "the same",
	"functions/management-api/internal/apidoc/crd":        "the form of a CustomResourceDefinition",
	"functions/management-api/internal/api/docs.go":       "the form of an OpenAPI document",
	"functions/management-api/internal/mcp/tool.go":       "the same",
	"resourceVersion":                                     "Kubernetes' own field",
	"creationTimestamp":                                   "the same",
	"kubeconfig":                                          "Kubernetes' own file",
	"shared/sandbox/kubernetes/kubetest":                  "the same",
	"shared/sandbox/sandboxtest/toolchain.go":             "what the package managers of languages read",
	"True":                                "what the conditions of Kubernetes are",
	"False":                               "the same",
	"Routed":                              "a type of such conditions, in Kubernetes' spelling",
	"SecretsAvailable":                    "the same",
	"SandboxAvailable":                    "the same",
	"SkillsAvailable":                     "the same",
	"Running":                             "the same",
	"AgentsAvailable":                     "the same",
	"initContainer":                       "Kubernetes' word for how the runner comes into a Pod",
	"imageVolume":                         "the same",
	"scripts/tuluat/internal/probe":       "the wires of WhatsApp and Telegram",
	"scripts/tuluat/internal/telegram":    "Telegram's wire",
	"scripts/tuluat/internal/cli/fake.go": "help for the fakes, which speak of people as their messengers do",
	"functions/telegram-ingest/internal/telegram": "Telegram's wire",
	"phoneNumberId":                    "WhatsApp's name of an account, which its owner copies from there",
	"bot":                              "Telegram's name of an account, which its owner copies from there",
	"botTokenSecretRef":                "Telegram's name of what lets us send",
	"runId":                            "Temporal's name of a run of one of its workflows",
	"BOT_TOKEN":                        "the same, as a secret's role",
	"child-pid":                        "bubblewrap's --info-fd",
	"dev.knative.sources.ping":         "Knative's PingSource",
	"dev.knative.apiserver.ref.add":    "Knative's ApiServerSource",
	"dev.knative.apiserver.ref.update": "the same",
	"dev.knative.apiserver.ref.delete": "the same",
}

// synonyms are names whose meaning has a word.
var synonyms = []Synonym{
	{"conversation", "session"},
	{"thread", "session"},
	{"dialog", "session"},
	{"chat_id", "chat"},
	{"room", "chat"},
	{"topic", "chat"},
	{"user_id", "channel_user_id"},
	{"sender_id", "channel_user_id"},
	{"from", "channel_user_id"},
	{"author", "channel_user_id"},
	{"bot", "account"},
	{"phone_number_id", "account"},
	{"hook", "account"},
	{"exec", "execution"},
	{"run_id", "execution_id"},
	{"job", "execution"},
	{"task", "execution"},
	{"pod", "sandbox"},
	{"container", "sandbox"},
	{"sandbox_status", "sandbox_state"},
	{"tool_use", "tool_call"},
	{"function_call", "tool_call"},
	{"call_id", "tool_call_id"},
	{"args", "arguments"},
	{"status", "state"},
	{"outcome", "state"},
	{"error", "reason"},
	{"response", "reply"},
	{"answer", "reply"},
	{"body", "text"},
	{"content", "text"},
	{"external_id", "provider_id"},
	{"created", "created_at"},
	{"updated", "updated_at"},
	{"finished_at", "ended_at"},
	{"expires", "expires_at"},
	{"retries", "attempts"},
	{"version", "revision"},
	{"sequence", "seq"},
	{"trace_id", "traceparent"},
	{"lease_expires_at", "lease_until"},
}

// elsewhere are whole names in which a synonym means something else.
var elsewhere = map[string]string{
	"apiVersion":           "Kubernetes' own field",
	"author":               "the person who answers through the API in an agent's place, who is no channel user",
	"from":                 "the node that an edge of a workflow leaves",
	"ERROR":                "a level of log entries",
	"retries":              "the block of a workflow's node that says how often it is tried again",
	"status":               "a member of RFC 9457 problems; in a trailer, the runner's whole word on an execution",
	"version":              "of a build of the product",
	"status_code":          "of HTTP",
	"statusCode":           "the same",
	"traceId":              "the part of a traceparent that is searched by",
	"message.status":       "the delivery of a message, which is several replies with a state each",
	"agent.status.changed": "the status of a Kubernetes resource",
	"lastExecutionStatus":  "a member of that status, given by the product's decision record",
}

// ids are the keys of typed ids.
var ids = map[string]string{
	"AgentName": "agent", "SessionID": "session", "MessageID": "message", "StepID": "step", "ToolCallID": "toolCall",
	"ExecutionID": "execution", "SandboxID": "sandbox", "ReplyID": "reply", "AttachmentID": "attachment", "ApprovalID": "approval", "Channel": "channel",
}

// parts are keys that say more than which thing it is.
var parts = map[string]string{
	"inReplyTo": "the message that was answered",
	"origin":    "the session that a run was started from",
	"id":        "of the record itself",
	"name":      "of the record itself",
	"type":      "of the block itself",
	"message":   "of a condition: words for people, as Kubernetes has it",
	"messageId": "the webhook's wire: what the other side knows a message or reply by",
}

func walk(t *testing.T) (names []Name, sets []Set, misnamed []string) {
	t.Helper()
	names, err := Source(os.DirFS(filepath.Join("..", "..", "..")), []string{"shared", "functions", "scripts/tuluat"}, foreign)
	if err != nil {
		t.Fatal(err)
	}
	stored, sets, misnamed, err := Database(t.Context(), postgrestest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	names = append(names, stored...)
	names = append(names, extensions(t)...)
	return names, sets, misnamed
}

// extensions encodes an event with everything in it and looks at its context.
func extensions(t *testing.T) []Name {
	t.Helper()
	ce, err := event.Encode(event.Event{
		ID: "id", Type: event.MessageReceived, Session: "ses_1", Agent: "a", Channel: harness.ChannelWebhook,
		TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	var names []Name
	for name := range ce.Extensions() {
		names = append(names, Name{Form: Extension, Text: name, Where: "event.Encode"})
	}
	return names
}

func TestEveryNameIsInTheGlossaryOnce(t *testing.T) {
	names, sets, misnamed := walk(t)
	for form, least := range map[Form]int{Table: 10, Column: 50, Key: 30, Value: 40, Event: 11, Extension: 5} {
		found := 0
		for _, n := range names {
			if n.Form == form {
				found++
			}
		}
		if found < least {
			t.Errorf("the walk finds %d of the form %s, so it does not see the product", found, form)
		}
	}
	var problems []string
	problems = append(problems, Unknown(harness.Glossary(), names)...)
	problems = append(problems, Ambiguous(harness.Glossary())...)
	problems = append(problems, Forbidden(synonyms, slices.DeleteFunc(names, func(n Name) bool { return elsewhere[n.Text] != "" }))...)
	problems = append(problems, Mistyped(ids, parts, names)...)
	problems = append(problems, misnamed...)
	for _, p := range problems {
		t.Error(p)
	}
	if len(sets) < 8 {
		t.Errorf("the database has %d closed sets, so their CHECKs are not understood: %v", len(sets), sets)
	}
}

// The database repeats the closed sets of harness: one that has other values
// would let in what the code does not know, or refuse what it does.
func TestClosedSetsOfTheDatabaseAreThoseOfTheWords(t *testing.T) {
	_, sets, _ := walk(t)
	want := map[string][]string{
		"agent_phase":       text(harness.AgentReady, harness.AgentInvalid, harness.AgentDeleted),
		"message_direction": text(harness.Inbound, harness.Outbound),
		"message_state":     text(harness.MessagePending, harness.MessageRunning, harness.MessageDone),
		"execution_cause":   text(harness.CauseToolCall, harness.CauseNodeVisit, harness.CauseAPI, harness.CauseToolList),
		"log_level":         text(harness.LevelDebug, harness.LevelInfo, harness.LevelWarn, harness.LevelError),
		"session_channel":   text(harness.ChannelWhatsApp, harness.ChannelTelegram, harness.ChannelWebhook, harness.ChannelAPI),
		"route_channel":     text(harness.ChannelWhatsApp, harness.ChannelTelegram, harness.ChannelWebhook, harness.ChannelAPI),
		"session_state": text(harness.SessionPending, harness.SessionRunning, harness.SessionAwaitingApproval, harness.SessionAwaitingExecution,
			harness.SessionIdle, harness.SessionCompleted, harness.SessionBlocked, harness.SessionFailed, harness.SessionCancelled),
		"tool_call_state": text(harness.ToolCallPending, harness.ToolCallRunning, harness.ToolCallDone, harness.ToolCallFailed,
			harness.ToolCallDenied, harness.ToolCallExpired),
		"execution_state": text(harness.ExecutionPending, harness.ExecutionRunning, harness.ExecutionCompleted, harness.ExecutionFailed,
			harness.ExecutionTimedOut, harness.ExecutionOutOfMemory, harness.ExecutionDiskLimit, harness.ExecutionSandboxGone,
			harness.ExecutionCancelled, harness.ExecutionUnknown),
		"approval_state":    text(harness.ApprovalPending, harness.ApprovalApproved, harness.ApprovalRejected, harness.ApprovalExpired, harness.ApprovalCancelled),
		"guardrail_stage":   text(harness.StageInput, harness.StageToolCall, harness.StageToolOutput, harness.StageOutput),
		"count_stage":       text(harness.StageInput, harness.StageToolCall, harness.StageToolOutput, harness.StageOutput),
		"guardrail_action":  text(harness.GuardrailBlock, harness.GuardrailRedact, harness.GuardrailAsk, harness.GuardrailWarn),
		"count_action":      text(harness.GuardrailBlock, harness.GuardrailRedact, harness.GuardrailAsk, harness.GuardrailWarn),
		"guardrail_verdict": text(harness.GuardrailPassed, harness.GuardrailHit, harness.GuardrailFailed),
		"count_verdict":     text(harness.GuardrailPassed, harness.GuardrailHit, harness.GuardrailFailed),
		"sandbox_state":     text(harness.SandboxCreating, harness.SandboxReady, harness.SandboxTerminating, harness.SandboxGone),
		"reply_state": text(harness.ReplyPlanned, harness.ReplySent, harness.ReplyDelivered, harness.ReplyRead,
			harness.ReplyFailed, harness.ReplyUnknown),
	}
	for _, s := range sets {
		if values, ok := want[s.Constraint]; ok && !s.equal(values) {
			t.Errorf("the database allows %s, harness has %v", s, values)
		}
		delete(want, s.Constraint)
	}
	for name := range want {
		t.Errorf("the database has no closed set %s", name)
	}
}

func text[S ~string](values ...S) []string {
	var all []string
	for _, v := range values {
		all = append(all, string(v))
	}
	return all
}

func TestUnknownFindsBothDirections(t *testing.T) {
	words := []harness.Word{{Name: "chat", Meaning: "where replies go", Column: "chat", Key: "chat"}}
	got := Unknown(words, []Name{{Column, "chat", "table sessions", ""}, {Column, "colour", "table sessions", ""}, {Column, "colour", "table messages", ""}})
	want := []string{
		`glossary: chat has the JSON key "chat", which exists nowhere`,
		`table sessions: column "colour" is not in the glossary: use the name that its meaning has there, or add the word to shared/harness/glossary.go`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestAmbiguousFindsEachKind(t *testing.T) {
	for name, c := range map[string]struct {
		words []harness.Word
		want  []string
	}{
		"sound": {[]harness.Word{
			{Name: "session", Meaning: "a conversation", Table: "sessions", Column: "session_id", Key: "session", Extension: "tuluatsession"},
			{Name: "channelUserId", Meaning: "a person", Column: "channel_user_id", Key: "channelUserId"},
			{Name: "callbackURL", Meaning: "where to", Key: "callbackURL"},
			{Name: "messageReceived", Meaning: "it came", Event: "message.received"},
			{Name: "timedOut", Meaning: "late", Value: "TIMED_OUT"},
			{Name: "logText", Meaning: "of a log", Column: "message", Apart: "the table's columns are given"},
		}, nil},
		"one meaning, two words": {
			[]harness.Word{{Name: "chat", Meaning: "Where replies go."}, {Name: "room", Meaning: "where replies go"}},
			[]string{"glossary: chat and room mean the same: where replies go"},
		},
		"one name, two words": {
			[]harness.Word{{Name: "chat", Meaning: "a", Key: "chat"}, {Name: "room", Meaning: "b", Key: "chat", Apart: "x"}},
			[]string{`glossary: chat and room are both the JSON key "chat"`},
		},
		"a word twice": {
			[]harness.Word{{Name: "chat", Meaning: "a"}, {Name: "chat", Meaning: "b"}},
			[]string{"glossary: chat is there twice"},
		},
		"no meaning": {
			[]harness.Word{{Name: "chat"}},
			[]string{"glossary: a word without a name or a meaning: {Name:chat Meaning: Table: Column: Key: Value: Event: Extension: Apart:}"},
		},
		"a column that is not the key": {
			[]harness.Word{{Name: "channelUserId", Meaning: "a", Column: "user_id", Key: "channelUserId"}},
			[]string{`glossary: channelUserId: the column is "user_id", want "channel_user_id"`},
		},
		"a key of another word": {
			[]harness.Word{{Name: "message", Meaning: "a", Column: "message_id", Key: "message"}, {Name: "messageId", Meaning: "b", Key: "messageId"}},
			[]string{`glossary: the JSON key "messageId" of messageId reads like the column of message: rename one, or say that they are Apart`},
		},
		"other forms": {
			[]harness.Word{{Name: "sessionDue", Meaning: "a", Key: "due", Value: "DUE", Event: "session.now", Extension: "tuluatdue"}},
			[]string{
				`glossary: sessionDue: the JSON key is "due", want "sessionDue"`,
				`glossary: sessionDue: the event extension is "tuluatdue", want "tuluatsessiondue"`,
				`glossary: sessionDue: the event type is "session.now", want "session.due"`,
				`glossary: sessionDue: the value is "DUE", want "SESSION_DUE"`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, Ambiguous(c.words)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestForbiddenFindsSynonymsInAnyForm(t *testing.T) {
	for _, n := range []Name{
		{Column, "conversation_id", "x", ""},
		{Column, "user_id", "x", ""},
		{Key, "userId", "x", ""},
		{Key, "podName", "x", ""},
		{Table, "thread", "x", ""},
		{Value, "EXEC_ID", "x", ""},
		{Event, "job.done", "x", ""},
		{Key, "botID", "x", ""},
	} {
		if len(Forbidden(synonyms, []Name{n})) == 0 {
			t.Errorf("%s %q is not found", n.Form, n.Text)
		}
	}
	if got := Forbidden(synonyms, []Name{{Column, "channel_user_id", "x", ""}, {Key, "createdAt", "x", ""}, {Key, "toolCallId", "x", ""}}); len(got) > 0 {
		t.Errorf("the right word is forbidden: %q", got)
	}
	if got := Forbidden([]Synonym{{"user", "person"}, {"pod", "sandbox"}}, []Name{{Key, "superuserName", "x", ""}, {Column, "tripod_uid", "x", ""}}); len(got) > 0 {
		t.Errorf("found inside a word: %q", got)
	}
}

func TestMistypedFindsBothDirections(t *testing.T) {
	got := Mistyped(ids, parts, []Name{
		{Key, "session", "a", "SessionID"},
		{Key, "sessionId", "b", "SessionID"},
		{Key, "session", "c", "string"},
		{Key, "inReplyTo", "d", "MessageID"},
		{Key, "session", "e", "sessionJSON"},
		{Key, "session", "e", "SessionState"},
		{Column, "session", "f", ""},
		{Key, "text", "g", "string"},
	})
	want := []string{
		`b: JSON key "sessionId" holds a SessionID, whose key is "session"`,
		`c: JSON key "session" holds a string, but names a SessionID`,
		`e: JSON key "session" holds a SessionState, but names a SessionID`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestSourceFindsKeysAndValues(t *testing.T) {
	const code = `package a
type t struct {
	A *harness.ID ` + "`json:\"alpha,omitempty\" yaml:\"x\"`" + `
	Embedded
	hidden int
	B int ` + "`json:\"-\"`" + `
	C struct { D int ` + "`json:\"delta\"`" + ` } ` + "`json:\"gamma\"`" + `
}
type state string
const (
	waiting state = "WAITING"
	heard event.Type = "ai.tuluat.message.received.v1"
	plain = "no value"
	text string = "nor this"
	number state2 = 1
)
const query = ` + "\"SELECT jsonb_build_object('session', s.session_id, 'step' , $1::text), 'other'\"" + `
var spelt = ` + "`{\"text\":\"`" + ` + x + ` + "`\"}`" + `
var theirs struct { A int ` + "`json:\"child-pid\"`" + ` }
`
	got, err := Source(fstest.MapFS{
		"shared/a.go":            {Data: []byte(code)},
		"shared/a_test.go":       {Data: []byte("package a\ntype t struct { A int `json:\"tested\"` }\n")},
		"shared/vendor_x/v.go":   {Data: []byte("package v\ntype t struct { A int `json:\"theirs\"` }\n")},
		"shared/testdata/bad.go": {Data: []byte("not Go")},
	}, []string{"shared"}, map[string]string{"shared/vendor_x": "their wire", "child-pid": "their name"})
	if err != nil {
		t.Fatal(err)
	}
	want := []Name{
		{Key, "alpha", "shared/a.go:3", "ID"},
		{Key, "gamma", "shared/a.go:7", ""},
		{Key, "delta", "shared/a.go:7", "int"},
		{Value, "WAITING", "shared/a.go:11", ""},
		{Event, "message.received", "shared/a.go:12", ""},
		{Key, "session", "shared/a.go:17", ""},
		{Key, "step", "shared/a.go:17", ""},
		{Key, "text", "shared/a.go:18", ""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	_, err = Source(fstest.MapFS{"shared/a.go": {Data: []byte("package a\ntype t struct {\n\tA int `json:\"a\"`\n\tB int\n}\n")}}, []string{"shared"}, nil)
	if err == nil || !strings.Contains(err.Error(), "field B has no json tag") {
		t.Errorf("a field without a tag: %v", err)
	}
}

func TestDatabaseFindsNamesSetsAndReferences(t *testing.T) {
	dsn := postgrestest.Empty(t)
	conn, err := pgx.Connect(t.Context(), dsn.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), `CREATE TABLE owners (owner_id text PRIMARY KEY, grade char(1) CONSTRAINT owner_grade CHECK (grade IN ('A', 'B')));
		CREATE TABLE pets (pet_id text, keeper text REFERENCES owners, owner_id text REFERENCES owners,
			kind varchar(9) CONSTRAINT pet_kind CHECK (kind IN ('CAT', 'DOG')), state text CONSTRAINT pet_state CHECK (state IN ('WELL', 'ILL', 'GONE')),
			CONSTRAINT pet_rule CHECK ((keeper IS NULL) = (state IN ('ILL', 'WELL')))) PARTITION BY LIST (kind);
		CREATE TABLE pets_cats PARTITION OF pets FOR VALUES IN ('CAT');`)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	names, sets, misnamed, err := Database(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, n := range names {
		found = append(found, string(n.Form)+" "+n.Text)
	}
	wantNames := []string{
		"table owners", "column owner_id", "column grade", "table pets", "column pet_id", "column keeper", "column owner_id", "column kind", "column state",
		"value A", "value B", "value CAT", "value DOG", "value WELL", "value ILL", "value GONE",
	}
	if diff := cmp.Diff(wantNames, found); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	wantSets := []Set{{"owner_grade", []string{"A", "B"}}, {"pet_kind", []string{"CAT", "DOG"}}, {"pet_state", []string{"WELL", "ILL", "GONE"}}}
	if diff := cmp.Diff(wantSets, sets); diff != "" {
		t.Errorf("sets (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"table pets: column keeper points at owners.owner_id and must have that name"}, misnamed); diff != "" {
		t.Errorf("references (-want +got):\n%s", diff)
	}
	if sets[2].equal([]string{"WELL", "ILL"}) || sets[2].equal([]string{"WELL", "ILL", "LOST"}) || !sets[2].equal([]string{"GONE", "ILL", "WELL"}) {
		t.Error("sets are compared wrongly")
	}
}
