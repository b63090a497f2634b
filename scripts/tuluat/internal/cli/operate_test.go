package cli_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// conversation plays one session: messages, and a stream that is cut after
// every connection's share of events.
type conversation struct {
	f      *fake
	events []string // data, the name before a space
	share  int      // of one connection
	hang   bool     // stay open at the end, instead of saying end
	before func(connection int) int
	count  atomic.Int64
}

func (c *conversation) serve(w http.ResponseWriter, r *http.Request) {
	n := int(c.count.Add(1))
	if c.before != nil {
		if status := c.before(n); status != 0 {
			c.f.problem(w, status, "away")
			return
		}
	}
	from, _ := strconv.Atoi(strings.TrimPrefix(r.Header.Get("Last-Event-ID"), "ses_1/"))
	w.Header().Set("Content-Type", "text/event-stream")
	io.WriteString(w, "event: session\ndata: {\"session\":\"ses_1\",\"state\":\"RUNNING\"}\n\n")
	for i := from; i < len(c.events) && i < from+c.share; i++ {
		name, data, _ := strings.Cut(c.events[i], " ")
		if name != "output" {
			fmt.Fprintf(w, "id: ses_1/%d\n", i+1)
		}
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, data)
	}
	if from+c.share < len(c.events) {
		return
	}
	if c.hang {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	}
	io.WriteString(w, "event: end\ndata: {\"state\":\"COMPLETED\"}\n\n")
}

func newConversation(f *fake, share int) *conversation {
	c := &conversation{f: f, share: share, events: []string{
		`turn {"at":"2026-01-02T03:04:05Z","message":"msg_1","channelUserId":"ann","text":"first"}`,
		`tool_call {"toolCall":"call_1","name":"executeShell","arguments":"{\"command\":\"old\"}"}`,
		`tool_result {"toolCall":"call_1","name":"executeShell","state":"DONE","execution":{"state":"COMPLETED","exitCode":0}}`,
		`reply {"at":"2026-01-02T03:04:06Z","message":"msg_2","inReplyTo":"msg_1","text":"old answer"}`,
		`turn {"at":"2026-01-02T03:05:05Z","message":"msg_3","channelUserId":"ann","text":"second"}`,
		`tool_call {"toolCall":"call_2","name":"executeShell","arguments":"{\"command\":\"new\"}"}`,
		`tool_result {"toolCall":"call_2","name":"executeShell","state":"DONE","execution":{"state":"FAILED","exitCode":3}}`,
		`reply {"at":"2026-01-02T03:05:06Z","message":"msg_4","inReplyTo":"msg_3","text":"new \u001b[31manswer"}`,
	}}
	f.say("GET /api/v1/sessions/ses_1", 200, `{"id":"ses_1","agent":"coder","state":"RUNNING"}`)
	f.say("GET /api/v1/sessions/ses_1/messages", 200, `{"items":[
		{"id":"msg_1","direction":"INBOUND","state":"DONE","channelUserId":"ann","text":"first","createdAt":"2026-01-02T03:04:05Z"},
		{"id":"msg_2","direction":"OUTBOUND","state":"DONE","text":"old answer","inReplyTo":"msg_1","createdAt":"2026-01-02T03:04:06Z"},
		{"id":"msg_3","direction":"INBOUND","state":"RUNNING","channelUserId":"ann","text":"second","createdAt":"2026-01-02T03:05:05Z"}]}`)
	f.mux.HandleFunc("GET /api/v1/sessions/ses_1/events", c.serve)
	return c
}

func TestFollowMessages(t *testing.T) {
	for _, share := range []int{1, 3, 100} {
		f := newFake(t)
		c := newConversation(f, share)
		c.before = func(n int) int { return map[int]int{2: 503, 3: 502}[n] }
		got := f.run("session", "messages", "ses_1", "-f")
		text := got.out
		for _, want := range []string{"  first\n", "  old answer\n", "ann  (running)\n  second\n", "executeShell $ new\n  exit 3\n", "coder\n  new ^[[31manswer\n"} {
			if strings.Count(text, want) != 1 {
				t.Errorf("%d events a connection: %q is there %d times in %q", share, want, strings.Count(text, want), text)
			}
		}
		if got.code != 0 || strings.Contains(text, "$ old") || !strings.Contains(got.errOut, "The session has ended: completed.") {
			t.Errorf("%+v", got)
		}
		if (share < 100) != strings.Contains(got.errOut, "The connection is lost and tried again: away (503)") {
			t.Errorf("%d events a connection: %q", share, got.errOut)
		}
	}
}

