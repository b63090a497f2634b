package conformance

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLoad(t *testing.T) {
	cases, err := Load("testdata/channels")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for i := range cases {
		kinds[cases[i].Kind()]++
	}
	if diff := cmp.Diff(map[string]int{"wa": 42, "tg": 35, "hook": 11, "out": 9}, kinds); diff != "" {
		t.Errorf("cases (-want +got):\n%s", diff)
	}
}

func TestLoadRefusesWhatItDoesNotUnderstand(t *testing.T) {
	const body = `{"channel":"WHATSAPP"}`
	for _, test := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"nothing", nil, "no cases"},
		{"unknown expectation", map[string]string{"wa-1.json": "", "wa-1.expect.json": `{"http_status":200,"messages":[],"colour":1}`}, "colour"},
		{"unknown request", map[string]string{"wa-1.json": "", "wa-1.expect.json": `{"http_status":200}`, "wa-1.request.json": `{"twice":true}`}, "twice"},
		{"no expectation", map[string]string{"wa-1.json": ""}, "wa-1.expect.json"},
		{"no body", map[string]string{"wa-1.expect.json": `{"http_status":200}`}, "belongs to no body"},
		{"no status", map[string]string{"wa-1.json": "", "wa-1.expect.json": `{"messages":[]}`}, "http_status"},
		{"unknown kind", map[string]string{"sms-1.json": "", "sms-1.expect.json": `{}`}, "begins with none"},
		{"unknown outcome", map[string]string{"out-1.json": body, "out-1.expect.json": `{"outcome":"perhaps"}`}, "perhaps"},
		{"unknown scope", map[string]string{"out-1.json": body, "out-1.expect.json": `{"outcome":"retry","scope":"all"}`}, "scope"},
		{"unknown mode", map[string]string{"wa-1.json": "", "wa-1.expect.json": `{}`, "wa-1.request.json": `{"mode":"getUpdates"}`}, "mode"},
		{"no sequence", map[string]string{"wa-1.json": "{}", "wa-1.expect.json": `{"http_status":200}`, "wa-1.request.json": `{"sequence":true}`}, "no array"},
	} {
		t.Run(test.name, func(t *testing.T) {
			folder := t.TempDir()
			for name, text := range test.files {
				if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := Load(folder); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Load: %v, want %q in it", err, test.want)
			}
		})
	}
}

