package api

import (
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness/view"
)

// Problem is an answer that is not a success.
type Problem struct {
	view.Problem
	RetryAfter time.Duration
}

func (p *Problem) Error() string {
	text := p.Detail
	if text == "" {
		text = p.Title
	}
	if text == "" {
		text = http.StatusText(p.Status)
	}
	return fmt.Sprintf("%s (%d)", text, p.Status)
}

// readProblem reads an answer that is none of ours to expect. Not every server
// in between answers with a problem; then the status is enough.
func readProblem(response *http.Response) *Problem {
	p := &Problem{}
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if kind == "application/problem+json" || kind == "application/json" {
		if err := json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&p.Problem); err != nil {
			p = &Problem{}
		}
	}
	p.Status = response.StatusCode
	if p.RequestID == "" {
		p.RequestID = response.Header.Get("X-Request-Id")
	}
	if to := response.Header.Get("Location"); p.Detail == "" && p.Status/100 == 3 {
		p.Detail = "it sends elsewhere, to " + to + ": use that URL"
	}
	after := strings.TrimSpace(response.Header.Get("Retry-After"))
	if seconds, err := strconv.Atoi(after); err == nil && seconds > 0 {
		p.RetryAfter = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(after); err == nil {
		p.RetryAfter = max(time.Until(at), 0)
	}
	return p
}