func TestFollowAsJSON(t *testing.T) {
	f := newFake(t)
	newConversation(f, 2)
	got := f.run("session", "messages", "ses_1", "-f", "-o", "json")
	var ids []string
	for line := range strings.Lines(got.out) {
		var e struct {
			ID, Event string
			Data      map[string]any
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %q", err, line)
		}
		if e.ID != "" {
			ids = append(ids, e.ID)
		}
	}
	if got.code != 0 || strings.Join(ids, " ") != "ses_1/1 ses_1/2 ses_1/3 ses_1/4 ses_1/5 ses_1/6 ses_1/7 ses_1/8" {
		t.Errorf("%+v", got)
	}
	if got = f.run("session", "messages", "ses_1", "-f", "-o", "json", "--after", "ses_1/7"); strings.Count(got.out, `"id"`) != 1 {
		t.Errorf("%+v", got)
	}
}

func TestFollowIsInterrupted(t *testing.T) {
	f := newFake(t)
	c := newConversation(f, 100)
	c.hang = true
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel)
	if got := f.through(ctx, f.env(), strings.NewReader(""), "session", "messages", "ses_1", "-f"); got.code != 130 || !strings.Contains(got.out, "new ^[[31manswer") {
		t.Errorf("%+v", got)
	}
	c.before = func(n int) int { return map[bool]int{true: 401}[n > 1] }
	c.hang = false
	c.share = 2
	if got := f.run("session", "messages", "ses_1", "-f"); got.code != 5 || !strings.Contains(got.errOut, "does not know the token") {
		t.Errorf("a token that ends meanwhile: %+v", got)
	}
}

func TestStartAndWait(t *testing.T) {
	f := newFake(t)
	c := newConversation(f, 3)
	f.say("POST /api/v1/sessions", 202, `{"session":"ses_1","message":"msg_3","duplicate":false}`)
	got := f.run("session", "start", "coder", "do", "it")
	if got.code != 0 || got.out != "message msg_3 is taken in session ses_1\n" || f.bodies[0] != `{"agent":"coder","text":"do it"}` || f.headers[0].Get("Idempotency-Key") == "" {
		t.Errorf("%+v %q", got, f.bodies)
	}
	if got = f.run("session", "start", "coder", "do", "it", "--wait"); got.code != 0 || got.out != "new ^[[31manswer\n" || got.errOut != "executeShell $ new\n  exit 3\n" {
		t.Errorf("%+v", got)
	}
	if got = f.run("session", "start", "coder", "do", "it", "--temporal-workflow-id", "order-7", "--temporal-namespace", "orders"); got.code != 0 || f.bodies[len(f.bodies)-1] != `{"agent":"coder","temporal":{"namespace":"orders","workflowId":"order-7"},"text":"do it"}` {
		t.Errorf("%+v %q", got, f.bodies)
	}
	for flag, want := range map[string]string{
		"--temporal-run-id=0f3b7b0e-6c3f-4b53-8d4e-1c3c2a8c9f10": "need --temporal-workflow-id",
		"--temporal-workflow-id=a\n":                             "--temporal-workflow-id has a control character",
	} {
		if got = f.run("session", "start", "coder", "do", flag); got.code != 2 || !strings.Contains(got.errOut, want) {
			t.Errorf("%s: %+v", flag, got)
		}
	}
	f.say("POST /api/v1/sessions/ses_1/messages", 202, `{"session":"ses_1","message":"msg_9"}`)
	c.hang, c.share = true, 100
	if got = f.run("session", "send", "ses_1", "more", "--wait", "--timeout", "200ms"); got.code != 4 || !strings.Contains(got.errOut, "no answer within 200ms") {
		t.Errorf("%+v", got)
	}
	c.hang = false
	if got = f.run("session", "send", "ses_1", "more", "--wait"); got.code != 1 || !strings.Contains(got.errOut, "has ended without an answer") {
		t.Errorf("%+v", got)
	}
}

