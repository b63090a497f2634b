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
		serving.ServeHTTP(w, r)
		return
	}
	function.WriteProblem(w, http.StatusNotFound, "nothing is served at this path")
}
