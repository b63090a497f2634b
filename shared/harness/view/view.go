// Package view is what the management API shows of each word: the store fills
// it, management-api writes it as JSON, the CLI and the console read it. The doc
// tags are the descriptions of the OpenAPI document. Objects of others are kept as
// they are stored: read into Go values, their large numbers would be others.
package view

import (
	"encoding/json"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// Session is one conversation or workflow run.
type Session struct {
	ID          harness.SessionID    `json:"id"`
	Agent       harness.AgentName    `json:"agent"`
	Channel     harness.Channel      `json:"channel"`
	Account     string               `json:"account" doc:"our side of the channel: a phone number id, a bot, a hook; of channel API the agent's name"`
	Chat        string               `json:"chat" doc:"their side of the channel"`
	State       harness.SessionState `json:"state"`
	Reason      string               `json:"reason,omitempty" doc:"why it is in this state, where that is not its usual way"`
	CurrentNode string               `json:"currentNode,omitempty" doc:"of a workflow run: the node that waits"`

	Workflow         harness.WorkflowName `json:"workflow,omitempty" doc:"of a workflow run; without it the session is a conversation"`
	WorkflowRevision int64                `json:"workflowRevision,omitempty" doc:"of a workflow run: what it keeps to, whatever the workflow says now"`
	Origin           harness.SessionID    `json:"origin,omitempty" doc:"of a workflow run and its conversations: the conversation that it was started from, in whose chat people are told and asked"`
	Visit            harness.VisitID      `json:"visit,omitempty" doc:"of a conversation: the visit of a workflow's node that has it"`
	Input            json.RawMessage      `json:"input,omitempty" doc:"of a workflow run: an object"`

	Messages  int64      `json:"messages" doc:"how many there are, both ways"`
	Steps     int64      `json:"steps" doc:"how often the model answered"`
	Spent     Spent      `json:"spent"`
	CreatedAt time.Time  `json:"createdAt"`
	UpdatedAt time.Time  `json:"updatedAt"`
	EndedAt   *time.Time `json:"endedAt,omitempty"`
	PausedAt  *time.Time `json:"pausedAt,omitempty" doc:"since when a person has it instead of the agent"`
	PausedBy  string     `json:"pausedBy,omitempty"`
	TraceID   string     `json:"traceId,omitempty" doc:"of the trace of its newest message"`

	Temporal *harness.TemporalLink `json:"temporal,omitempty" doc:"the Temporal workflow that is told of its approvals"`
}

// Spent is what something has cost.
type Spent struct {
	Steps            int64   `json:"steps" doc:"answers of the model"`
	ToolCalls        int64   `json:"toolCallCount" doc:"calls that it asked for"`
	Tokens           int64   `json:"tokens" doc:"in and out"`
	Cost             string  `json:"cost" doc:"in the currency of the platform's prices; of models without a price, nothing"`
	Seconds          float64 `json:"seconds" doc:"in which the model answered or a command ran"`
	ExecutionSeconds float64 `json:"executionSeconds" doc:"in which a command ran"`
}

// SpentOf shows a spending.
func SpentOf(s harness.Spending) Spent {
	return Spent{Steps: s.Steps, ToolCalls: s.ToolCalls, Tokens: s.Tokens, Cost: s.Cost.String(), Seconds: s.Time.Seconds(), ExecutionSeconds: s.ExecutionTime.Seconds()}
}

// Usage is what an agent has spent on one day.
type Usage struct {
	Day      string `json:"day" doc:"by UTC, as in 2026-01-02"`
	Spent    Spent  `json:"spent"`
	Reserved *Spent `json:"reserved,omitempty" doc:"held for answers and commands that are under way, or that a crash cut off: it counts against budgets"`
}

// Halt says whether nobody works: for an agent, or for the whole install.
type Halt struct {
	Halted   bool       `json:"halted" doc:"no model is asked and no command begins; messages wait"`
	HaltedAt *time.Time `json:"haltedAt,omitempty"`
	HaltedBy string     `json:"haltedBy,omitempty"`
	Reason   string     `json:"reason,omitempty" doc:"in the words of whoever halted it"`
}

// Message is one inbound or outbound text.
type Message struct {
	ID            harness.MessageID    `json:"id"`
	Session       harness.SessionID    `json:"session"`
	Seq           int64                `json:"seq" doc:"its place in the session, from 1"`
	Direction     harness.Direction    `json:"direction"`
	State         harness.MessageState `json:"state"`
	ChannelUserID string               `json:"channelUserId"`
	Text          string               `json:"text"`
	Metadata      json.RawMessage      `json:"metadata,omitempty" doc:"an object: what else the channel said, as it is stored"`
	InReplyTo     harness.MessageID    `json:"inReplyTo,omitempty" doc:"of an answer: the message it answers"`
	Author        string               `json:"author,omitempty" doc:"of an answer that a person gave in the agent's place: who"`
	Parts         []ReplyPart          `json:"parts,omitempty" doc:"of an answer: how each part was sent"`
	Attachments   []Attachment         `json:"attachments,omitempty"`
	CreatedAt     time.Time            `json:"createdAt"`
}

// ReplyPart is one part of an answer on its way out.
type ReplyPart struct {
	ID         harness.ReplyID    `json:"id"`
	Part       int                `json:"part"`
	State      harness.ReplyState `json:"state"`
	Reason     string             `json:"reason,omitempty"`
	ProviderID string             `json:"providerId,omitempty"`
}

// Attachment is a file that came with a message or went with an answer.
type Attachment struct {
	ID        harness.AttachmentID `json:"id"`
	FileName  string               `json:"fileName"`
	MIMEType  string               `json:"mimeType,omitempty"`
	SizeBytes int64                `json:"sizeBytes"`
	State     string               `json:"state"`
}

// EntryKind is what an Entry of a timeline tells of.
type EntryKind string

// The kinds of an Entry.
const (
	EntryMessage   EntryKind = "MESSAGE"
	EntryStep      EntryKind = "STEP"
	EntryToolCall  EntryKind = "TOOL_CALL"
	EntryExecution EntryKind = "EXECUTION"
	EntryApproval  EntryKind = "APPROVAL"
	EntryVisit     EntryKind = "VISIT"
	EntryGuardrail EntryKind = "GUARDRAIL"
)

// Entry is one thing that happened in a session. Which of the last fields is set
// follows from its kind.
type Entry struct {
	At        time.Time         `json:"at"`
	Kind      EntryKind         `json:"kind" enum:"MESSAGE,STEP,TOOL_CALL,EXECUTION,APPROVAL,VISIT,GUARDRAIL"`
	ID        string            `json:"id"`
	Message   *Message          `json:"message,omitempty"`
	Step      *Step             `json:"step,omitempty"`
	ToolCall  *ToolCall         `json:"toolCall,omitempty"`
	Execution *Execution        `json:"execution,omitempty"`
	Approval  *Approval         `json:"approval,omitempty"`
	Visit     *Visit            `json:"visit,omitempty"`
	Guardrail *GuardrailVerdict `json:"guardrail,omitempty" doc:"one that did not pass"`
}

// GuardrailVerdict is what a guardrail came to. It quotes nothing of what was judged.
type GuardrailVerdict struct {
	ID        string                   `json:"id"`
	Message   harness.MessageID        `json:"message,omitempty" doc:"of the turn; of INPUT, what was judged"`
	Step      harness.StepID           `json:"step,omitempty" doc:"of TOOL_CALL and OUTPUT: the answer that was judged"`
	ToolCall  harness.ToolCallID       `json:"toolCall,omitempty" doc:"of TOOL_CALL and TOOL_OUTPUT"`
	Stage     harness.GuardrailStage   `json:"stage" enum:"INPUT,TOOL_CALL,TOOL_OUTPUT,OUTPUT"`
	Guardrail string                   `json:"guardrail" doc:"its name"`
	Action    harness.GuardrailAction  `json:"action" enum:"block,redact,ask,warn" doc:"what it led to"`
	Verdict   harness.GuardrailVerdict `json:"verdict" enum:"HIT,FAILED" doc:"FAILED: it could not judge"`
	Reason    string                   `json:"reason"`
	CreatedAt time.Time                `json:"createdAt"`
}

// Visit is one visit of a node by a workflow run.
type Visit struct {
	ID        harness.VisitID    `json:"id"`
	Node      string             `json:"node"`
	Number    int                `json:"number" doc:"its place among the visits of its node, from 1"`
	State     harness.VisitState `json:"state"`
	Attempts  int                `json:"attempts" doc:"the number of the attempt that is to start, runs or was the last"`
	Arrivals  []harness.VisitID  `json:"arrivals" doc:"the visits that led to it"`
	Input     string             `json:"input,omitempty" doc:"the prompt, command, question or reply of the newest attempt"`
	Output    json.RawMessage    `json:"output,omitempty" doc:"an object: what expressions see of it"`
	Reason    string             `json:"reason,omitempty"`
	Session   harness.SessionID  `json:"session,omitempty" doc:"of a node of type AGENT: the conversation of the newest attempt"`
	DueAt     *time.Time         `json:"dueAt,omitempty" doc:"when it is tried again, or times out"`
	CreatedAt time.Time          `json:"createdAt"`
	StartedAt *time.Time         `json:"startedAt,omitempty"`
	EndedAt   *time.Time         `json:"endedAt,omitempty"`
}

// Step is one answer of the model.
type Step struct {
	ID           harness.StepID    `json:"id"`
	Message      harness.MessageID `json:"message" doc:"the message whose turn it belongs to"`
	Seq          int64             `json:"seq"`
	Text         string            `json:"text"`
	Author       string            `json:"author,omitempty" doc:"the person who answered in the agent's place"`
	Model        string            `json:"model"`
	InputTokens  int64             `json:"inputTokens"`
	OutputTokens int64             `json:"outputTokens"`

	CacheReadTokens  int64          `json:"cacheReadTokens" doc:"those of inputTokens that the provider had kept"`
	CacheWriteTokens int64          `json:"cacheWriteTokens" doc:"those of inputTokens that the provider keeps from now on, where it charges for that"`
	ModelAttempts    []ModelAttempt `json:"modelAttempts,omitempty" doc:"every question to a model that was asked for the step, in order; one that a crash cut off is not among them, and attempts skips its number"`
}

// ModelAttempt is one question to a model, and what came of it.
type ModelAttempt struct {
	Purpose          harness.AttemptPurpose `json:"purpose"`
	Attempts         int                    `json:"attempts" doc:"how often the session was claimed since its last commit, this time included"`
	Provider         harness.Provider       `json:"provider"`
	Model            string                 `json:"model" doc:"as it was asked for"`
	Reason           string                 `json:"reason,omitempty" doc:"why it gave no answer"`
	Final            bool                   `json:"final,omitempty" doc:"it gives none to this question, however often it is asked"`
	InputTokens      int64                  `json:"inputTokens"`
	CacheReadTokens  int64                  `json:"cacheReadTokens"`
	CacheWriteTokens int64                  `json:"cacheWriteTokens"`
	OutputTokens     int64                  `json:"outputTokens"`
	Cost             string                 `json:"cost,omitempty" doc:"absent: no price is known"`
	Millis           int64                  `json:"millis" doc:"that it took"`
	CreatedAt        time.Time              `json:"createdAt"`
}

// ModelUsage is what an agent has asked one model on one day.
type ModelUsage struct {
	Day              string            `json:"day" doc:"by UTC, as in 2026-01-02"`
	Agent            harness.AgentName `json:"agent"`
	Provider         harness.Provider  `json:"provider"`
	Model            string            `json:"model"`
	Asked            int64             `json:"asked" doc:"how often it was asked"`
	Unanswered       int64             `json:"unanswered" doc:"how often it gave no answer"`
	InputTokens      int64             `json:"inputTokens"`
	CacheReadTokens  int64             `json:"cacheReadTokens" doc:"those of inputTokens that the provider had kept"`
	CacheWriteTokens int64             `json:"cacheWriteTokens" doc:"those of inputTokens that the provider keeps, where it charges for that"`
	OutputTokens     int64             `json:"outputTokens"`
	Cost             string            `json:"cost,omitempty" doc:"of the questions whose price is known; absent: of none"`
	Unpriced         int64             `json:"unpriced" doc:"how often it was asked without a known price"`
}

// ToolCall is one call that the model asked for.
type ToolCall struct {
	ID        harness.ToolCallID    `json:"id"`
	Step      harness.StepID        `json:"step"`
	Name      string                `json:"name"`
	Arguments string                `json:"arguments" doc:"as the model wrote them"`
	State     harness.ToolCallState `json:"state"`
	Result    string                `json:"result,omitempty" doc:"what the model is told"`
	EndedAt   *time.Time            `json:"endedAt,omitempty"`
}

// Execution is one command in a sandbox.
type Execution struct {
	ID          harness.ExecutionID    `json:"id"`
	Session     harness.SessionID      `json:"session"`
	Agent       harness.AgentName      `json:"agent"`
	Cause       harness.ExecutionCause `json:"cause"`
	CauseID     string                 `json:"causeId" doc:"the tool call, node visit or API request that asked for it"`
	Command     string                 `json:"command"`
	State       harness.ExecutionState `json:"state"`
	Reason      string                 `json:"reason,omitempty"`
	Sandbox     harness.SandboxID      `json:"sandbox,omitempty"`
	ExitCode    *int                   `json:"exitCode,omitempty"`
	StdoutBytes int64                  `json:"stdoutBytes" doc:"printed, stored or not"`
	StderrBytes int64                  `json:"stderrBytes"`
	OutputLost  *OutputLost            `json:"outputLost,omitempty" doc:"what it printed and nobody has"`
	CreatedAt   time.Time              `json:"createdAt"`
	StartedAt   *time.Time             `json:"startedAt,omitempty"`
	EndedAt     *time.Time             `json:"endedAt,omitempty"`
}

// OutputLost is what a command printed, or may have, and nobody has: of each
// stream, from the byte behind the last that is stored.
type OutputLost struct {
	Reason      string `json:"reason"`
	StdoutStart int64  `json:"stdoutStart"`
	StdoutEnd   *int64 `json:"stdoutEnd,omitempty" doc:"behind the last; not there: nobody knows how much it printed"`
	StderrStart int64  `json:"stderrStart"`
	StderrEnd   *int64 `json:"stderrEnd,omitempty"`
}

// Output is a stretch of what a command printed to one of its streams.
type Output struct {
	Stream string `json:"stream" enum:"stdout,stderr"`
	Offset int64  `json:"offset" doc:"of the first byte of data"`
	Data   []byte `json:"data" doc:"base64"`
	Next   int64  `json:"next" doc:"offset to ask for next"`
	Total  int64  `json:"total" doc:"bytes printed so far"`
	Ended  bool   `json:"ended" doc:"the command has ended and nothing follows data"`
}

// Sandbox is one Pod or local sandbox.
type Sandbox struct {
	ID             harness.SandboxID    `json:"id"`
	Name           string               `json:"name" doc:"of the Pod"`
	UID            string               `json:"uid,omitempty"`
	Agent          harness.AgentName    `json:"agent"`
	Session        harness.SessionID    `json:"session"`
	State          harness.SandboxState `json:"state"`
	Reason         string               `json:"reason,omitempty"`
	Message        string               `json:"message,omitempty" doc:"the reason in words"`
	Spec           harness.SandboxSpec  `json:"spec"`
	CreatedAt      time.Time            `json:"createdAt"`
	LastActivityAt time.Time            `json:"lastActivityAt"`
	ExpiresAt      time.Time            `json:"expiresAt"`
	EndedAt        *time.Time           `json:"endedAt,omitempty"`
}

// Approval is one question to a human.
type Approval struct {
	ID          harness.ApprovalID    `json:"id"`
	Kind        harness.ApprovalKind  `json:"kind" enum:"TOOL_CALL,NODE_VISIT,BUDGET,GUARDRAIL" doc:"what waits: a tool call, a node of a workflow, or a turn, for more of a budget or for what a guardrail asks about"`
	Session     harness.SessionID     `json:"session"`
	Agent       harness.AgentName     `json:"agent"`
	CurrentNode string                `json:"currentNode,omitempty"`
	ToolCall    harness.ToolCallID    `json:"toolCall,omitempty"`
	Message     harness.MessageID     `json:"message,omitempty" doc:"of BUDGET and GUARDRAIL: whose turn waits"`
	Title       string                `json:"title" doc:"what is asked, in one line"`
	Input       json.RawMessage       `json:"input" doc:"an object: exactly what will run when approved"`
	Digest      string                `json:"digest" doc:"SHA-256 of exactly what will run; a decision may name it"`
	State       harness.ApprovalState `json:"state"`
	DecidedBy   string                `json:"decidedBy,omitempty"`
	DecidedVia  string                `json:"decidedVia,omitempty" doc:"API or the channel"`
	Reason      string                `json:"reason,omitempty" doc:"what the decider wrote"`
	RequestedAt time.Time             `json:"requestedAt"`
	ExpiresAt   *time.Time            `json:"expiresAt,omitempty"`
	DecidedAt   *time.Time            `json:"decidedAt,omitempty"`

	Approvers  []harness.Approver    `json:"approvers" doc:"who may decide; none: whoever has the right by the API"`
	Quorum     int                   `json:"quorum" doc:"how many must approve"`
	Votes      []Vote                `json:"votes" doc:"what was said so far"`
	OnTimeout  harness.TimeoutAction `json:"onTimeout" enum:"reject,proceed,wait" doc:"what holds when nobody has decided in time"`
	Scope      harness.ApprovalScope `json:"scope" enum:"ONCE,SESSION,ALWAYS" doc:"how far the decision reaches"`
	Code       string                `json:"shortCode,omitempty" doc:"what people type in a chat that holds the card: approve CODE"`
	Context    map[string]any        `json:"context,omitempty" doc:"what else deciders are shown"`
	AskedInput json.RawMessage       `json:"askedInput,omitempty" doc:"what was asked, where whoever decided changed it"`
	ConsumedAt *time.Time            `json:"consumedAt,omitempty" doc:"when what was approved was handed on"`
}

// ApprovalCounts is what waits for a decision.
type ApprovalCounts struct {
	Pending int             `json:"pending" doc:"of all agents"`
	Agents  []ApprovalCount `json:"agents" doc:"those with any, by name"`
}

// ApprovalCount is what waits of one agent.
type ApprovalCount struct {
	Agent             harness.AgentName `json:"agent"`
	Pending           int               `json:"pending"`
	OldestRequestedAt time.Time         `json:"oldestRequestedAt" doc:"when the one that waits longest was asked for"`
	NextExpiresAt     *time.Time        `json:"nextExpiresAt,omitempty" doc:"when the time of the next one ends; none: they all wait"`
}

// Vote is what one who may decide has said.
type Vote struct {
	By       string                `json:"decidedBy"`
	Via      string                `json:"decidedVia" doc:"API or the channel"`
	Decision harness.ApprovalState `json:"decision" enum:"APPROVED,REJECTED"`
	Reason   string                `json:"reason,omitempty"`
	At       time.Time             `json:"decidedAt"`
}

// DeadLetter is an event that the broker gave up on.
type DeadLetter struct {
	ID          int64             `json:"id"`
	Event       string            `json:"event" doc:"id of the event"`
	Type        string            `json:"type"`
	Session     harness.SessionID `json:"session,omitempty"`
	Payload     json.RawMessage   `json:"payload" doc:"an object: what the event says, as it is stored"`
	Destination string            `json:"destination" doc:"who would not take it"`
	StatusCode  int               `json:"statusCode,omitempty" doc:"what it answered"`
	Cause       string            `json:"cause,omitempty" doc:"the start of the answer"`
	State       string            `json:"state" enum:"OPEN,MOOT,REPLAYED,DISCARDED"`
	DecidedBy   string            `json:"decidedBy,omitempty" doc:"who replayed or discarded it last"`
	Times       int               `json:"times" doc:"how often the broker gave up on it"`
	ReceivedAt  time.Time         `json:"receivedAt"`
	UpdatedAt   time.Time         `json:"updatedAt"`
}

// LogEntry is a row of agent_execution_logs.
type LogEntry struct {
	ID              int64             `json:"id"`
	Agent           harness.AgentName `json:"agent"`
	Session         harness.SessionID `json:"session,omitempty"`
	Node            string            `json:"node,omitempty"`
	Level           string            `json:"level" enum:"DEBUG,INFO,WARN,ERROR"`
	Message         string            `json:"message"`
	GuardrailResult string            `json:"guardrailResult,omitempty"`
	TraceID         string            `json:"traceId,omitempty"`
	CreatedAt       time.Time         `json:"createdAt"`
}

// ChannelAccount is our side of a channel, and how it is doing.
type ChannelAccount struct {
	Channel        harness.Channel   `json:"channel"`
	Account        string            `json:"account"`
	Agent          harness.AgentName `json:"agent"`
	LastInboundAt  *time.Time        `json:"lastInboundAt,omitempty"`
	LastOutboundAt *time.Time        `json:"lastOutboundAt,omitempty"`
	Waiting        int64             `json:"waiting" doc:"replies that are not sent yet"`
	Failed         int64             `json:"failed" doc:"replies of the last 24 hours that could not be sent"`
	Unknown        int64             `json:"unknown" doc:"replies of the last 24 hours of which nobody knows whether they arrived"`
	Secrets        []SecretCheck     `json:"secrets,omitempty"`
}

// SecretCheck is whether a Secret that an agent names can be used.
type SecretCheck struct {
	Name   string `json:"name"`
	Key    string `json:"key"`
	State  string `json:"state" enum:"AVAILABLE,NOT_FOUND,DENIED,EMPTY"`
	Reason string `json:"reason,omitempty"`
}

// AuditState is what came of a write.
type AuditState string

// The states of a write.
const (
	AuditUnknown AuditState = "UNKNOWN" // it was about to be done, and nobody has said what came of it
	AuditDone    AuditState = "DONE"
	AuditRefused AuditState = "REFUSED" // nothing was written
)

// AuditEntry is one write through the management API.
type AuditEntry struct {
	ID        int64           `json:"id"`
	Actor     string          `json:"actor"`
	Action    string          `json:"action" doc:"verb and resource, as in update aiagents"`
	Object    string          `json:"object" doc:"name or id of what was written"`
	State     AuditState      `json:"state" enum:"UNKNOWN,DONE,REFUSED" doc:"UNKNOWN: it was about to be done, and nobody has said what came of it"`
	Reason    string          `json:"reason,omitempty" doc:"why it was refused, or is not known"`
	Before    json.RawMessage `json:"before,omitempty" doc:"an object: what was written over"`
	After     json.RawMessage `json:"after,omitempty" doc:"an object: what was written, or of one that is not DONE was to be"`
	RequestID string          `json:"requestId"`
	CreatedAt time.Time       `json:"createdAt"`
}

// Place is a place in a list: behind the row with this time and id. The zero
// Place is before the first row.
type Place struct {
	At time.Time
	ID string
}