func TestCancel(t *testing.T) {
	f := newFake(t)
	f.say("POST /api/v1/sessions/ses_1/cancel", 200, `{"id":"ses_1","state":"CANCELLED"}`)
	f.say("POST /api/v1/sessions/ses_2/cancel", 409, `{"detail":"the session has ended"}`)
	got := f.run("session", "cancel", "ses_2", "ses_1", "-y")
	if got.code != 6 || got.out != "session/ses_1 cancelled\n" || !strings.Contains(got.errOut, "session ses_2: the session has ended (409)") {
		t.Errorf("%+v", got)
	}
}

func TestDecisions(t *testing.T) {
	f := newFake(t)
	var second atomic.Bool
	f.mux.HandleFunc("GET /api/v1/approvals/apr_1", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"id":"apr_1","agent":"coder","state":"PENDING","title":"Run a command","input":{"command":"rm -rf build\nls","times":[1,2]},"digest":"abc"}`)
	})
	f.mux.HandleFunc("POST /api/v1/approvals/apr_1/decision", func(w http.ResponseWriter, r *http.Request) {
		if second.Load() {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(409)
			io.WriteString(w, `{"detail":"it is decided","approvals":[{"id":"apr_1","state":"REJECTED","decidedBy":"bob\u001b","decidedVia":"TELEGRAM","reason":"no"}]}`)
			return
		}
		io.WriteString(w, `{"id":"apr_1","state":"APPROVED"}`)
	})
	if got := f.run("approval", "approve", "apr_1"); got.code != 2 || !strings.Contains(got.errOut, "command:\n  rm -rf build\n  ls\n") {
		t.Errorf("unasked: %+v", got)
	}
	f.asked()
	if got := f.run("approval", "approve", "apr_1", "--yes", "--reason", "fine"); got.code != 0 || got.out != "approval/apr_1 approved\n" || f.bodies[1] != `{"decision":"APPROVE","digest":"abc","reason":"fine"}` {
		t.Errorf("%+v %q", got, f.bodies)
	}
	second.Store(true)
	if got := f.run("approval", "reject", "apr_1"); got.code != 6 || !strings.Contains(got.errOut, "apr_1 is REJECTED by bob^[ over TELEGRAM: no") {
		t.Errorf("second: %+v", got)
	}
	f.say("GET /api/v1/approvals/apr_2", 200, `{"id":"apr_2","state":"EXPIRED"}`)
	f.asked()
	if got := f.run("approval", "approve", "apr_2", "--yes"); got.code != 6 || !strings.Contains(got.errOut, "apr_2 is EXPIRED") || len(f.asked()) != 1 {
		t.Errorf("too late: %+v", got)
	}
}

const asksCommand = `{"id":"apr_3","agent":"coder","state":"PENDING","title":"Agent coder asks to run a command.","digest":"abc",
	"input":{"agent":"coder","tool":"executeShell","arguments":{"command":"rm -rf \u202ebuild; echo ` + "`id`" + ` \\u{200b}"}}}`

// What is asked is shown letter by letter, and what is sent is bound to it.
func TestADecisionIsBoundToWhatIsShown(t *testing.T) {
	f := newFake(t)
	f.say("GET /api/v1/approvals/apr_3", 200, asksCommand)
	f.say("GET /api/v1/approvals/apr_4", 200, `{"id":"apr_4","state":"PENDING","title":"Go on?","digest":"abc","input":{"question":"Go on?"}}`)
	f.say("POST /api/v1/approvals/apr_3/decision", 200, `{"id":"apr_3","state":"APPROVED"}`)
	for _, c := range []struct {
		args []string
		code int
		body string
		says string
	}{
		{[]string{"get", "apr_3"}, 0, "", ""},
		{[]string{"approve", "apr_3", "--yes"}, 0, `{"decision":"APPROVE","digest":"abc"}`, "Command:\n  rm -rf \\u{202e}build; echo `id` \\u{005c}u{200b}\n"},
		{[]string{"approve", "apr_3", "--yes", "--scope", "session"}, 0, `{"decision":"APPROVE","digest":"abc","scope":"SESSION"}`, ""},
		{[]string{"approve", "apr_3", "--yes", "--scope", "always", "--reason", "ok"}, 0, `{"decision":"APPROVE","digest":"abc","reason":"ok","scope":"ALWAYS"}`, ""},
		{[]string{"approve", "apr_3", "--yes", "--command", "ls\u200b"}, 0, `{"decision":"APPROVE","digest":"abc","arguments":{"command":"ls` + "\u200b" + `"}}`, "Runs instead:\n  ls\\u{200b}\n"},
		{[]string{"approve", "apr_3", "--yes", "--scope", "ever"}, 2, "", "--scope must be once, session or always"},
		{[]string{"approve", "apr_4", "--yes", "--command", "ls"}, 2, "", "--command changes a command"},
		{[]string{"reject", "apr_3", "--reason", "no"}, 0, `{"decision":"REJECT","digest":"abc","reason":"no"}`, ""},
	} {
		f.asked()
		got := f.run(append([]string{"approval"}, c.args...)...)
		body := ""
		if n := len(f.bodies); n > 0 {
			body = f.bodies[n-1]
		}
		if got.code != c.code || body != c.body || !strings.Contains(got.errOut, c.says) {
			t.Errorf("%q: code %d, sent %q, says %q; want %d, %q, %q", c.args, got.code, body, got.errOut, c.code, c.body, c.says)
		}
	}
}

func TestApprovalsAreWatched(t *testing.T) {
	f := newFake(t)
	var opened atomic.Int32
	places := make(chan string, 10)
	f.mux.HandleFunc("GET /api/v1/approvals/events", func(w http.ResponseWriter, r *http.Request) {
		places <- r.Header.Get("Last-Event-ID") + "?" + r.URL.RawQuery
		if opened.Add(1) > 2 {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(403)
			io.WriteString(w, `{"detail":"no more"}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "event: approval\ndata: %s\n\n", strings.ReplaceAll(asksCommand, "\n", ""))
		fmt.Fprintf(w, "id: 7.%d\nevent: approval\ndata: {\"id\":\"apr_%d\",\"state\":\"REJECTED\",\"decidedBy\":\"bob\"}\n\n", opened.Load(), opened.Load())
	})
	got := f.run("approval", "list", "--watch", "--agent", "coder")
	if got.code == 0 || strings.Count(got.out, "PENDING") != 2 || !strings.Contains(strings.Join(strings.Fields(got.out), " "), "apr_1 REJECTED , by bob") || !strings.Contains(got.out, "apr_2    REJECTED") {
		t.Errorf("%+v", got)
	}
	for _, want := range []string{"?agent=coder", "7.1?agent=coder", "7.2?agent=coder"} {
		if at := <-places; at != want {
			t.Errorf("opened at %q, want %q", at, want)
		}
	}
}

