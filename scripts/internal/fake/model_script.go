package fake

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// Script is a list of rules; the first that matches answers.
//
//	rules:
//	  - match: {prefix: "break:"}          # exact, prefix or regexp; none of them matches everything
//	    nth: 1                             # only its first match; absent or 0: every match
//	    per: session                       # matches are counted per session; default: over all
//	    respond:
//	      text: words
//	      calls:
//	        - name: executeShell
//	          arguments: '{"command": "ec' # a string is sent as it is; an object as its JSON
//	          id: ""                       # absent: a good one; empty: none is sent
//	      stop: length                     # end, tool_calls, length, refusal, or the provider's own word
//	  - match: {of: result, regexp: "exit code [1-9]"}
//	    respond: {status: 429, error: {code: rate_limit_exceeded}, headers: {Retry-After: "date+3s"}}
//
// respond also takes body (a raw body, "" for none), delay (before anything is
// sent), pace (between two pieces of a streamed answer), hang (never ends; a body is begun) and close (the connection is cut; a
// body is begun). A header value of "date+DURATION" becomes an HTTP date.
type Script struct {
	Rules []*Rule `json:"rules"`
}

// Rule is one entry of a Script.
type Rule struct {
	Match   Match   `json:"match"`
	Nth     int     `json:"nth"`
	Per     string  `json:"per"`
	Respond Respond `json:"respond"`
}

// Match says which requests a Rule answers.
type Match struct {
	Of     string  `json:"of"` // user: the last message of the person; result: the results the request ends with; default: whichever is last
	Exact  *string `json:"exact"`
	Prefix *string `json:"prefix"`
	Regexp *string `json:"regexp"`

	pattern *regexp.Regexp
}

// Respond says how.
type Respond struct {
	Text    string            `json:"text"`
	Calls   []ScriptedCall    `json:"calls"`
	Stop    string            `json:"stop"`
	Status  int               `json:"status"`
	Error   *refusal          `json:"error"` // with status; a fixed text without it
	Headers map[string]string `json:"headers"`
	Body    *string           `json:"body"`
	Delay   string            `json:"delay"`
	Pace    string            `json:"pace"`
	Hang    bool              `json:"hang"`
	Close   bool              `json:"close"`

	delay, pace time.Duration
}

// ScriptedCall is a call a Rule makes.
type ScriptedCall struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
	ID        *string         `json:"id"`
}

