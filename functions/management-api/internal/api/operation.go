package api

import (
	"net/http"
	"slices"

	"tuluat.ai/harness/functions/management-api/internal/access"
)

// Operation is one thing that the API can do: where, and who may. What it takes
// and gives is in the types of its handler.
type Operation struct {
	ID      string
	Method  string
	Path    string
	Summary string
	Right   access.Right // with Name set to the path's parameter that names the resource; zero: every known caller may
	Status  int          // of success, if it is not 200
	Notes   string       // for the document
}

const prefix = "/api/v1"

func right(verb, resource string) access.Right { return access.Right{Verb: verb, Resource: resource} }

func named(verb, resource, parameter string) access.Right {
	return access.Right{Verb: verb, Resource: resource, Name: parameter}
}

// Operations returns all of them: the mux, the document and the table of roles
// are made from it.
func Operations() []Operation {
	all := slices.Concat(resourceOperations(), sessionOperations(), takeoverOperations(), approvalOperations(), sandboxOperations(), recordOperations(), haltOperations(), leakOperations())
	for i, o := range all {
		all[i].Path = prefix + o.Path
		if o.Status == 0 {
			all[i].Status = http.StatusOK
		}
	}
	return all
}

// allRights are those that operations need, each once and of all resources.
func allRights() []access.Right {
	var all []access.Right
	for _, o := range Operations() {
		if r := right(o.Right.Verb, o.Right.Resource); r.Verb != "" && !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	return all
}

const (
	matchNotes  = "If-Match has the ETag of the version that the change is made to, several of which one is, or * for any; weak ones match nothing."
	dryRunNotes = "With dryRun=true it is only checked, and answered as if it had been done."
	retryNotes  = "A repeat with the same Idempotency-Key has no effect and gets the answer of the first; another request with it is refused with 409."
)

func resourceOperations() []Operation {
	agents, workflows := access.Agents, access.Workflows
	return []Operation{
		{ID: "list-agents", Method: http.MethodGet, Path: "/agents", Summary: "List agents, by name", Right: right(access.List, agents)},
		{ID: "create-agent", Method: http.MethodPost, Path: "/agents", Summary: "Create an agent", Right: right(access.Create, agents), Status: http.StatusCreated, Notes: dryRunNotes + " " + retryNotes},
		{ID: "get-agent", Method: http.MethodGet, Path: "/agents/{name}", Summary: "Get an agent", Right: named(access.Get, agents, "name")},
		{ID: "replace-agent", Method: http.MethodPut, Path: "/agents/{name}", Summary: "Replace an agent", Right: named(access.Update, agents, "name"), Notes: matchNotes + " " + dryRunNotes},
		{ID: "delete-agent", Method: http.MethodDelete, Path: "/agents/{name}", Summary: "Delete an agent", Right: named(access.Delete, agents, "name"), Status: http.StatusNoContent, Notes: matchNotes},
		{
			ID: "switch-agent-features", Method: http.MethodPatch, Path: "/agents/{name}/features", Summary: "Switch blocks of an agent on or off", Right: named(access.Patch, access.AgentFeatures, "name"),
			Notes: "It sets enabled of the blocks that the body names and nothing else. " + matchNotes + " " + dryRunNotes,
		},
		{ID: "list-agent-logs", Method: http.MethodGet, Path: "/agents/{name}/logs", Summary: "List the log of an agent, newest first", Right: right(access.List, access.Logs)},
		{ID: "list-agent-sandboxes", Method: http.MethodGet, Path: "/agents/{name}/sandboxes", Summary: "List the sandboxes of an agent, newest first", Right: right(access.List, access.Sandboxes)},

		{ID: "list-workflows", Method: http.MethodGet, Path: "/workflows", Summary: "List workflows, by name", Right: right(access.List, workflows)},
		{ID: "create-workflow", Method: http.MethodPost, Path: "/workflows", Summary: "Create a workflow", Right: right(access.Create, workflows), Status: http.StatusCreated, Notes: dryRunNotes + " " + retryNotes},
		{ID: "get-workflow", Method: http.MethodGet, Path: "/workflows/{name}", Summary: "Get a workflow", Right: named(access.Get, workflows, "name")},
		{ID: "replace-workflow", Method: http.MethodPut, Path: "/workflows/{name}", Summary: "Replace a workflow", Right: named(access.Update, workflows, "name"), Notes: matchNotes + " " + dryRunNotes},
		{ID: "delete-workflow", Method: http.MethodDelete, Path: "/workflows/{name}", Summary: "Delete a workflow", Right: named(access.Delete, workflows, "name"), Status: http.StatusNoContent, Notes: matchNotes},
	}
}

func haltOperations() []Operation {
	agents := access.Agents
	const notes = "No model is asked and no command begins; those that run are ended. Messages wait, and whoever waits in a chat is told so once."
	return []Operation{
		{ID: "get-agent-halt", Method: http.MethodGet, Path: "/agents/{name}/halt", Summary: "Say whether an agent is halted", Right: named(access.Get, agents, "name")},
		{ID: "halt-agent", Method: http.MethodPut, Path: "/agents/{name}/halt", Summary: "Halt an agent", Right: named(access.Halt, agents, "name"), Notes: notes},
		{ID: "resume-agent", Method: http.MethodDelete, Path: "/agents/{name}/halt", Summary: "Let an agent that is halted go on", Right: named(access.Halt, agents, "name"), Status: http.StatusNoContent},
		{ID: "list-agent-usage", Method: http.MethodGet, Path: "/agents/{name}/usage", Summary: "List what an agent has spent, day by day, the newest first", Right: named(access.Get, agents, "name")},
		{ID: "list-usage", Method: http.MethodGet, Path: "/usage", Summary: "List what agents have asked models, by day, agent and model, the newest day first", Right: right(access.List, agents), Notes: "At most 1000 entries: ask for one agent, or a later first day, to see the rest. A question whose price nobody has said is counted in unpriced, and its cost is in none."},
		{ID: "get-halt", Method: http.MethodGet, Path: "/halt", Summary: "Say whether the whole install is halted", Right: right(access.List, agents)},
		{ID: "halt", Method: http.MethodPut, Path: "/halt", Summary: "Halt the whole install", Right: right(access.Halt, agents), Notes: notes},
		{ID: "resume", Method: http.MethodDelete, Path: "/halt", Summary: "Let the install go on", Right: right(access.Halt, agents), Status: http.StatusNoContent, Notes: "Agents that are halted themselves stay so."},
	}
}

func leakOperations() []Operation {
	leaks := access.Leaks
	return []Operation{
		{
			ID: "list-leaks", Method: http.MethodGet, Path: "/leaks", Summary: "Say what the last comparison of rows with what exists outside of them came to, by kind", Right: right(access.List, leaks),
			Notes: "The sweep compares, and removes what has no owner: sandboxes, network policies and volumes in each pass, the bucket about once an hour. An object is leaked when nothing of it lives any more and it is still there, a row lost when its object is gone.",
		},
		{ID: "get-sweep", Method: http.MethodGet, Path: "/sweep", Summary: "Say how the last pass of the sweep went", Right: right(access.List, leaks)},
		{
			ID: "record-webhook", Method: http.MethodPost, Path: "/channels/webhooks", Summary: "Record where a provider was told to send updates of an account to", Right: right(access.Update, access.Channels), Status: http.StatusNoContent,
			Notes: "It tells the provider nothing. Whoever registers a webhook records it before, and with an empty url after it was taken away, so that one of an account that no agent has any more is found.",
		},
	}
}

func takeoverOperations() []Operation {
	takeover := named(access.Takeover, access.Sessions, "id")
	return []Operation{
		{
			ID: "pause-session", Method: http.MethodPost, Path: "/sessions/{id}/pause", Summary: "Take a session over from its agent", Right: takeover,
			Notes: "The agent keeps out of it until it is resumed: an answer that it was about to give is not given, and messages wait. A command that runs goes on.",
		},
		{
			ID: "reply-in-session", Method: http.MethodPost, Path: "/sessions/{id}/reply", Summary: "Answer in the agent's place in a session that is taken over", Right: takeover,
			Notes: "It answers every message that waits. What the agent had begun is given up, and it takes the answer for one of its own. " + retryNotes,
		},
		{ID: "resume-session", Method: http.MethodPost, Path: "/sessions/{id}/resume", Summary: "Hand a session back to its agent", Right: takeover},
	}
}

func sessionOperations() []Operation {
	sessions := access.Sessions
	return []Operation{
		{ID: "list-sessions", Method: http.MethodGet, Path: "/sessions", Summary: "List sessions, newest first", Right: right(access.List, sessions)},
		{
			ID: "start-session", Method: http.MethodPost, Path: "/sessions", Summary: "Send an agent the first message of a session", Right: right(access.Create, sessions), Status: http.StatusAccepted,
			Notes: "With a chat in which the caller has a session open, the message goes there. " + retryNotes,
		},
		{ID: "get-session", Method: http.MethodGet, Path: "/sessions/{id}", Summary: "Get a session", Right: named(access.Get, sessions, "id")},
		{ID: "list-session-messages", Method: http.MethodGet, Path: "/sessions/{id}/messages", Summary: "List the messages of a session, oldest first", Right: named(access.Get, sessions, "id")},
		{
			ID: "send-session-message", Method: http.MethodPost, Path: "/sessions/{id}/messages", Summary: "Send a message to a session of channel API", Right: named(access.Update, sessions, "id"), Status: http.StatusAccepted,
			Notes: retryNotes,
		},
		{ID: "list-session-timeline", Method: http.MethodGet, Path: "/sessions/{id}/timeline", Summary: "List what happened in a session, oldest first unless newest says so", Right: named(access.Get, sessions, "id")},
		{
			ID: "watch-session", Method: http.MethodGet, Path: "/sessions/{id}/events", Summary: "Follow a session as server-sent events", Right: named(access.Watch, sessions, "id"),
			Notes: "An event turn, tool_call, tool_result or reply has an id; a client that comes back with it in Last-Event-ID or after gets every later event once, in order. " +
				"session says where the session stands, output what a running command prints, and end that nothing follows. A comment comes every 15 seconds in which nothing happens. " +
				"The connection ends when the process does, and after ten minutes at the latest. A caller may have 20 open (more: 429), a process 200 (503).",
		},
		{ID: "cancel-session", Method: http.MethodPost, Path: "/sessions/{id}/cancel", Summary: "End a session and what it waits for", Right: named(access.Cancel, sessions, "id")},
		{
			ID: "approve-session", Method: http.MethodPost, Path: "/sessions/{id}/approve", Summary: "Decide the one approval that a session waits for", Right: right(access.Decide, access.Approvals),
			Notes: "Without a body it approves. One whose time is over does not wait. When several wait, nothing is decided and the problem lists them.",
		},
	}
}

func approvalOperations() []Operation {
	approvals := access.Approvals
	return []Operation{
		{ID: "list-approvals", Method: http.MethodGet, Path: "/approvals", Summary: "List approvals, newest first", Right: right(access.List, approvals)},
		{ID: "count-approvals", Method: http.MethodGet, Path: "/approvals/counts", Summary: "Count the approvals that wait, by agent", Right: right(access.List, approvals)},
		{
			ID: "watch-approvals", Method: http.MethodGet, Path: "/approvals/events", Summary: "Follow all approvals as server-sent events", Right: right(access.Watch, approvals),
			Notes: "An event approval has an Approval as it is: asked for, or ended. Without Last-Event-ID or after, first come those that wait. A client that comes back with the id of the last event gets " +
				"each approval that was asked for or ended later, in order, and may get one again. A comment comes every 15 seconds in which nothing happens. The connection ends when the process does, " +
				"and after ten minutes at the latest. A caller may have 20 open (more: 429), a process 200 (503).",
		},
		{ID: "get-approval", Method: http.MethodGet, Path: "/approvals/{id}", Summary: "Get an approval", Right: named(access.Get, approvals, "id")},
		{
			ID: "decide-approval", Method: http.MethodPost, Path: "/approvals/{id}/decision", Summary: "Approve or reject", Right: named(access.Decide, approvals, "id"),
			Notes: "Who comes second is answered 409 with the first decision, and who may not decide this one 403 with those who may.",
		},
	}
}

func sandboxOperations() []Operation {
	sandboxes, executions := access.Sandboxes, access.Executions
	return []Operation{
		{ID: "list-sandboxes", Method: http.MethodGet, Path: "/sandboxes", Summary: "List sandboxes, newest first", Right: right(access.List, sandboxes)},
		{ID: "get-sandbox", Method: http.MethodGet, Path: "/sandboxes/{id}", Summary: "Get a sandbox", Right: named(access.Get, sandboxes, "id")},
		{ID: "terminate-sandbox", Method: http.MethodDelete, Path: "/sandboxes/{id}", Summary: "Terminate a sandbox", Right: named(access.Delete, sandboxes, "id"), Status: http.StatusAccepted},
		{ID: "list-sandbox-executions", Method: http.MethodGet, Path: "/sandboxes/{id}/executions", Summary: "List the executions in a sandbox, newest first", Right: right(access.List, executions)},
		{
			ID: "run-command", Method: http.MethodPost, Path: "/sandboxes/{id}/executions", Summary: "Run a command in a sandbox", Right: named(access.Exec, sandboxes, "id"), Status: http.StatusAccepted,
			Notes: retryNotes,
		},
		{ID: "list-executions", Method: http.MethodGet, Path: "/executions", Summary: "List executions, newest first", Right: right(access.List, executions)},
		{ID: "get-execution", Method: http.MethodGet, Path: "/executions/{id}", Summary: "Get an execution", Right: named(access.Get, executions, "id")},
		{ID: "read-output", Method: http.MethodGet, Path: "/executions/{id}/output", Summary: "Read what a command has printed, from a byte on", Right: named(access.Get, executions, "id")},
	}
}

func recordOperations() []Operation {
	letters := access.DeadLetters
	return []Operation{
		{ID: "list-dead-letters", Method: http.MethodGet, Path: "/deadletters", Summary: "List dead letters, newest first", Right: right(access.List, letters)},
		{ID: "get-dead-letter", Method: http.MethodGet, Path: "/deadletters/{id}", Summary: "Get a dead letter", Right: named(access.Get, letters, "id")},
		{
			ID: "replay-dead-letter", Method: http.MethodPost, Path: "/deadletters/{id}/replay", Summary: "Send a dead letter's event again", Right: named(access.Replay, letters, "id"), Status: http.StatusAccepted,
			Notes: "The event keeps its identity: one whose work is done has no effect.",
		},
		{ID: "discard-dead-letter", Method: http.MethodPost, Path: "/deadletters/{id}/discard", Summary: "Discard a dead letter", Right: named(access.Delete, letters, "id")},
		{ID: "list-logs", Method: http.MethodGet, Path: "/logs", Summary: "List log entries, newest first", Right: right(access.List, access.Logs)},
		{
			ID: "watch-logs", Method: http.MethodGet, Path: "/logs/events", Summary: "Follow the log as server-sent events", Right: right(access.List, access.Logs),
			Notes: "An event log has a LogEntry. A client that comes back with the id of the last event that had one gets what came later, in order as it became visible, and may get some again. " +
				"The connection ends when the process does, and after ten minutes at the latest. A caller may have 20 streams open (more: 429), a process 200 (503).",
		},
		{
			ID: "export-logs", Method: http.MethodGet, Path: "/logs/export", Summary: "Download log entries, newest first, one on each line", Right: right(access.List, access.Logs),
			Notes: "What Postgres has and what the archive has. An answer that breaks off is not whole: ask again for what is before its last entry.",
		},
		{
			ID: "check-archive", Method: http.MethodGet, Path: "/logs/archive", Summary: "Compare the archive with what is known of it, and read its objects again", Right: right(access.List, access.Archives),
			Notes: "Each call looks at up to limit keys: objects that are missing, that nobody knows, or whose digest is another. It changes nothing.",
		},
		{
			ID: "forget-person", Method: http.MethodPost, Path: "/forgets", Summary: "Delete what is of one person", Right: right(access.Forget, access.People), Status: http.StatusAccepted,
			Notes: "Conversations of the person alone are ended and deleted, with their files and archived entries and output; where others write too, what the person wrote is emptied. " +
				"The sweep does it, step by step. One who is being forgotten already is not asked for again: the answer is that request.",
		},
		{ID: "list-forgets", Method: http.MethodGet, Path: "/forgets", Summary: "List requests to delete what is of a person, newest first", Right: right(access.List, access.People)},
		{ID: "get-forget", Method: http.MethodGet, Path: "/forgets/{id}", Summary: "Say how far a request to delete what is of a person is, what went, and what is left", Right: right(access.List, access.People)},
		{ID: "list-channels", Method: http.MethodGet, Path: "/channels", Summary: "List accounts of channels and how they do", Right: right(access.List, access.Channels)},
		{
			ID: "list-audit", Method: http.MethodGet, Path: "/audit", Summary: "List what was written through this API, newest first", Right: right(access.List, access.Audits),
			Notes: "There is no change without its entry. That of an agent or workflow is there before the change and says UNKNOWN until what came of it is known. An entry may appear behind newer ones: who asks again and again with since goes back a minute.",
		},
		{ID: "whoami", Method: http.MethodGet, Path: "/whoami", Summary: "Say who the caller is"},
		{ID: "version", Method: http.MethodGet, Path: "/version", Summary: "Say which version serves"},
	}
}
