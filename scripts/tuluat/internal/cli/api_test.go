package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"

	"tuluat.ai/harness/scripts/tuluat/internal/cli"
)

const apiToken = "management-token"

// fake is the management API as its contract words it: agents are kept, all
// else is what a test says.
type fake struct {
	t   *testing.T
	url string
	mux *http.ServeMux

	mu       sync.Mutex
	objects  map[string]map[string]any // by name
	revision int
	requests []string // method, path and query
	bodies   []string
	headers  []http.Header
	status   map[string]any // of every agent
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{t: t, mux: http.NewServeMux(), objects: map[string]map[string]any{}, status: map[string]any{}}
	f.mux.HandleFunc("GET /api/v1/agents", f.list)
	f.mux.HandleFunc("POST /api/v1/agents", f.put)
	f.mux.HandleFunc("GET /api/v1/agents/{name}", f.get)
	f.mux.HandleFunc("PUT /api/v1/agents/{name}", f.put)
	f.mux.HandleFunc("DELETE /api/v1/agents/{name}", f.remove)
	f.mux.HandleFunc("PATCH /api/v1/agents/{name}/features", f.features)
	f.say("GET /api/v1/whoami", 200, `{"name":"ann","groups":["tuluat-operators"]}`)
	f.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { f.problem(w, 404, "there is no such thing") })
	server := httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		f.t.Error(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	f.mu.Lock()
	f.requests = append(f.requests, r.Method+" "+r.URL.RequestURI())
	f.bodies = append(f.bodies, string(body))
	f.headers = append(f.headers, r.Header.Clone())
	f.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer "+apiToken {
		w.Header().Set("WWW-Authenticate", "Bearer")
		f.problem(w, 401, "the token is nobody's")
		return
	}
	f.mux.ServeHTTP(w, r)
}

// say answers a request always the same way.
func (f *fake) say(pattern string, status int, body string) {
	f.mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
		kind := "application/json"
		if status >= 400 {
			kind = "application/problem+json"
		}
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		io.WriteString(w, body)
	})
}

func (f *fake) problem(w http.ResponseWriter, status int, detail string, fields ...string) {
	errors := []map[string]string{}
	for i := 0; i+1 < len(fields); i += 2 {
		errors = append(errors, map[string]string{"pointer": fields[i], "detail": fields[i+1]})
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	f.write(w, map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "detail": detail, "requestId": "req_1", "errors": errors})
}

func (f *fake) write(w io.Writer, value any) {
	if err := json.NewEncoder(w).Encode(value); err != nil {
		f.t.Error(err)
	}
}

func (f *fake) list(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	items := []any{}
	for _, name := range slices.Sorted(mapsKeys(f.objects)) {
		items = append(items, f.objects[name])
	}
	f.write(w, map[string]any{"items": items})
}

func mapsKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func (f *fake) get(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o, ok := f.objects[r.PathValue("name")]
	if !ok {
		f.problem(w, 404, "there is no agent of this name")
		return
	}
	f.answer(w, 200, o)
}

func (f *fake) answer(w http.ResponseWriter, status int, o map[string]any) {
	w.Header().Set("ETag", `"`+o["metadata"].(map[string]any)["resourceVersion"].(string)+`"`)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	f.write(w, o)
}

// put creates or replaces; like the API server it fills in defaults, and leaves
// what is the same as it is.
func (f *fake) put(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	text, err := io.ReadAll(r.Body)
	var o map[string]any
	if err == nil {
		err = yaml.Unmarshal(text, &o)
	}
	if err != nil {
		f.t.Errorf("%s: %v", text, err)
	}
	metadata := o["metadata"].(map[string]any)
	name := metadata["name"].(string)
	spec := o["spec"].(map[string]any)
	if spec["colour"] != nil {
		f.problem(w, 422, "the agent is not valid", "#/spec/colour", "is no field: remove it", "#/spec/harness/channels/1/name", "is \x1b[31mmissing")
		return
	}
	old, exists := f.objects[name]
	switch match := r.Header.Get("If-Match"); {
	case r.Method == http.MethodPost && exists:
		f.problem(w, 409, "there is an agent of this name")
		return
	case r.Method == http.MethodPut && match == "":
		f.problem(w, 428, "If-Match is needed")
		return
	case r.Method == http.MethodPut && match != "*" && match != `"`+old["metadata"].(map[string]any)["resourceVersion"].(string)+`"`:
		f.problem(w, 412, "it has been changed since")
		return
	}
	if block, ok := spec["harness"].(map[string]any); ok && block["enabled"] == nil {
		block["enabled"] = true
	}
	status := 200
	generation := 1
	if exists {
		before := old["metadata"].(map[string]any)
		generation = before["generation"].(int)
		if !same(old["spec"], spec) {
			generation++
		}
		if same(old["spec"], spec) && same(before["labels"], metadata["labels"]) && same(before["annotations"], metadata["annotations"]) {
			f.answer(w, 200, old)
			return
		}
	} else {
		status = 201
	}
	f.revision++
	metadata["generation"], metadata["resourceVersion"] = generation, strconv.Itoa(f.revision)
	o["status"] = f.status
	if r.URL.Query().Get("dryRun") != "true" {
		f.objects[name] = o
	}
	f.answer(w, status, o)
}

