package console

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/functions/management-api/internal/loopback"
	"tuluat.ai/harness/shared/harness/view"
)

// page is one request of somebody who is signed in.
type page struct {
	*console
	w     http.ResponseWriter
	r     *http.Request
	token string
	who   caller
}

// caller is who is signed in.
type caller struct {
	Name   string   `json:"name"`
	Groups []string `json:"groups"`
	Rights []string `json:"rights"`
}

// may reports whether the caller may do what is said as in "list sessions".
func (c caller) may(right string) bool { return slices.Contains(c.Rights, right+"."+access.Group) }

// May is may, for templates.
func (p *page) May(right string) bool { return p.who.may(right) }

// need refuses a page whose form would be refused.
func (p *page) need(right string) error {
	if p.who.may(right) {
		return nil
	}
	return &refused{Problem: view.Problem{Status: http.StatusForbidden, Detail: p.who.Name + " may not " + right + "." + access.Group}}
}

// refused is what the API said in place of what was asked for.
type refused struct {
	view.Problem
	header http.Header
}

func (e *refused) Error() string { return e.Detail }

// statusOf is the HTTP status of what the API refused, 0 of other errors.
func statusOf(err error) int {
	if e, ok := errors.AsType[*refused](err); ok {
		return e.Status
	}
	return 0
}

// send asks the API and reads its answer into v, unless that is nil.
func (c *console) send(ctx context.Context, token string, r loopback.Request, v any) (loopback.Answer, error) {
	r.Token, r.Path = "Bearer "+token, "/api/v1"+r.Path
	answer, err := loopback.Do(ctx, c.API, r)
	if err != nil {
		return answer, &refused{Problem: view.Problem{Status: http.StatusNotFound, Detail: "there is nothing of that name"}}
	}
	if !answer.OK() {
		return answer, refusedBy(answer)
	}
	if v != nil {
		if err := json.Unmarshal(answer.Body, v); err != nil {
			return answer, &refused{Problem: view.Problem{Status: http.StatusInternalServerError, Detail: "the API's answer cannot be read"}}
		}
	}
	return answer, nil
}

func refusedBy(answer loopback.Answer) *refused {
	e := &refused{header: answer.Header}
	if json.Unmarshal(answer.Body, &e.Problem) != nil || e.Detail == "" {
		e.Detail = http.StatusText(answer.Status)
	}
	switch e.Status = answer.Status; {
	case e.Status < http.StatusMultipleChoices: // it broke off before it said anything
		e.Status, e.Detail = http.StatusServiceUnavailable, "the API does not answer"
	case e.Status < http.StatusBadRequest: // the name is one that paths do without, as .. is
		e.Status, e.Detail = http.StatusNotFound, "there is nothing of that name"
	}
	return e
}

// get reads path of the API into v.
func (p *page) get(path string, query url.Values, v any) error {
	_, err := p.send(p.r.Context(), p.token, loopback.Request{Method: http.MethodGet, Path: path, Query: query}, v)
	return err
}

// fetch is get for who needs the whole answer.
func (p *page) fetch(path string, header http.Header) (loopback.Answer, error) {
	return p.send(p.r.Context(), p.token, loopback.Request{Method: http.MethodGet, Path: path, Header: header}, nil)
}

// optional is get where the caller may lack the right, or the API the operation:
// then there is nothing, and false.
func (p *page) optional(path string, query url.Values, v any) (bool, error) {
	err := p.get(path, query, v)
	if s := statusOf(err); s == http.StatusForbidden || s == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}

// write does what method and path say with body, which is not sent if it is nil.
func (p *page) write(method, path string, header http.Header, body, v any) error {
	if header == nil {
		header = http.Header{}
	}
	if parent := p.r.Header.Get("Traceparent"); parent != "" { // what is begun here is part of the trace of this request
		header.Set("Traceparent", parent)
	}
	r := loopback.Request{Method: method, Path: path, Header: header}
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r.Body = text
	}
	_, err := p.send(p.r.Context(), p.token, r, v)
	return err
}

// list is one page of a list of the API.
type list[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next"`
	Mark  string `json:"mark"`
}

// at is the path of a record of the API.
func at(kind, id string, more ...string) string {
	return "/" + kind + "/" + url.PathEscape(id) + strings.Join(more, "")
}

// callers remembers for a moment who has which rights, which costs the API server a
// question for each. It decides nothing but what is offered: the API is asked anew.
type callers struct {
	now func() time.Time

	mu    sync.Mutex
	known map[[32]byte]knownCaller
}

type knownCaller struct {
	caller
	ends time.Time
}

const (
	callerTime = 30 * time.Second
	maxCallers = 1000
)

