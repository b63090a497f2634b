package devcluster

import (
	"net/http"

	"tuluat.ai/harness/shared/function"
)

// serveGateway routes by the annotation of public Services: their paths and
// nothing else are reachable from outside. The longest one has a request.
func (c *Cluster) serveGateway(w http.ResponseWriter, r *http.Request) {
	var serving *service
	longest := ""
	for _, s := range c.services {
		if p := s.spec.Serves(r.URL.Path); len(p) > len(longest) {
			serving, longest = s, p
		}
	}
	if serving != nil {
		if c.o.OnRequest != nil {
			w = &answered{ResponseWriter: w, tell: func(status int) { c.o.OnRequest(r, status) }}
		}
		serving.ServeHTTP(w, r)
		return
	}
	function.WriteProblem(w, http.StatusNotFound, "nothing is served at this path")
}

// answered tells the status of an answer once.
type answered struct {
	http.ResponseWriter
	tell func(status int)
}

// Unwrap lets streams flush.
func (a *answered) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader tells the status, unless more of the answer follows it.
func (a *answered) WriteHeader(status int) {
	if status >= http.StatusOK && a.tell != nil {
		a.tell(status)
		a.tell = nil
	}
	a.ResponseWriter.WriteHeader(status)
}