func TestDeadLetters(t *testing.T) {
	f := newFake(t)
	f.say("GET /api/v1/deadletters", 200, `{"items":[{"id":7,"type":"ai.tuluat.message.received.v1","state":"OPEN","destination":"agent-step","statusCode":503,"cause":"no model"}]}`)
	for i := 7; i < 10; i++ {
		status, body := 202, `{"id":7,"state":"REPLAYED"}`
		if i == 8 {
			status, body = 404, `{"detail":"there is no such dead letter"}`
		}
		f.say(fmt.Sprintf("POST /api/v1/deadletters/%d/replay", i), status, body)
	}
	f.say("POST /api/v1/deadletters/7/discard", 200, `{"id":7,"state":"DISCARDED"}`)
	if got := f.run("deadletter", "list"); !strings.Contains(got.out, "agent-step answered 503: no model") || f.asked()[0] != "GET /api/v1/deadletters?limit=50&status=OPEN" {
		t.Errorf("%+v", got)
	}
	if got := f.run("deadletter", "replay", "7", "8", "9"); got.code != 3 || got.out != "deadletter/7 replayed\ndeadletter/9 replayed\n" || !strings.Contains(got.errOut, "dead letter 8") && !strings.Contains(got.errOut, "deadletter 8") {
		t.Errorf("%+v", got)
	}
	if got := f.run("deadletter", "discard", "7", "--yes"); got.out != "deadletter/7 discarded\n" {
		t.Errorf("%+v", got)
	}
}

