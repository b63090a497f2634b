// Package event is the contract between the functions: one type name and one
// payload of ids per event, as CloudEvents 1.0 in binary mode. An event only
// wakes: losing, repeating or reordering one changes nothing but latency.
package event

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"tuluat.ai/harness/shared/harness"
)

// Type is a CloudEvents type of this product.
type Type string

// The event types. Terminal ones feed streams and status; nothing depends on them.
const (
	MessageReceived    Type = "ai.tuluat.message.received.v1"
	MessageDraft       Type = "ai.tuluat.message.draft.v1"
	MessageReply       Type = "ai.tuluat.message.reply.v1"
	MessageStatus      Type = "ai.tuluat.message.status.v1"
	MediaRequested     Type = "ai.tuluat.media.requested.v1"
	SessionDue         Type = "ai.tuluat.session.due.v1"
	SessionChanged     Type = "ai.tuluat.session.changed.v1"
	ExecutionRequested Type = "ai.tuluat.execution.requested.v1"
	ExecutionFinished  Type = "ai.tuluat.execution.finished.v1"
	SandboxChanged     Type = "ai.tuluat.sandbox.changed.v1"
	ApprovalRequested  Type = "ai.tuluat.approval.requested.v1"
	ApprovalDecided    Type = "ai.tuluat.approval.decided.v1"
	AgentStatusChanged Type = "ai.tuluat.agent.status.changed.v1"
)

// Event types of Knative's own sources that functions hear. Their data is not a
// Payload and is not read: they only say "look now".
const (
	Ping           Type = "dev.knative.sources.ping"
	ResourceAdd    Type = "dev.knative.apiserver.ref.add"
	ResourceUpdate Type = "dev.knative.apiserver.ref.update"
	ResourceDelete Type = "dev.knative.apiserver.ref.delete"
)

// Ours reports whether t is one of this product's own types.
func (t Type) Ours() bool { return strings.HasPrefix(string(t), "ai.tuluat.") }

// Types lists every type, in the order of a message's life.
func Types() []Type {
	return []Type{
		MessageReceived, MessageDraft, MessageReply, MessageStatus, MediaRequested, SessionDue, SessionChanged, ExecutionRequested,
		ExecutionFinished, SandboxChanged, ApprovalRequested, ApprovalDecided, AgentStatusChanged,
	}
}

// MaxBytes is the largest event a function sends or takes.
const MaxBytes = 8 << 10

// Payload is what an event says: ids only. Which fields are set depends on the
// type; the golden files under testdata show each.
type Payload struct {
	Session   harness.SessionID   `json:"session,omitempty"`
	Message   harness.MessageID   `json:"message,omitempty"`
	Execution harness.ExecutionID `json:"execution,omitempty"`
	Sandbox   harness.SandboxID   `json:"sandbox,omitempty"`
	Agent     harness.AgentName   `json:"agent,omitempty"`
	Revision  int64               `json:"revision,omitempty"`
}

// Event is one event as functions see it.
type Event struct {
	ID          string // derived from the row it announces: a repeat has the same id
	Type        Type
	Session     harness.SessionID // extension tuluatsession, also the partitionkey
	Agent       harness.AgentName // extension tuluatagent
	Channel     harness.Channel   // extension tuluatchannel
	TraceParent string            // W3C trace context
	Payload     Payload

	// Extensions are what the broker adds about a delivery it gave up
	// (knativeerrordest, knativeerrorcode, knativeerrordata); nil otherwise. They
	// are read, never sent.
	Extensions map[string]string
}

// errorExtensions begins the names of the broker's own extensions.
const errorExtensions = "knativeerror"

// Source is the CloudEvents source of everything this product emits.
const Source = "tuluat-harness"

// Encode returns e as a CloudEvent, validated.
func Encode(e Event, now time.Time) (cloudevents.Event, error) {
	ce := cloudevents.New()
	ce.SetID(e.ID)
	ce.SetSource(Source)
	ce.SetType(string(e.Type))
	ce.SetTime(now)
	for name, value := range map[string]string{
		"tuluatsession": string(e.Session), "partitionkey": string(e.Session), "tuluatagent": string(e.Agent),
		"tuluatchannel": strings.ToLower(string(e.Channel)), "traceparent": e.TraceParent,
	} {
		if value != "" {
			ce.SetExtension(name, value)
		}
	}
	if err := ce.SetData(cloudevents.ApplicationJSON, e.Payload); err != nil {
		return ce, fmt.Errorf("event %s: %w", e.ID, err)
	}
	if err := ce.Validate(); err != nil {
		return ce, fmt.Errorf("event %s: %w", e.ID, err)
	}
	return ce, nil
}

// Decode reads a CloudEvent of this product. Unknown payload fields are
// ignored, so that an older function understands a newer one; anything that is
// not an object of ids is harness.Invalid.
func Decode(ce *cloudevents.Event) (Event, error) {
	if err := ce.Validate(); err != nil {
		return Event{}, harness.Wrap(harness.Invalid, err, "not a CloudEvent")
	}
	e := Event{
		ID: ce.ID(), Type: Type(ce.Type()), Session: harness.SessionID(text(ce, "tuluatsession")),
		Agent: harness.AgentName(text(ce, "tuluatagent")), Channel: harness.Channel(strings.ToUpper(text(ce, "tuluatchannel"))),
		TraceParent: text(ce, "traceparent"),
	}
	for name, value := range ce.Extensions() {
		if strings.HasPrefix(name, errorExtensions) {
			if e.Extensions == nil {
				e.Extensions = map[string]string{}
			}
			e.Extensions[name] = fmt.Sprint(value)
		}
	}
	if e.Type.Ours() && len(ce.Data()) > MaxBytes {
		return Event{}, harness.Errorf(harness.Invalid, "event data is over %d bytes", MaxBytes)
	}
	if data := bytes.TrimSpace(ce.Data()); e.Type.Ours() && len(data) > 0 {
		if err := json.Unmarshal(data, &e.Payload); err != nil {
			return Event{}, harness.Wrap(harness.Invalid, err, "event data is not a payload of ids")
		}
	}
	return e, nil
}

func text(ce *cloudevents.Event, extension string) string {
	s, _ := ce.Extensions()[extension].(string)
	return s
}
