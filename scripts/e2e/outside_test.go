//go:build e2e

package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/botapi"
	"tuluat.ai/harness/scripts/internal/fake/graph"
	"tuluat.ai/harness/scripts/internal/fake/person"
)

// The ports of the world, see scripts/e2e/world.
const (
	portGraph   = 8081
	portBot     = 8082
	portModel   = 8083
	portStore   = 8084
	portControl = 8085
)

// outside is the far side of the world's Pod.
type outside struct {
	tunnels map[int]*tunnel // by port
	client  *http.Client
}

func reachOutside(c *cluster, namespace string) (*outside, error) {
	o := &outside{tunnels: map[int]*tunnel{}, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	for _, port := range []int{portGraph, portBot, portControl} {
		t, err := newTunnel(c, namespace, worldSelector, port)
		if err != nil {
			o.close()
			return nil, err
		}
		o.tunnels[port] = t
	}
	return o, nil
}

func (o *outside) close() {
	for _, t := range o.tunnels {
		t.close()
	}
	o.client.CloseIdleConnections()
}

// call asks the world. It says 127.0.0.1, so the fakes take it for this machine.
func (o *outside) call(ctx context.Context, method string, port int, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://"+o.tunnels[port].address()+path, body)
	if err != nil {
		return err
	}
	response, err := o.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %d %s", method, path, response.StatusCode, bytes.TrimSpace(text))
	}
	if out == nil || response.StatusCode == http.StatusNoContent {
		return nil
	}
	return json.Unmarshal(text, out)
}

// phone is a person with a messenger, in a chat with one account of ours.
type phone struct {
	outside *outside
	port    int // of their messenger
	account string
	chat    string
}

// onWhatsApp makes a person who writes to a number.
func (o *outside) onWhatsApp(ctx context.Context, account, number string) (*phone, error) {
	var p graph.Person
	err := o.call(ctx, http.MethodPost, portGraph, "/_fake/people", graph.Person{Phone: number, Name: "Ann"}, &p)
	return &phone{outside: o, port: portGraph, account: account, chat: p.ID}, err
}

// onTelegram makes a person who writes to a bot.
func (o *outside) onTelegram(ctx context.Context, account string, id int64) (*phone, error) {
	var p botapi.Person
	err := o.call(ctx, http.MethodPost, portBot, "/_fake/people", botapi.Person{ID: id, FirstName: "Ann"}, &p)
	return &phone{outside: o, port: portBot, account: account, chat: fmt.Sprint(p.ID)}, err
}

// say sends text and returns the line it left in the chat.
func (p *phone) say(ctx context.Context, text string) (person.Line, error) {
	if p.port == portBot {
		var id int64
		if _, err := fmt.Sscan(p.chat, &id); err != nil {
			return person.Line{}, err
		}
		return p.do(ctx, botapi.Say{Bot: p.account, From: id, Text: text})
	}
	return p.do(ctx, graph.Say{Number: p.account, From: p.chat, Text: text})
}

// press taps a button of ours on WhatsApp.
func (p *phone) press(ctx context.Context, card person.Line, title string) (person.Line, error) {
	return p.do(ctx, graph.Say{Number: p.account, From: p.chat, Press: title, ReplyTo: card.ID})
}

// do returns the line that it left in the chat.
func (p *phone) do(ctx context.Context, in any) (person.Line, error) {
	var lines []person.Line
	err := p.outside.call(ctx, http.MethodPost, p.port, "/_fake/say", in, &lines)
	if err == nil && len(lines) != 1 {
		err = fmt.Errorf("did one thing and %d lines stand in the chat", len(lines))
	}
	if err != nil {
		return person.Line{}, err
	}
	return lines[0], nil
}

// answer waits for our side's first line after said.
func (p *phone) answer(ctx context.Context, said person.Line) (person.Line, error) {
	after := said.Seq
	for {
		var page graph.Page
		path := fmt.Sprintf("/_fake/chats/%s?account=%s&after=%d&wait=20s", url.PathEscape(p.chat), url.QueryEscape(p.account), after)
		if err := p.outside.call(ctx, http.MethodGet, p.port, path, nil, &page); err != nil {
			if ctx.Err() != nil {
				return person.Line{}, fmt.Errorf("no answer to %q: %w", said.Text, context.Cause(ctx))
			}
			if !pause(ctx, time.Second) { // the way to the world may be broken for a moment
				continue
			}
			continue
		}
		for _, l := range page.Lines {
			if l.From == "" && l.Seq > said.Seq && l.Kind != "reaction" {
				return l, nil
			}
		}
		after = page.Next
	}
}