// Entries become visible out of order and come again, the server ends streams and
// is away for a while, and each entry is printed once, in the order it came.
func TestFollowLogs(t *testing.T) {
	f := newFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	entry := func(id, second int) string {
		return fmt.Sprintf(`{"id":%d,"agent":"coder","session":"ses_1","level":"INFO","message":"entry %d\u001b","createdAt":"2026-01-02T03:04:%02dZ"}`, id, id, second)
	}
	f.mux.HandleFunc("GET /api/v1/agents/coder/logs", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("follow") != "true" {
			t.Errorf("the list was asked for without a mark: %s", r.URL)
		}
		fmt.Fprintf(w, `{"items":[%s,%s],"next":"x","mark":"m1"}`, entry(3, 30), entry(2, 20))
	})
	var asked []string
	f.mux.HandleFunc("GET /api/v1/logs/events", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		asked = append(asked, q.Get("agent")+" "+q.Get("level")+" "+q.Get("mark")+" "+r.Header.Get("Last-Event-ID")+" "+q.Get("since"))
		if len(asked) == 2 {
			f.problem(w, 503, "away")
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		log := func(id string, e string) {
			if id != "" {
				fmt.Fprintf(w, "id: %s\n", id)
			}
			fmt.Fprintf(w, "event: log\ndata: %s\n\n", e)
		}
		switch len(asked) {
		case 1: // what was listed, and what came; then the stream is cut in the middle of a look
			log("", entry(3, 30))
			log("m2", entry(5, 59))
			io.WriteString(w, ": heartbeat\n\n")
			log("", entry(6, 59))
		case 3: // long after it was written
			log("", entry(4, 0))
			log("", entry(5, 59))
			log("m3", entry(6, 59))
		default:
			log("m4", entry(7, 59))
			time.AfterFunc(100*time.Millisecond, cancel)
		}
	})
	got := f.through(ctx, f.env(), strings.NewReader(""), "logs", "coder", "-f", "--limit", "2", "--level", "info")
	var order []string
	for line := range strings.Lines(got.out) {
		order = append(order, strings.Fields(line)[6])
	}
	if got.code != 130 || strings.Join(order, " ") != "2^[ 3^[ 5^[ 6^[ 4^[ 7^[" || !strings.Contains(got.errOut, "away") {
		t.Errorf("%q %+v", order, got)
	}
	const since = " 2026-01-02T03:04:20Z"
	if want := []string{"coder INFO m1 " + since, "coder INFO m1 m2" + since, "coder INFO m1 m2" + since, "coder INFO m1 m3" + since}; len(asked) < 4 || !slices.Equal(asked[:4], want) {
		t.Errorf("asked with %q, want %q", asked, want)
	}
	f = newFake(t)
	ctx, cancel = context.WithCancel(t.Context())
	f.say("GET /api/v1/logs", 200, `{"items":[]}`)
	f.mux.HandleFunc("GET /api/v1/logs/events", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "id: m1\nevent: log\ndata: {\"id\":1,\"level\":\"INFO\",\"unknown\":\"\u202e\"}\n\n")
		time.AfterFunc(100*time.Millisecond, cancel)
	})
	if got := f.through(ctx, f.env(), strings.NewReader(""), "logs", "-f", "-o", "json"); got.out != `{"id":1,"level":"INFO","unknown":"\u202e"}`+"\n" {
		t.Errorf("%+v", got)
	}
}

