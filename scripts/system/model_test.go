//go:build system

package system_test

import (
	"flag"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/http/httptest"

	"tuluat.ai/harness/scripts/internal/fake"
	"tuluat.ai/harness/shared/harness"
)

var flagAPI = flag.String("api", "", "whose wire the played model speaks: openai or anthropic; empty: by the name of the test")

const modelKey = "key-of-the-played-model"

// providerOf says whose wire a test has its model speak: some the one, some the other,
// and each always the same.
func providerOf(test string) (harness.Provider, error) {
	switch p := harness.Provider(*flagAPI); p {
	case harness.ProviderOpenAI, harness.ProviderAnthropic:
		return p, nil
	case "":
	default:
		return "", fmt.Errorf("-api is %q: want %s or %s", p, harness.ProviderOpenAI, harness.ProviderAnthropic)
	}
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(test))
	if sum.Sum32()%2 == 0 {
		return harness.ProviderOpenAI, nil
	}
	return harness.ProviderAnthropic, nil
}

// startModel starts the played model. When the world ends, no request to it may have
// broken a rule of its wire, whatever was killed in between.
func (w *world) startModel() {
	var err error
	w.provider, err = providerOf(w.t.Name())
	w.must(err)
	w.t.Logf("the model speaks the wire of %s", w.provider)
	w.model = fake.NewModel(fake.ModelOptions{Key: modelKey, Script: w.plan.script, Thinks: true})
	var handler http.Handler = w.model
	if w.plan.atModel != nil {
		handler = w.plan.atModel(handler)
	}
	server := httptest.NewServer(handler)
	w.modelURL = server.URL + "/v1"
	w.t.Cleanup(func() {
		server.Close()
		faults := w.model.Faults()
		w.t.Logf("%d requests to the model, rules broken: %v", w.model.Count(), faults)
		if len(faults) == 0 {
			return
		}
		w.t.Errorf("requests to the model broke rules of its wire: %v", faults)
		for _, r := range w.model.Requests() {
			if r.Refused != "" {
				w.t.Errorf("the first that is remembered: %s: %s\n%.4000s", r.Rule, r.Refused, r.Body)
				return
			}
		}
	})
}