func (k *callers) get(token string) (caller, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, ok := k.known[digestOf(token)]
	return c.caller, ok && k.now().Before(c.ends)
}

func (k *callers) put(token string, c caller) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known == nil || len(k.known) >= maxCallers {
		k.known = map[[32]byte]knownCaller{}
	}
	k.known[digestOf(token)] = knownCaller{c, k.now().Add(callerTime)}
}

// identify says who has token.
func (c *console) identify(ctx context.Context, token string) (caller, error) {
	if who, ok := c.callers.get(token); ok {
		return who, nil
	}
	var who caller
	if _, err := c.send(ctx, token, loopback.Request{Method: http.MethodGet, Path: "/whoami", Query: url.Values{"rights": {"true"}}}, &who); err != nil {
		return who, err
	}
	c.callers.put(token, who)
	return who, nil
}

// signedIn runs handle for who is signed in, and sends others to the sign-in.
func (c *console) signedIn(handle func(p *page) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		p := &page{console: c, w: w, r: r, token: c.token(r)}
		if p.token == "" {
			p.toSignIn("")
			return
		}
		var err error
		if p.who, err = c.identify(r.Context(), p.token); err == nil {
			if err = p.form(); err == nil {
				err = handle(p)
			}
		}
		switch {
		case err == nil:
		case statusOf(err) == http.StatusUnauthorized:
			c.forget(w, r)
			p.toSignIn("ended")
		default:
			p.problem(err)
		}
	}
}

// form reads what a form sent.
func (p *page) form() error {
	if p.r.Method != http.MethodPost {
		return nil
	}
	err := p.r.ParseForm()
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		return &refused{Problem: view.Problem{Status: http.StatusRequestEntityTooLarge, Detail: "what was sent is longer than a form may be; nothing was done with it. Go back, and the browser still has it"}}
	}
	if err != nil {
		return &refused{Problem: view.Problem{Status: http.StatusBadRequest, Detail: "what was sent is no form"}}
	}
	return nil
}

// partial reports whether only a part of the page is asked for.
func (p *page) partial() bool { return p.r.Header.Get("HX-Request") == "true" }

func (p *page) toSignIn(did string) {
	if _ = p.form(); !p.partial() && len(p.Kept()) > 0 { // a form that cannot be read has nothing to keep
		p.showSignIn(p.w, p.r, http.StatusUnauthorized, signInBody{Next: p.formOf(), Elsewhere: said["ended"], Kept: p.Kept()})
		return
	}
	query := url.Values{}
	if p.r.Method == http.MethodGet && !p.partial() {
		query.Set("next", p.r.URL.RequestURI())
	}
	if did != "" {
		query.Set("said", did)
	}
	target := Prefix + "sign-in?" + query.Encode()
	if p.partial() {
		p.w.Header().Set("HX-Redirect", target)
		p.w.WriteHeader(http.StatusNoContent)
		return
	}
	http.Redirect(p.w, p.r, target, http.StatusSeeOther)
}

// kept is a text that somebody typed.
type kept struct{ Label, Text string }

// Kept is what was typed into a form that is not taken: the page that says so shows
// it, so that it can be copied.
func (p *page) Kept() []kept {
	var all []kept
	for _, field := range [][2]string{{"yaml", "YAML"}, {"text", "Message"}, {"command", "Command"}, {"input", "Input"}, {"reason", "Reason"}} {
		if text := p.sent().Get(field[0]); strings.TrimSpace(text) != "" {
			all = append(all, kept{field[1], unixLines(text)})
		}
	}
	return all
}

// formOf is the address of the page that the form of this request is on.
func (p *page) formOf() string {
	parts := strings.Split(p.r.URL.EscapedPath(), "/") // "", console, kind, name, action
	if len(parts) > 4 && parts[4] != "edit" {
		parts = parts[:4]
	}
	return local(strings.Join(parts, "/"))
}

// to goes on to a page of ours, which tells what was done.
func (p *page) to(path, said string) error {
	u, err := url.Parse(path)
	if err != nil {
		return err
	}
	query := u.Query()
	if said != "" {
		query.Set("said", said)
	}
	u.RawQuery = query.Encode()
	http.Redirect(p.w, p.r, u.String(), http.StatusSeeOther)
	return nil
}

// back is where a form of several pages wants to go on.
func (p *page) back(otherwise string) string {
	if next := p.sent().Get("next"); next != "" {
		return local(next)
	}
	return otherwise
}

// sent is what the form of the request holds.
func (p *page) sent() url.Values { return p.r.PostForm } //nolint:forbidigo // a field; the function of that name makes requests