// ask says something and waits for the answer.
func (p *phone) ask(ctx context.Context, patience time.Duration, text string) (said, answered person.Line, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if said, err = p.say(ctx, text); err != nil {
		return said, answered, err
	}
	answered, err = p.answer(ctx, said)
	return said, answered, err
}

// pause waits and reports false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// ingress is the way into the cluster that people's messages take.
type ingress struct {
	base   string            // E2E_INGRESS_URL; empty: the Services' own URLs
	hosts  map[string]string // by Service: what its status.url names
	client *http.Client
}

// send makes a request to a public Service and reads its answer.
func (i *ingress) send(ctx context.Context, service, method, path string, header http.Header, body []byte) (int, []byte, error) {
	response, err := i.open(ctx, service, method, path, header, body)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 4<<20))
	return response.StatusCode, text, err
}

// open makes a request to a public Service, whose answer may be a stream.
func (i *ingress) open(ctx context.Context, service, method, path string, header http.Header, body []byte) (*http.Response, error) {
	host := i.hosts[service]
	if host == "" {
		return nil, fmt.Errorf("Service %s has no URL", service)
	}
	base := i.base
	if base == "" {
		base = "http://" + host
	}
	request, err := http.NewRequestWithContext(ctx, method, base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		switch name {
		case "Accept-Encoding", "Connection", "Content-Length", "Host":
		default:
			request.Header[name] = values
		}
	}
	request.Host = host
	return i.client.Do(request)
}

// check says what to set when the cluster's ingress is not where it is looked for.
func (i *ingress) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for service := range i.hosts {
		status, _, err := i.send(ctx, service, http.MethodGet, "/healthz", nil, nil)
		if err != nil {
			where := i.base
			if where == "" {
				where = "http://" + i.hosts[service]
			}
			return fmt.Errorf("the cluster's ingress does not answer at %s: set E2E_INGRESS_URL to where it listens, as in http://127.0.0.1:8080; the Host header is set by the tests: %w", where, err)
		}
		if status >= 500 || status == http.StatusNotFound {
			return fmt.Errorf("the ingress answers %d for Service %s (Host %s): is E2E_INGRESS_URL that of Knative's ingress?", status, service, i.hosts[service])
		}
	}
	return nil
}

// carrier carries what the vendors tell our webhooks from the world, where it
// begins, to the ingress, and the answers back.
type carrier struct {
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu     sync.Mutex
	counts map[string]int // by Service and status
}

func carry(o *outside, in *ingress) *carrier {
	ctx, cancel := context.WithCancel(context.Background()) // ends at close
	c := &carrier{cancel: cancel, counts: map[string]int{}}
	for range 8 {
		c.wait.Go(func() {
			for ctx.Err() == nil {
				if err := c.one(ctx, o, in); err != nil && !pause(ctx, 500*time.Millisecond) {
					return
				}
			}
		})
	}
	return c
}

func (c *carrier) close() {
	c.cancel()
	c.wait.Wait()
}

func (c *carrier) one(ctx context.Context, o *outside, in *ingress) error {
	var p struct {
		ID, Service, Method, Path string
		Header                    http.Header
		Body                      []byte
	}
	if err := o.call(ctx, http.MethodGet, portControl, "/relayed?wait=20s", nil, &p); err != nil || p.ID == "" {
		return err
	}
	asked, cancel := context.WithTimeout(ctx, 50*time.Second)
	defer cancel()
	status, text, err := in.send(asked, p.Service, p.Method, p.Path, p.Header, p.Body)
	if err != nil {
		status, text = http.StatusBadGateway, []byte(err.Error())
	}
	c.mu.Lock()
	c.counts[fmt.Sprintf("%s %d", p.Service, status)]++
	c.mu.Unlock()
	return o.call(ctx, http.MethodPost, portControl, "/relayed/"+p.ID, map[string]any{"status": status, "body": text}, nil)
}

// hostOf is the host of a Service's status.url.
func hostOf(statusURL string) (string, error) {
	u, err := url.Parse(strings.TrimSpace(statusURL))
	if err != nil || u.Host == "" {
		return "", fmt.Errorf("%q is no URL", statusURL)
	}
	return u.Host, nil
}
