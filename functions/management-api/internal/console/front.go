package console

import (
	"net/http"
	"strings"
)

// Front sends browsers that ask for the address alone to the console, and everything
// else to api.
func Front(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" && (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Authorization") == "" && strings.Contains(r.Header.Get("Accept"), "text/html") {
			http.Redirect(w, r, Prefix, http.StatusFound)
			return
		}
		api.ServeHTTP(w, r)
	})
}
