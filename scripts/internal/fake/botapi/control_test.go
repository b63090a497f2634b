package botapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// Every refusal of the control API is JSON that says why, in words.
func TestControlErrors(t *testing.T) {
	w := newWorld(t, false, nil)
	for _, c := range []struct {
		method, path, body string
		status             int
		why                string
	}{
		{http.MethodGet, "nowhere", "", http.StatusNotFound, "there is no GET /_fake/nowhere: the routes are in scripts/internal/fake/botapi/README.md"},
		{http.MethodPut, "say", "{}", http.StatusNotFound, "there is no PUT /_fake/say"},
		{http.MethodPost, "say", "{not", http.StatusBadRequest, "invalid character"},
		{http.MethodPost, "say", `{"from":"ada"}`, http.StatusBadRequest, "this is no Say: "},
		{http.MethodGet, "files/none", "", http.StatusNotFound, "there is no such file"},
		{http.MethodPost, "faults", `{"on":"status","do":"drop"}`, http.StatusUnprocessableEntity, "known are: webhook drop, double, delay or reorder; send error, "},
	} {
		request, err := http.NewRequestWithContext(t.Context(), c.method, w.api.URL+"/_fake/"+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		var refused struct{ Error string }
		err = json.NewDecoder(response.Body).Decode(&refused)
		response.Body.Close()
		if err != nil || response.StatusCode != c.status || !strings.Contains(refused.Error, c.why) || response.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %d %q %v", c.method, c.path, response.StatusCode, refused.Error, err)
		}
	}
}
