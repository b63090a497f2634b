package devcluster

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
)

// Delivery is one attempt to hand an event to a Service.
type Delivery struct {
	Trigger    string // or the source's name
	Service    string
	Event      cloudevents.Event
	Attempt    int // from 0
	Status     int // as the broker sees it; 0 is no answer
	Err        error
	DeadLetter bool
}

// outcome is what the last attempt came to.
type outcome struct {
	status int
	body   []byte
	reply  *cloudevents.Event
	err    error
}

// deliver hands the event to the trigger's subscriber by its retry rule, and to
// the dead letter sink when that gives up. It returns the subscriber's reply
// event if there is one.
func (c *Cluster) deliver(ctx context.Context, t *trigger, event cloudevents.Event) (*cloudevents.Event, error) {
	last := c.attempts(ctx, t.name, t.to, t.rule, event, false)
	if last.err == nil {
		return last.reply, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	log := c.o.Log.With("trigger", t.name, "event", event.ID(), "type", event.Type())
	if t.dead == nil {
		c.counts.add(func(n *Counts) { n.Lost++ })
		log.Error("event lost: no dead letter sink", "err", last.err)
		return nil, last.err
	}
	letter := deadLetter(event, t.to, last)
	if dead := c.attempts(ctx, t.name, *t.dead, t.rule, letter, true); dead.err != nil {
		c.counts.add(func(n *Counts) { n.Lost++ })
		log.Error("event lost: the dead letter sink failed too", "err", last.err, "sink", dead.err)
		return nil, errors.Join(last.err, dead.err)
	}
	c.counts.add(func(n *Counts) { n.DeadLettered++ })
	log.Warn("event given up on; the dead letter sink has it", "err", last.err)
	return nil, nil
}

func (c *Cluster) attempts(ctx context.Context, name string, to destination, rule retryRule, event cloudevents.Event, dead bool) outcome {
	for attempt := 0; ; attempt++ {
		result := c.attempt(ctx, to, rule.timeout, event)
		c.counts.add(func(n *Counts) {
			n.Attempts++
			if result.err == nil {
				n.Delivered++
			}
		})
		if c.o.OnDeliver != nil {
			c.o.OnDeliver(Delivery{
				Trigger: name, Service: to.service.spec.Name, Event: event, Attempt: attempt,
				Status: result.status, Err: result.err, DeadLetter: dead,
			})
		}
		if result.err == nil || attempt >= rule.retries || (result.status != 0 && !retried(result.status)) {
			return result
		}
		if !sleep(ctx, rule.backoff(attempt)) {
			return result
		}
	}
}

func (c *Cluster) attempt(ctx context.Context, to destination, timeout time.Duration, event cloudevents.Event) outcome {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, errors.New("the delivery timeout is over"))
		defer cancel()
	}
	request, err := newRequest(ctx, to, event)
	if err != nil {
		return outcome{err: err}
	}
	response, err := c.client.Do(request)
	if err != nil {
		return outcome{err: err}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxEventBytes))
	if err != nil {
		return outcome{err: err}
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return outcome{status: response.StatusCode, body: body, err: fmt.Errorf("%s answered %d %s", to.service.spec.Name, response.StatusCode, firstLine(body))}
	}
	return accepted(to, response, body)
}

// accepted looks at the body of a 2xx answer as the broker's filter does: empty
// is success, a CloudEvent is a reply, anything else is 502, which is retried.
func accepted(to destination, response *http.Response, body []byte) outcome {
	message := cehttp.NewMessage(response.Header, io.NopCloser(strings.NewReader(string(body))))
	if message.ReadEncoding() == binding.EncodingUnknown {
		if len(body) > 0 {
			return outcome{status: http.StatusBadGateway, err: fmt.Errorf("%s answered %d with a body that is no CloudEvent", to.service.spec.Name, response.StatusCode)}
		}
		return outcome{status: response.StatusCode}
	}
	reply, err := binding.ToEvent(context.Background(), message)
	if err == nil {
		err = reply.Validate()
	}
	if err != nil {
		return outcome{status: http.StatusBadGateway, err: fmt.Errorf("%s replied with a broken CloudEvent: %w", to.service.spec.Name, err)}
	}
	return outcome{status: response.StatusCode, reply: reply}
}

// maxErrorData is where eventing cuts the encoded answer.
const maxErrorData = 1024

// deadLetter is the event with what eventing adds for the dead letter sink: who
// did not take it, the status, and the answer in base64.
func deadLetter(event cloudevents.Event, to destination, last outcome) cloudevents.Event {
	letter := event.Clone()
	status, answer := last.status, last.body
	if status == 0 {
		status, answer = http.StatusInternalServerError, []byte("dispatch error: "+last.err.Error())
	}
	data := base64.StdEncoding.EncodeToString(answer)
	letter.SetExtension("knativeerrordest", to.clusterURL())
	letter.SetExtension("knativeerrorcode", status)
	letter.SetExtension("knativeerrordata", data[:min(len(data), maxErrorData)])
	return letter
}

func firstLine(body []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	return line[:min(len(line), 200)]
}
