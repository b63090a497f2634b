package guard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"

	"tuluat.ai/harness/shared/dial"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/secret"
)

// maxAnswer is how much of a service's answer is read, in bytes.
const maxAnswer = 64 << 10

// byService POSTs a subject as JSON to the guardrail's URL:
//
//	{"stage": "TOOL_CALL", "guardrail": "no-prod", "agent": "python-coder", "session": "ses_…", "channel": "TELEGRAM",
//	 "channelUserId": "4711", "tool": "executeShell", "arguments": {"command": "ls"}, "text": "ls"}
//
// and expects 200 with a body of at most 64 KiB that is one JSON object:
//
//	{"verdict": "pass"}   or   {"verdict": "hit", "category": "prod-access"}
//
// category may be left out. It is shown to operators where it has at most 40 lower-
// case letters, digits, dashes and underscores, and else not used. Redirects are
// not followed, and any other answer is no verdict. A request may come twice.
func (g *Guard) byService(ctx context.Context, rail harness.Guardrail, v view) finding {
	ctx, cancel := limit(ctx, rail, v.Until)
	defer cancel()
	headers, err := secret.ReadHeaders(ctx, g.Secrets, v.Agent.Name, rail.Headers)
	if err != nil {
		return failed("%s", harness.MessageOf(err))
	}
	body, err := json.Marshal(v.judged(rail, g.Known))
	if err != nil {
		return failed("it cannot be written as JSON")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, rail.URL, bytes.NewReader(body))
	if err != nil { // whose text holds the URL
		return failed("its url is no address")
	}
	request.Header = headers
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	if request.Header.Get("User-Agent") == "" {
		request.Header.Set("User-Agent", "tuluat-harness")
	}
	response, err := g.http.Do(request)
	if err != nil {
		return unanswered(ctx, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return failed("the service answered %d", response.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return unanswered(ctx, err)
	case len(text) > maxAnswer:
		return failed("the service's answer is over %d bytes", maxAnswer)
	}
	return serviceVerdict(text)
}

func unanswered(ctx context.Context, err error) finding {
	switch {
	case errors.Is(err, dial.ErrPrivate):
		return failed("its address is not public")
	case ctx.Err() != nil:
		return failed("the service did not answer in time")
	}
	return failed("the service cannot be reached")
}

var categoryShape = regexp.MustCompile(`^[a-z0-9_-]{1,40}$`)

func serviceVerdict(text []byte) finding {
	var answer struct {
		Verdict  string `json:"verdict"`
		Category string `json:"category"`
	}
	if json.Unmarshal(text, &answer) != nil {
		return failed("the service's answer is no verdict")
	}
	switch answer.Verdict {
	case "pass":
		return passed
	case "hit":
		if categoryShape.MatchString(answer.Category) {
			return hit("the service says %s", answer.Category)
		}
		return hit("the service says so")
	}
	return failed("the service's answer is no verdict")
}