// LoadScript reads a script from a file. Unknown fields and rules that can
// never match are errors.
func LoadScript(path string) (*Script, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	script, err := ParseScript(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return script, nil
}

// ParseScript reads a script.
func ParseScript(text []byte) (*Script, error) {
	script := &Script{}
	if err := yaml.UnmarshalStrict(text, script); err != nil {
		return nil, err
	}
	var problems []error
	for i, rule := range script.Rules {
		if rule == nil {
			problems = append(problems, fmt.Errorf("rules[%d] is empty", i))
			continue
		}
		if err := rule.prepare(); err != nil {
			problems = append(problems, fmt.Errorf("rules[%d]: %w", i, err))
		}
	}
	if len(script.Rules) == 0 {
		problems = append(problems, errors.New("rules are missing"))
	}
	return script, errors.Join(problems...)
}

func (r *Rule) prepare() error {
	var problems []error
	ways := 0
	for _, way := range []*string{r.Match.Exact, r.Match.Prefix, r.Match.Regexp} {
		if way != nil {
			ways++
		}
	}
	if ways > 1 {
		problems = append(problems, errors.New("match: only one of exact, prefix and regexp"))
	}
	if of := r.Match.Of; of != "" && of != "user" && of != "result" {
		problems = append(problems, fmt.Errorf("match.of is %q: want user or result", of))
	}
	if r.Nth < 0 || r.Per != "" && r.Per != "session" {
		problems = append(problems, errors.New("nth must not be negative, per must be session"))
	}
	if r.Match.Regexp != nil {
		pattern, err := regexp.Compile(*r.Match.Regexp)
		if err != nil {
			problems = append(problems, fmt.Errorf("match.regexp: %w", err))
		}
		r.Match.pattern = pattern
	}
	for _, wait := range []struct {
		name, text string
		into       *time.Duration
	}{{"delay", r.Respond.Delay, &r.Respond.delay}, {"pace", r.Respond.Pace, &r.Respond.pace}} {
		if wait.text == "" {
			continue
		}
		d, err := time.ParseDuration(wait.text)
		if err != nil {
			problems = append(problems, fmt.Errorf("respond.%s: %w", wait.name, err))
		}
		*wait.into = d
	}
	if status := r.Respond.Status; status != 0 && (status < 200 || status > 599) {
		problems = append(problems, fmt.Errorf("respond.status is %d", status))
	}
	return errors.Join(problems...)
}

// firing counts the matches of a rule.
type firing struct {
	rule    *Rule
	session string
}

// match returns the rule that answers chat, nil when none does. Every match of
// a rule with nth counts, also those it does not answer.
func (m *Model) match(session string, chat conversation) *Rule {
	if m.options.Script == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, rule := range m.options.Script.Rules {
		if !rule.Match.fits(chat) {
			continue
		}
		key := firing{rule: rule}
		if rule.Per == "session" {
			key.session = session
		}
		m.fired[key]++
		if rule.Nth == 0 || m.fired[key] == rule.Nth {
			return rule
		}
	}
	return nil
}

func (m Match) fits(chat conversation) bool {
	var texts []string
	for _, r := range lastResults(chat) {
		texts = append(texts, r.Text)
	}
	if m.Of == "result" && texts == nil {
		return false
	}
	if m.Of == "user" || texts == nil {
		texts = []string{lastUserText(chat)}
	}
	text := strings.Join(texts, "\n")
	switch {
	case m.Exact != nil:
		return text == *m.Exact
	case m.Prefix != nil:
		return strings.HasPrefix(text, *m.Prefix)
	case m.pattern != nil:
		return m.pattern.MatchString(text)
	}
	return true
}

// play answers as a rule says.
func (m *Model) play(w http.ResponseWriter, r *http.Request, f format, chat conversation, how Respond) {
	if !sleep(r.Context(), how.delay) {
		return
	}
	for name, value := range how.Headers {
		if after, ok := strings.CutPrefix(value, "date+"); ok {
			if d, err := time.ParseDuration(after); err == nil {
				value = m.options.Now().Add(d).UTC().Format(http.TimeFormat)
			}
		}
		w.Header().Set(name, value)
	}
	switch {
	case how.Hang || how.Close:
		if how.Body != nil { // the answer begins, and promises more than comes
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", fmt.Sprint(len(*how.Body)+1))
			w.WriteHeader(max(how.Status, http.StatusOK))
			_, _ = w.Write([]byte(*how.Body))
			_ = http.NewResponseController(w).Flush()
		}
		if how.Hang {
			<-r.Context().Done()
		}
		panic(http.ErrAbortHandler) // cuts the connection without a word
	case how.Body != nil:
		if w.Header().Get("Content-Type") == "" {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(max(how.Status, http.StatusOK))
		_, _ = w.Write([]byte(*how.Body))
	case how.Status >= 300:
		said := refusal{Message: "scripted failure"}
		if how.Error != nil {
			said = *how.Error
		}
		said.Status = how.Status
		f.refuse(w, said)
	default:
		f.write(w, chat, how.answer(chat))
	}
}

func (how Respond) answer(chat conversation) answer {
	a := answer{ID: conversationID(chat), Text: how.Text, Stop: how.Stop, Pace: how.pace}
	for i, c := range how.Calls {
		out := call{ID: callID(chat, i), Name: c.Name, Arguments: string(c.Arguments)}
		if c.ID != nil {
			out.ID = *c.ID
		}
		var text string
		if bytes.HasPrefix(c.Arguments, []byte(`"`)) && json.Unmarshal(c.Arguments, &text) == nil {
			out.Arguments = text
		}
		a.Calls = append(a.Calls, out)
	}
	if a.Stop == "" {
		a.Stop = "end"
		if len(a.Calls) > 0 {
			a.Stop = "tool_calls"
		}
	}
	return a
}
