package console

import "net/http"

// pages registers what needs a sign-in.
func (c *console) pages(mux *http.ServeMux) {
	for pattern, handle := range map[string]func(*page) error{
		"GET {$}":        (*page).home,
		"GET home/needs": (*page).homeNeeds,

		"GET live/approvals":     (*page).liveApprovals,
		"GET live/sessions/{id}": (*page).liveSession,

		"GET approvals":                (*page).approvals,
		"GET approvals/{id}":           (*page).approval,
		"POST approvals/{id}/decision": (*page).decide,

		"GET sessions":               (*page).sessions,
		"POST sessions":              (*page).startSession,
		"GET sessions/{id}":          (*page).session,
		"GET sessions/{id}/timeline": (*page).sessionTimeline,
		"POST sessions/{id}/send":    (*page).sendMessage,
		"POST sessions/{id}/reply":   (*page).reply,
		"POST sessions/{id}/cancel":  (*page).cancelSession,
		"POST sessions/{id}/pause":   (*page).pauseSession,
		"POST sessions/{id}/resume":  (*page).resumeSession,

		"GET agents":                  (*page).agents,
		"GET agents/new":              agentKind.create,
		"POST agents/new":             agentKind.put,
		"GET agents/{name}":           (*page).agent,
		"GET agents/{name}/edit":      agentKind.edit,
		"POST agents/{name}/edit":     agentKind.put,
		"POST agents/{name}/delete":   agentKind.remove,
		"POST agents/{name}/features": (*page).switchFeature,
		"POST agents/{name}/halt":     (*page).haltAgent,
		"GET halt":                    (*page).halt,
		"POST halt":                   (*page).haltAll,

		"GET workflows":                (*page).workflows,
		"GET workflows/new":            workflowKind.create,
		"POST workflows/new":           workflowKind.put,
		"GET workflows/{name}":         (*page).workflow,
		"GET workflows/{name}/edit":    workflowKind.edit,
		"POST workflows/{name}/edit":   workflowKind.put,
		"POST workflows/{name}/delete": workflowKind.remove,
		"POST workflows/{name}/runs":   (*page).startRun,

		"GET sandboxes":                 (*page).sandboxes,
		"GET sandboxes/{id}":            (*page).sandbox,
		"GET sandboxes/{id}/commands":   (*page).sandboxOutput,
		"POST sandboxes/{id}/terminate": (*page).terminate,
		"POST sandboxes/{id}/commands":  (*page).run,

		"GET channels":                  (*page).channels,
		"GET channels/set-up/{channel}": (*page).setUpChannel,
		"GET deadletters":               (*page).letters,
		"GET deadletters/{id}":          (*page).letter,
		"POST deadletters/{id}/replay":  (*page).replay,
		"POST deadletters/{id}/discard": (*page).discard,
		"GET logs":                      (*page).logs,
		"GET logs/download":             (*page).downloadLogs,
		"GET live/logs":                 (*page).liveLogs,
		"GET usage":                     (*page).usage,
		"GET metrics":                   (*page).metrics,
	} {
		method, path, _ := cutPattern(pattern)
		mux.HandleFunc(method+" "+Prefix+path, c.signedIn(handle))
	}
}
