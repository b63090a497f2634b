package view

// Problem is why a request was not done: RFC 9457.
type Problem struct {
	Type      string         `json:"type" doc:"about:blank: the status says what kind of problem it is"`
	Title     string         `json:"title" doc:"the status in words"`
	Status    int            `json:"status"`
	Detail    string         `json:"detail" doc:"what went wrong, for people"`
	RequestID string         `json:"requestId" doc:"to find the request in the logs by"`
	TraceID   string         `json:"traceId,omitempty" doc:"the trace that the request is part of, where requests are traced"`
	Errors    []ProblemField `json:"errors,omitempty" doc:"what is wrong with which part of the request"`
	Approvals []Approval     `json:"approvals,omitempty" doc:"of a decision that was not taken: the approval as it is decided already, or those that wait, of which one must be named"`
}

// ProblemField is one part of a request and what is wrong with it.
type ProblemField struct {
	Pointer string `json:"pointer" doc:"a JSON pointer into the body, as in #/spec/harness/type; else the place and the name of a parameter, as in query/limit"`
	Detail  string `json:"detail"`
}
