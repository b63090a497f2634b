package cluster_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// server is as much of an API server as the function speaks to: it lists in
// pages, keeps resource versions, takes merge patches of status, and refuses
// those of another version.
type server struct {
	*httptest.Server
	t               *testing.T
	mu              sync.Mutex
	version         int
	objects         map[string]map[string]any // plural/name
	patches         []string                  // plural/name of each status patch that was taken
	lists           int
	page            int                 // items a page has at most
	refuse          int                 // status of every answer, if not 0
	refuseWorkflows int                 // of every answer about workflows
	expired         bool                // the next continuation is not kept any more
	before          func(*http.Request) // before an answer, under no lock
}

func newServer(t *testing.T) *server {
	s := &server{t: t, objects: map[string]map[string]any{}, page: 2}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// put creates a resource, or changes its spec, as kubectl apply would.
func (s *server) put(plural, name string, spec string) {
	s.t.Helper()
	var parsed any
	if err := json.Unmarshal([]byte(spec), &parsed); err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	kind := map[string]string{"aiagents": "AiAgent", "aiworkflows": "AiWorkflow"}[plural]
	o := s.objects[plural+"/"+name]
	if o == nil {
		o = map[string]any{"apiVersion": "tuluat.ai/v1alpha1", "kind": kind, "metadata": map[string]any{
			"name": name, "namespace": "agents", "uid": fmt.Sprint("uid-", s.version), "generation": 0.0, "creationTimestamp": "2026-01-01T00:00:00Z",
			"managedFields": []any{map[string]any{"manager": "kubectl"}},
			"annotations":   map[string]any{"kubectl.kubernetes.io/last-applied-configuration": "{}"},
		}}
		s.objects[plural+"/"+name] = o
	}
	meta := o["metadata"].(map[string]any)
	meta["generation"] = meta["generation"].(float64) + 1
	meta["resourceVersion"] = strconv.Itoa(s.version)
	o["spec"] = parsed
}

func (s *server) remove(plural, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, plural+"/"+name)
}

// touch changes nothing of a resource but its version.
func (s *server) touch(plural, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.objects[plural+"/"+name]["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(s.version)
}

func (s *server) status(plural, name string, into any) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	text, err := json.Marshal(s.objects[plural+"/"+name]["status"])
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// patched returns the patches taken since the last call.
func (s *server) patched() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.patches
	s.patches = nil
	return taken
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.before != nil {
		s.before(r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	path, ok := strings.CutPrefix(r.URL.Path, "/apis/tuluat.ai/v1alpha1/namespaces/agents/")
	if !ok || s.refuse != 0 {
		answer(w, max(s.refuse, http.StatusNotFound), nil)
		return
	}
	if s.refuseWorkflows != 0 && strings.HasPrefix(path, "aiworkflows") {
		answer(w, s.refuseWorkflows, nil)
		return
	}
	name, isStatus := strings.CutSuffix(path, "/status")
	switch {
	case r.Method == http.MethodGet && !strings.Contains(path, "/"):
		s.list(w, r, path)
	case s.objects[name] == nil:
		answer(w, http.StatusNotFound, nil)
	case r.Method == http.MethodGet:
		answer(w, http.StatusOK, s.objects[name])
	case r.Method == http.MethodPatch && isStatus && r.Header.Get("Content-Type") == "application/merge-patch+json":
		s.patch(w, r, name)
	default:
		answer(w, http.StatusMethodNotAllowed, nil)
	}
}

func (s *server) list(w http.ResponseWriter, r *http.Request, plural string) {
	s.lists++
	var names []string
	for name := range s.objects {
		if strings.HasPrefix(name, plural+"/") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	from := 0
	if next := r.URL.Query().Get("continue"); next != "" {
		if s.expired {
			s.expired = false
			answer(w, http.StatusGone, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": http.StatusGone})
			return
		}
		from, _ = strconv.Atoi(next)
	}
	meta, items := map[string]any{"resourceVersion": strconv.Itoa(s.version)}, []any{}
	for i := from; i < len(names); i++ {
		if i == from+s.page {
			meta["continue"] = strconv.Itoa(i)
			break
		}
		items = append(items, s.objects[names[i]])
	}
	answer(w, http.StatusOK, map[string]any{"kind": "List", "apiVersion": "tuluat.ai/v1alpha1", "metadata": meta, "items": items})
}

func (s *server) patch(w http.ResponseWriter, r *http.Request, name string) {
	body, _ := io.ReadAll(r.Body)
	var patch struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Status map[string]any `json:"status"`
	}
	if err := json.Unmarshal(body, &patch); err != nil {
		answer(w, http.StatusBadRequest, nil)
		return
	}
	o := s.objects[name]
	meta := o["metadata"].(map[string]any)
	if patch.Metadata.ResourceVersion != meta["resourceVersion"] {
		answer(w, http.StatusConflict, nil)
		return
	}
	is, _ := o["status"].(map[string]any)
	if is == nil {
		is = map[string]any{}
	}
	before, _ := json.Marshal(is)
	for field, value := range patch.Status {
		if value == nil {
			delete(is, field)
		} else {
			is[field] = value
		}
	}
	o["status"] = is
	s.patches = append(s.patches, name)
	if after, _ := json.Marshal(is); !bytes.Equal(before, after) {
		s.version++
		meta["resourceVersion"] = strconv.Itoa(s.version)
	}
	answer(w, http.StatusOK, o)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if body != nil {
		_ = json.NewEncoder(w).Encode(body)
	}
}
