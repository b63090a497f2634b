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
	} {
		method, path, _ := cutPattern(pattern)
		mux.HandleFunc(method+" "+Prefix+path, c.signedIn(handle))
	}
}