func TestAudit(t *testing.T) {
	f := newFake(t)
	f.say("GET /api/v1/audit", 200, `{"items":[{"id":3,"actor":"ann","action":"update aiagents","object":"a","state":"UNKNOWN","requestId":"r3"},
		{"id":2,"actor":"ann","action":"update aiagents","object":"a","state":"REFUSED","reason":"by a policy","requestId":"r2"},
		{"id":1,"actor":"ben","action":"cancel sessions","object":"ses_1","state":"DONE","requestId":"r1"}]}`)
	got := f.run("audit", "list", "--object", "a", "--since", "2026-01-02T00:00:00Z")
	lines := strings.Split(got.out, "\n")
	for i, want := range []string{"STATE", "unknown ", "refused: by a policy ", "done "} {
		if got.code != 0 || len(lines) != 5 || !strings.Contains(lines[i], want) {
			t.Errorf("line %d lacks %q: %+v", i, want, got)
		}
	}
	if asked := f.asked()[0]; asked != "GET /api/v1/audit?limit=50&object=a&since=2026-01-02T00%3A00%3A00Z" {
		t.Error(asked)
	}
}

func TestLogs(t *testing.T) {
	f := newFake(t)
	f.say("GET /api/v1/logs", 200, `{"items":[{"id":2,"agent":"b","session":"ses_1","level":"ERROR","message":"second","createdAt":"2026-01-02T03:04:06Z"},{"id":1,"agent":"a","level":"INFO","message":"first","createdAt":"2026-01-02T03:04:05Z"}]}`)
	got := f.run("logs", "--level", "error,info", "--grep", "a b", "--since", "2026-01-02T00:00:00Z", "--limit", "5")
	if lines := strings.Split(got.out, "\n"); got.code != 0 || !strings.HasSuffix(lines[0], "INFO   a  first") || !strings.HasSuffix(lines[1], "ERROR  b  ses_1  second") {
		t.Errorf("%+v", got)
	}
	if asked := f.asked()[0]; asked != "GET /api/v1/logs?level=ERROR&level=INFO&limit=5&since=2026-01-02T00%3A00%3A00Z&text=a+b" {
		t.Error(asked)
	}
}

// printer plays a command that prints two streams, slowly.
func printer(f *fake, state string, exit string) {
	var looks atomic.Int64
	f.say("POST /api/v1/sandboxes/sbx_1/executions", 202, `{"id":"exe_1","state":"PENDING"}`)
	f.mux.HandleFunc("GET /api/v1/executions/exe_1", func(w http.ResponseWriter, _ *http.Request) {
		if looks.Load() < 8 {
			io.WriteString(w, `{"id":"exe_1","state":"RUNNING"}`)
			return
		}
		fmt.Fprintf(w, `{"id":"exe_1","state":%q,"reason":"because"%s}`, state, exit)
	})
	texts := map[string]string{"stdout": "one\ntwo\x1b[31m\xff\xe2\x82\xac\n", "stderr": "oops\n"}
	f.mux.HandleFunc("GET /api/v1/executions/exe_1/output", func(w http.ResponseWriter, r *http.Request) {
		n := looks.Add(1)
		if n == 4 {
			f.problem(w, 503, "away")
			return
		}
		text := texts[r.URL.Query().Get("stream")]
		from, _ := strconv.Atoi(r.URL.Query().Get("offset"))
		to := min(from+4, len(text))
		if n > 8 {
			to = len(text)
		}
		fmt.Fprintf(w, `{"stream":"x","offset":%d,"data":%q,"next":%d,"total":%d,"ended":%v}`, from, base64.StdEncoding.EncodeToString([]byte(text[from:to])), to, len(text), n > 8 && to == len(text))
	})
}