func TestBodies(t *testing.T) {
	c := Case{Name: "wa-1", Body: []byte(`{}`), Request: Request{PadWithSpacesTo: 5, Repeat: 2}}
	got, err := c.bodies()
	if diff := cmp.Diff([][]byte{[]byte("{}   "), []byte("{}   ")}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	c = Case{Name: "wa-1", Body: []byte(`[{"a": 1}, {"b":2}]`), Request: Request{Sequence: true}}
	got, err = c.bodies()
	if diff := cmp.Diff([][]byte{[]byte(`{"a": 1}`), []byte(`{"b":2}`)}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// right is an observation that meets expectation.
const expectation = `{"http_status":200,"messages":[
	{"channel":"WHATSAPP","channelUserId":"1","text":"a","metadata":{"messageId":"m1","n":9007199254740993}},
	{"channel":"WHATSAPP","channelUserId":"2","channelUserIdAnyOf":["2","3"],"text":null,"textContains":["x"],"textExcludes":["z"],"metadata":{"messageId":"m2"}}],
	"metadataAbsent":["threadId"],"metadataOrText":["1"],"recorded":{"wamid":"w1","code":131047},"body_exact":"ok","body_excludes":"cut","content_type_not":"text/html","next_offset":7,
	"also_ok":[{"http_status":400,"messages":[]}]}`

func right() *Observed {
	return &Observed{
		Answers: []Answer{{Status: 200, Body: "ok", ContentType: "text/plain", NoSniff: true}},
		Messages: []Stored{
			{Session: "s1", Channel: "WHATSAPP", ChannelUserID: "1", Text: "a", Metadata: map[string]any{"messageId": "m1", "n": json.Number("9007199254740993"), "more": "1"}},
			{Session: "s1", Channel: "WHATSAPP", ChannelUserID: "3", Text: "1 x", Metadata: map[string]any{"messageId": "m2", "threadId": ""}},
		},
		Wakes:      []string{"s1", "s1"},
		Records:    []map[string]string{{".ref": "w0", ".data.code": "131047"}, {".ref": "w1", ".data.code": "131047"}},
		NextOffset: 7,
	}
}

func outcome(t *testing.T, text string) Outcome {
	t.Helper()
	var o Outcome
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestCompare(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(o *Observed)
		want   string // in a difference; empty: none
	}{
		{"right", func(*Observed) {}, ""},
		{"the alternative", func(o *Observed) {
			o.Answers = []Answer{{Status: 400}}
			o.Messages, o.Wakes = nil, []string{}
		}, ""},
		{"half of the alternative", func(o *Observed) { o.Answers[0].Status = 400 }, "http_status: request 1: 400"},
		{"status", func(o *Observed) { o.Answers[0].Status = 202 }, "http_status"},
		{"5xx", func(o *Observed) { o.Answers[0].Status = 503 }, "answered 503"},
		{"slow", func(o *Observed) { o.Answers[0].Took = 2 * time.Second }, "answered after 2s"},
		{"body", func(o *Observed) { o.Answers[0].Body = "ok\n" }, "body_exact"},
		{"HTML", func(o *Observed) { o.Answers[0].ContentType = "text/html; charset=utf-8" }, "content_type_not"},
		{"sniffed", func(o *Observed) { o.Answers[0].NoSniff = false }, "content_type_not"},
		{"rounded number", func(o *Observed) { o.Messages[0].Metadata["n"] = json.Number("9007199254740992") }, "m1 metadata.n"},
		{"no such number", func(o *Observed) { delete(o.Messages[0].Metadata, "n") }, "m1 metadata.n"},
		{"text", func(o *Observed) { o.Messages[0].Text = "A" }, "m1 text"},
		{"user", func(o *Observed) { o.Messages[1].ChannelUserID = "1" }, "m2 channelUserId"},
		{"channel", func(o *Observed) { o.Messages[1].Channel = "TELEGRAM" }, "m2 channel"},
		{"lacks a word", func(o *Observed) { o.Messages[1].Text = "1" }, "m2 text"},
		{"has a word", func(o *Observed) { o.Messages[1].Text = "1xz" }, "m2 text"},
		{"no text", func(o *Observed) { o.Messages[1].Text = " " }, "m2 has no text"},
		{"thread", func(o *Observed) { o.Messages[1].Metadata["threadId"] = json.Number("1") }, "m2 metadata.threadId"},
		{"neither in metadata nor in text", func(o *Observed) { o.Messages[1].Text = "x" }, "neither"},
		{"one too many", func(o *Observed) { o.Messages = append(o.Messages, o.Messages[0]) }, "one too many: m1"},
		{"one less", func(o *Observed) { o.Messages = o.Messages[:1] }, `the id "m2"`},
		{"out of order", func(o *Observed) { o.Messages[0], o.Messages[1] = o.Messages[1], o.Messages[0] }, "out of order"},
		{"not announced", func(o *Observed) { o.Wakes = []string{} }, "no message.received for s1"},
		{"announced for nothing", func(o *Observed) { o.Wakes = append(o.Wakes, "s2") }, "without a message: s2"},
		{"in two records", func(o *Observed) { o.Records[1][".data.code"] = "1" }, "recorded"},
		{"offset", func(o *Observed) { o.NextOffset = 6 }, "next_offset"},
		{"a fault", func(o *Observed) { o.Faults = []string{"logged the secret x"} }, "logged the secret x"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := right()
			test.change(o)
			got := strings.Join(Compare(&Case{Name: "wa-1"}, outcome(t, expectation), o), "\n")
			if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
				t.Errorf("Compare: %q, want %q", got, test.want)
			}
		})
	}
}

func TestTelegramMayAnswerAny2xxWithoutMethod(t *testing.T) {
	c := &Case{Name: "tg-1"}
	want := Outcome{HTTPStatus: 200}
	if got := Compare(c, want, &Observed{Answers: []Answer{{Status: 204, Body: `{"ok":true}`}}}); len(got) > 0 {
		t.Error(got)
	}
	if got := Compare(c, want, &Observed{Answers: []Answer{{Status: 200, Body: `{"method":"sendMessage"}`}}}); len(got) == 0 {
		t.Error("a key method passes")
	}
}

func TestCompareSending(t *testing.T) {
	sent := func(texts ...string) (all []Sent) {
		for _, text := range texts {
			all = append(all, Sent{Body: map[string]any{"chat_id": json.Number("5"), "text": text}})
		}
		return all
	}
	for _, test := range []struct {
		name, want string
		o          *Observed
		differs    bool
	}{
		{"fail", `{"outcome":"fail","retry":false}`, &Observed{Reply: &Reply{State: "FAILED"}, Requests: sent("a")}, false},
		{"fail, retried", `{"outcome":"fail","retry":false}`, &Observed{Reply: &Reply{State: "FAILED"}, Requests: sent("a", "a")}, true},
		{"fail, still open", `{"outcome":"fail","retry":false}`, &Observed{Reply: &Reply{State: "PLANNED", Open: true}, Requests: sent("a")}, true},
		{"alert", `{"outcome":"fail","alert_operator":true}`, &Observed{Reply: &Reply{State: "FAILED"}, Requests: sent("a"), Errors: []string{"x"}, Watched: true}, false},
		{"no alert", `{"outcome":"fail","alert_operator":true}`, &Observed{Reply: &Reply{State: "FAILED"}, Requests: sent("a"), Watched: true}, true},
		{"retry", `{"outcome":"retry","min_wait_s":4}`, &Observed{Reply: &Reply{State: "PLANNED", Open: true, Wait: 4.1}, Requests: sent("a")}, false},
		{"retry too soon", `{"outcome":"retry","min_wait_s":4}`, &Observed{Reply: &Reply{State: "PLANNED", Open: true, Wait: 3.9}, Requests: sent("a")}, true},
		{"others wait too", `{"outcome":"retry","scope":"this user"}`, &Observed{Reply: &Reply{State: "PLANNED", OtherServed: new(false)}, Requests: sent("a")}, true},
		{"resend", `{"outcome":"resend","request":{"chat_id":5,"text":"b"}}`, &Observed{Reply: &Reply{State: "SENT"}, Requests: sent("a", "b")}, false},
		{
			"resend formatted", `{"outcome":"resend","request":{"chat_id":5,"text":"b"}}`,
			&Observed{Reply: &Reply{State: "SENT"}, Requests: append(sent("a"), Sent{Body: map[string]any{"chat_id": json.Number("5"), "text": "b", "parse_mode": "HTML"}})}, true,
		},
		{"resend of another text", `{"outcome":"resend","request":{"text":"b"}}`, &Observed{Reply: &Reply{State: "SENT"}, Requests: sent("a", "c")}, true},
		{"chunks", `{"chunks":2,"max_utf16_units":2,"joined_equals_input":true,"no_lone_surrogates":true}`, &Observed{Reply: &Reply{State: "SENT", Text: "😀😀"}, Requests: sent("😀", "😀")}, false},
		{"chunks too long", `{"chunks":1,"max_utf16_units":2}`, &Observed{Reply: &Reply{State: "SENT"}, Requests: sent("😀a")}, true},
		{"chunks that lose", `{"chunks":1,"joined_equals_input":true}`, &Observed{Reply: &Reply{State: "SENT", Text: "ab"}, Requests: sent("a")}, true},
		{"half a character", `{"chunks":1,"no_lone_surrogates":true}`, &Observed{Reply: &Reply{State: "SENT"}, Requests: sent("a\uFFFD")}, true},
		{"nothing", `{"chunks":0}`, &Observed{Reply: &Reply{State: "FAILED"}}, false},
		{"nothing, and open", `{"chunks":0}`, &Observed{Reply: &Reply{State: "PLANNED", Open: true}}, true},
		{"contains", `{"request_contains":{"text":{"body":"x"}},"request_lacks":["to"]}`, &Observed{Reply: &Reply{}, Requests: []Sent{{Body: map[string]any{"text": map[string]any{"body": "x", "y": "z"}}}}}, false},
		{"contains another", `{"request_contains":{"text":{"body":"x"}}}`, &Observed{Reply: &Reply{}, Requests: []Sent{{Body: map[string]any{"text": map[string]any{"body": "y"}}}}}, true},
		{"does not lack", `{"request_lacks":["to"]}`, &Observed{Reply: &Reply{}, Requests: []Sent{{Body: map[string]any{"to": "1"}}}}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Compare(&Case{Name: "out-1"}, outcome(t, test.want), test.o); (len(got) > 0) != test.differs {
				t.Errorf("Compare: %q", got)
			}
		})
	}
}

