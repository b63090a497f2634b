package devcluster

import (
	"net/http"
	"strings"

	"tuluat.ai/harness/scripts/internal/manifest"
	"tuluat.ai/harness/shared/function"
)

// serveGateway routes by the annotation of public Services: their path and
// nothing else is reachable from outside.
func (c *Cluster) serveGateway(w http.ResponseWriter, r *http.Request) {
	for _, s := range c.services {
		if s.spec.Public() && strings.HasPrefix(r.URL.Path, s.spec.Annotations[manifest.PublicPath]) {
			s.ServeHTTP(w, r)
			return
		}
	}
	function.WriteProblem(w, http.StatusNotFound, "nothing is served at this path")
}