func TestExec(t *testing.T) {
	for _, c := range []struct {
		state, exit string
		code        int
		want        string
	}{
		{"COMPLETED", `,"exitCode":0`, 0, ""},
		{"FAILED", `,"exitCode":42`, 42, ""},
		{"FAILED", ``, 1, "execution exe_1: failed: because"},
		{"TIMED_OUT", `,"exitCode":137`, 1, "timed out: because"},
		{"SANDBOX_GONE", ``, 1, "sandbox gone"},
	} {
		f := newFake(t)
		printer(f, c.state, c.exit)
		var out, errOut sink
		code := runRaw(f, &out, &errOut, "sandbox", "exec", "sbx_1", "--", "sh", "-c", "echo 'a b' | $X", "")
		if code != c.code || out.String() != "one\ntwo\x1b[31m\xff\xe2\x82\xac\n" || !strings.HasPrefix(errOut.String(), "oops\n") || !strings.Contains(errOut.String(), c.want) {
			t.Errorf("%s: %d %q %q", c.state, code, out.String(), errOut.String())
		}
		if f.bodies[0] != `{"command":"sh -c 'echo '\\''a b'\\'' | $X' ''"}` || f.headers[0].Get("Idempotency-Key") == "" {
			t.Errorf("%s", f.bodies[0])
		}
	}
	f := newFake(t)
	if got := f.run("sandbox", "exec", "sbx_1", "--"); got.code != 2 || len(f.asked()) != 0 {
		t.Errorf("no command: %+v", got)
	}
	f.say("POST /api/v1/sandboxes/sbx_1/executions", 409, `{"detail":"the sandbox is GONE"}`)
	if got := f.run("sandbox", "exec", "sbx_1", "ls | wc"); got.code != 6 || f.bodies[0] != `{"command":"ls | wc"}` {
		t.Errorf("%+v %q", got, f.bodies)
	}
}

func TestExecIsLeft(t *testing.T) {
	f := newFake(t)
	f.say("POST /api/v1/sandboxes/sbx_1/executions", 202, `{"id":"exe_1","state":"PENDING"}`)
	f.say("GET /api/v1/executions/exe_1/output", 200, `{"data":"","offset":0,"next":0}`)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	got := f.through(ctx, f.env(), strings.NewReader(""), "sandbox", "exec", "sbx_1", "sleep 100")
	if got.code != 130 || !strings.Contains(got.errOut, "tuluat execution output exe_1 -f") {
		t.Errorf("%+v", got)
	}
	if got = f.run("sandbox", "exec", "--detach", "sbx_1", "sleep 100"); got.code != 0 || got.out != "exe_1\n" {
		t.Errorf("%+v", got)
	}
}

func TestOutput(t *testing.T) {
	f := newFake(t)
	f.say("GET /api/v1/executions/exe_1/output", 200, `{"data":"","offset":90,"next":10}`)
	if got := f.run("execution", "output", "exe_1"); got.code != 1 || !strings.Contains(got.errOut, "goes backwards") {
		t.Errorf("%+v", got)
	}
	f = newFake(t)
	f.mux.HandleFunc("GET /api/v1/executions/exe_1/output", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("offset") == "0" { // its begin was dropped
			io.WriteString(w, `{"data":"dGFpbAo=","offset":100,"next":105,"total":105,"ended":true}`)
			return
		}
		io.WriteString(w, `{"data":"","offset":105,"next":105,"total":105,"ended":true}`)
	})
	if got := f.run("execution", "output", "exe_1", "--stream", "stdout"); got.code != 0 || got.out != "tail\n" || got.errOut != "(100 bytes of stdout are not stored)\n" {
		t.Errorf("%+v", got)
	}
}

func TestVersionOfTheServer(t *testing.T) {
	f := newFake(t)
	f.say("GET /api/v1/version", 200, `{"version":"v1.2","api":"v1","client":"v1.0"}`)
	if got := f.run("version"); got.code != 0 || strings.Count(got.out, "\n") != 1 || len(f.asked()) != 0 {
		t.Errorf("%+v", got)
	}
	if got := f.run("version", "--server"); got.code != 0 || !strings.Contains(got.out, f.url+` {"version":"v1.2","api":"v1","client":"v1.0"}`) {
		t.Errorf("%+v", got)
	}
	f.say("GET /api/v1/sessions/ses_9", 200, `<html>`)
	if got := f.run("session", "show", "ses_9"); got.code != 1 || !strings.Contains(got.errOut, "not the management API") {
		t.Errorf("%+v", got)
	}
}