// A right observation meets no mutant, whatever the alternatives.
func TestMutants(t *testing.T) {
	c := &Case{Name: "wa-1", Expect: outcome(t, expectation)}
	r := judge(c, right(), true)
	if r.Result != Differs || len(r.Details) > 0 || r.Mutants < 20 {
		t.Errorf("%+v", r)
	}
	if r := judge(c, right(), false); r.Result != Passed {
		t.Errorf("%+v", r)
	}
	alternative := &Observed{Answers: []Answer{{Status: 400}}}
	if r := judge(c, alternative, true); r.Result != Differs || len(r.Details) > 0 {
		t.Errorf("the alternative: %+v", r)
	}
}

// Every case of the folder says something that a mutant can change.
func TestEveryCaseHasMutants(t *testing.T) {
	cases, err := Load("testdata/channels")
	if err != nil {
		t.Fatal(err)
	}
	for i := range cases {
		mutants := Mutants(cases[i].Expect)
		if len(mutants) == 0 {
			t.Errorf("%s has none", cases[i].Name)
		}
		for _, m := range mutants {
			if len(m.Want.AlsoOK) != len(cases[i].Expect.AlsoOK) || cmp.Equal(m.Want, cases[i].Expect) {
				t.Errorf("%s: %s changes nothing", cases[i].Name, m.What)
			}
			for k, also := range m.Want.AlsoOK {
				if cmp.Equal(also, cases[i].Expect.AlsoOK[k]) {
					t.Errorf("%s: %s: alternative %d is unchanged", cases[i].Name, m.What, k)
				}
			}
		}
	}
}

func TestReport(t *testing.T) {
	results := []Result{{Case: "wa-1", Result: Passed}, {Case: "wa-2", Result: Differs, Details: []string{"a\x1b[2J", "b"}}, {Case: "wa-3", Result: NotRun}}
	r := NewReport(results, false)
	var out strings.Builder
	if err := r.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	if r.OK() || !strings.HasSuffix(out.String(), "\n1 of 3\n") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%v\n%s", r.OK(), out.String())
	}
	if NewReport(results[1:2], true).OK() != true || NewReport(results, true).OK() || NewReport(nil, false).OK() {
		t.Error("OK")
	}
}