func same(a, b any) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}

func (f *fake) remove(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Header.Get("If-Match") == "" {
		f.problem(w, 428, "If-Match is needed")
		return
	}
	delete(f.objects, r.PathValue("name"))
	w.WriteHeader(204)
}

func (f *fake) features(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.objects[r.PathValue("name")]
	var on map[string]bool
	if err := json.NewDecoder(r.Body).Decode(&on); err != nil {
		f.t.Error(err)
	}
	for name, is := range on {
		block, ok := o["spec"].(map[string]any)[name].(map[string]any)
		if !ok {
			f.problem(w, 422, "the request is not valid", "#/"+name, "is a block that the agent does not have")
			return
		}
		if block["enabled"] != is {
			block["enabled"] = is
			f.revision++
			o["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(f.revision)
		}
	}
	f.answer(w, 200, o)
}

// agent puts one there.
func (f *fake) agent(name, text string) {
	f.t.Helper()
	var o map[string]any
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision++
	metadata, ok := o["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
	}
	metadata["name"], metadata["resourceVersion"], metadata["generation"], metadata["creationTimestamp"] = name, strconv.Itoa(f.revision), 1, "2026-01-02T03:04:05Z"
	o["apiVersion"], o["kind"], o["metadata"] = "tuluat.ai/v1alpha1", "AiAgent", metadata
	f.objects[name] = o
}

// asked returns the requests so far and forgets them.
func (f *fake) asked() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.requests
	f.requests, f.bodies, f.headers = nil, nil, nil
	return all
}

func (f *fake) env(more ...string) map[string]string {
	env := map[string]string{"TULUAT_URL": f.url, "TULUAT_TOKEN": apiToken}
	for i := 0; i+1 < len(more); i += 2 {
		env[more[i]] = more[i+1]
	}
	return env
}

// sink is a terminal that can be read while it is written.
type sink struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// run runs the CLI against the fake.
func (f *fake) run(args ...string) result {
	f.t.Helper()
	return f.with(f.env(), "", args...)
}

func (f *fake) with(env map[string]string, stdin string, args ...string) result {
	f.t.Helper()
	return f.through(f.t.Context(), env, strings.NewReader(stdin), args...)
}

func (f *fake) through(ctx context.Context, env map[string]string, stdin io.Reader, args ...string) result {
	f.t.Helper()
	var out, errOut sink
	code := cli.Main(ctx, args, cli.System{Stdin: stdin, Stdout: &out, Stderr: &errOut, Getenv: func(name string) string { return env[name] }, Name: env["NAME"]})
	r := result{code, out.String(), errOut.String()}
	if strings.Contains(r.out+r.errOut, apiToken) {
		f.t.Errorf("%v prints the token: %+v", args, r)
	}
	if strings.ContainsAny(r.out+r.errOut, "\x1b\x07\u202e\u009b") {
		f.t.Errorf("%v prints control characters: %+v", args, r)
	}
	return r
}

func write(t *testing.T, folder, name, text string) string {
	t.Helper()
	file := filepath.Join(folder, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func agentYAML(name, more string) string {
	return fmt.Sprintf("apiVersion: tuluat.ai/v1alpha1\nkind: AiAgent\nmetadata:\n  name: %s\nspec:\n  description: An agent.\n%s", name, more)
}

// runRaw runs the CLI and looks at nothing.
func runRaw(f *fake, out, errOut io.Writer, args ...string) int {
	env := f.env()
	return cli.Main(f.t.Context(), args, cli.System{Stdin: strings.NewReader(""), Stdout: out, Stderr: errOut, Getenv: func(name string) string { return env[name] }})
}