func TestRunsOfWorkflows(t *testing.T) {
	f := newFake(t)
	f.say("POST /api/v1/sessions", 202, `{"session":"ses_1","duplicate":false}`)
	if got := f.run("session", "start", "--workflow", "release", "--temporal-workflow-id", "order-7"); got.code != 0 || f.bodies[0] != `{"temporal":{"workflowId":"order-7"},"workflow":"release"}` {
		t.Errorf("%+v %q", got, f.bodies)
	}
	f.bodies, f.headers = nil, nil
	got := f.run("session", "start", "--workflow", "release", "--input", `{"service": "web"}`)
	if got.code != 0 || got.out != "run ses_1 of workflow release is started\n" || f.bodies[0] != `{"input":{"service":"web"},"workflow":"release"}` || f.headers[0].Get("Idempotency-Key") == "" {
		t.Errorf("%+v %q", got, f.bodies)
	}
	for _, wrong := range [][]string{
		{"--workflow", "release", "--input", "{"}, {"coder", "text", "--input", "{}"}, {"--workflow", "release", "coder", "text"}, {"coder"}, {"--workflow", "release", "--wait"},
	} {
		if got := f.run(append([]string{"session", "start"}, wrong...)...); got.code != 2 {
			t.Errorf("%v: %+v", wrong, got)
		}
	}
	f.say("GET /api/v1/sessions/ses_1", 200, `{"id":"ses_1","agent":"coder","channel":"API","account":"release","chat":"ses_1","state":"AWAITING_APPROVAL","currentNode":"may","workflow":"release",
		"workflowRevision":3,"input":{"service":"web"},"createdAt":"2026-01-02T03:04:05Z","updatedAt":"2026-01-02T03:04:05Z"}`)
	f.say("GET /api/v1/sessions/ses_1/timeline", 200, `{"items":[
		{"at":"2026-01-02T03:04:05Z","kind":"VISIT","id":"vis_1","visit":{"id":"vis_1","node":"ask","number":1,"state":"DONE","attempts":2,"arrivals":[],"output":{"text":"fine"},"createdAt":"2026-01-02T03:04:05Z"}},
		{"at":"2026-01-02T03:04:06Z","kind":"APPROVAL","id":"apr_1","approval":{"id":"apr_1","title":"t"}},
		{"at":"2026-01-02T03:04:06Z","kind":"VISIT","id":"vis_2","visit":{"id":"vis_2","node":"may","number":1,"state":"WAITING","attempts":1,"arrivals":["vis_1"],"input":"Ship\u001b[31m it?","createdAt":"2026-01-02T03:04:06Z"}}]}`)
	got = f.run("session", "show", "ses_1")
	for _, want := range []string{"release, revision 3", "may", `{"text":"fine"}`, "Ship^[[31m it?"} {
		if got.code != 0 || !strings.Contains(got.out, want) {
			t.Errorf("%q is not in\n%s", want, got.out)
		}
	}
	if strings.Contains(got.out, "apr_1") {
		t.Error(got.out)
	}
}

func TestTimelineOfGuardrails(t *testing.T) {
	f := newFake(t)
	f.say("GET /api/v1/sessions/ses_1/timeline", 200, `{"items":[{"at":"2026-01-02T03:04:05Z","kind":"GUARDRAIL","id":"gvd_1","guardrail":{"id":"gvd_1","message":"msg_1","stage":"TOOL_CALL","guardrail":"no-wiping",
		"action":"block","verdict":"HIT","reason":"a pattern finds\u001b[31m something","createdAt":"2026-01-02T03:04:05Z"}}]}`)
	got := f.run("session", "timeline", "ses_1")
	for _, want := range []string{"guardrail", "hit", "gvd_1", "no-wiping on tool call: a pattern finds^[[31m something (block)"} {
		if got.code != 0 || !strings.Contains(got.out, want) {
			t.Errorf("%q is not in\n%s%s", want, got.out, got.errOut)
		}
	}
}
