// Package resourcetest is an API server for tests: as much of one as agents and
// workflows need.
package resourcetest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

type object = map[string]any

// Cause is one thing that the server has against a resource.
type Cause struct {
	Field   string `json:"field"`
	Message string `json:"message"`
	Reason  string `json:"reason"`
}

// Server keeps the AiAgents and AiWorkflows of namespace agents: it lists in
// pages, keeps resource versions and generations, takes merge patches, and
// refuses writes of another version. What it does is what a real one does; the
// suite of package resource holds it to that.
type Server struct {
	*httptest.Server

	mu      sync.Mutex
	t       testing.TB
	version int
	objects map[string]object // plural/name
	patches []string          // plural/name of each status patch that was taken

	Lists            int                  // answered
	Page             int                  // items a page has at most
	Refuse           int                  // status of every answer, if not 0
	RefuseWorkflows  int                  // of every answer about workflows
	RefuseConfigMaps int                  // of every answer about ConfigMaps
	RefuseWrites     int                  // of every answer to a write
	Expired          bool                 // the next continuation is not kept any more
	Instead          string               // continuation that is given for one that is not kept
	Before           func(*http.Request)  // before an answer, under no lock
	Causes           func(object) []Cause // against a resource that is written; nil: none
}

// New starts a server that ends with the test.
func New(t testing.TB) *Server {
	s := &Server{t: t, objects: map[string]object{}, Page: 2}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

var kinds = map[string]string{"aiagents": "AiAgent", "aiworkflows": "AiWorkflow"}

// Put creates a resource, or changes its spec, as kubectl apply would.
func (s *Server) Put(plural, name string, spec string) {
	s.t.Helper()
	var parsed any
	if err := json.Unmarshal([]byte(spec), &parsed); err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[plural+"/"+name]
	if o == nil {
		o = s.fresh(plural, name, object{"annotations": object{"kubectl.kubernetes.io/last-applied-configuration": "{}"}})
	}
	o["spec"] = parsed
	s.stored(plural+"/"+name, o, true)
}

// fresh is a resource that is not stored yet.
func (s *Server) fresh(plural, name string, metadata object) object {
	metadata = maps.Clone(metadata)
	maps.Copy(metadata, object{
		"name": name, "namespace": "agents", "uid": fmt.Sprint("uid-", s.version+1), "generation": 0.0, "creationTimestamp": "2026-01-01T00:00:00Z",
		"managedFields": []any{object{"manager": "kubectl"}},
	})
	return object{"apiVersion": "tuluat.ai/v1alpha1", "kind": kinds[plural], "metadata": metadata}
}

func (s *Server) stored(name string, o object, changed bool) {
	s.version++
	meta := o["metadata"].(object)
	meta["resourceVersion"] = strconv.Itoa(s.version)
	if changed {
		meta["generation"] = meta["generation"].(float64) + 1
	}
	s.objects[name] = o
}

// PutConfigMap makes the ConfigMap hold data; what is no UTF-8 becomes binaryData.
func (s *Server) PutConfigMap(name string, data map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	texts, binary := object{}, object{}
	for key, value := range data {
		if utf8.ValidString(value) {
			texts[key] = value
		} else {
			binary[key] = base64.StdEncoding.EncodeToString([]byte(value))
		}
	}
	s.objects["configmaps/"+name] = object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": name, "namespace": "agents"}, "data": texts, "binaryData": binary}
}

// Remove removes a resource.
func (s *Server) Remove(plural, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, plural+"/"+name)
}

// Touch changes nothing of a resource but its version.
func (s *Server) Touch(plural, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored(plural+"/"+name, s.objects[plural+"/"+name], false)
}

// SetField sets a top-level field of a resource behind everybody's back.
func (s *Server) SetField(plural, name, field string, value any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[plural+"/"+name][field] = value
}

// Object reads a field of a resource, as it is stored.
func (s *Server) Object(plural, name, field string, into any) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	text, err := json.Marshal(s.objects[plural+"/"+name][field])
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// Patched returns the status patches taken since the last call.
func (s *Server) Patched() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.patches
	s.patches = nil
	return taken
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.Before != nil {
		s.Before(r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	path, ok := strings.CutPrefix(r.URL.Path, "/apis/tuluat.ai/v1alpha1/namespaces/agents/")
	if _, core := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/agents/configmaps/"); core {
		path, ok = strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/agents/")
	}
	plural, name, named := strings.Cut(path, "/")
	switch {
	case !ok || s.Refuse != 0:
		answer(w, max(s.Refuse, http.StatusNotFound), nil)
	case s.RefuseConfigMaps != 0 && plural == "configmaps":
		answer(w, s.RefuseConfigMaps, nil)
	case s.RefuseWorkflows != 0 && plural == "aiworkflows":
		answer(w, s.RefuseWorkflows, nil)
	case s.RefuseWrites != 0 && r.Method != http.MethodGet:
		answer(w, s.RefuseWrites, nil)
	case !named && r.Method == http.MethodGet:
		s.list(w, r, plural)
	case !named && r.Method == http.MethodPost:
		s.create(w, r, plural)
	default:
		s.one(w, r, plural, name)
	}
}

func (s *Server) one(w http.ResponseWriter, r *http.Request, plural, name string) {
	name, isStatus := strings.CutSuffix(name, "/status")
	o := s.objects[plural+"/"+name]
	switch {
	case o == nil:
		answer(w, http.StatusNotFound, nil)
	case r.Method == http.MethodGet:
		answer(w, http.StatusOK, o)
	case r.Method == http.MethodPatch && isStatus && merges(r):
		s.patchStatus(w, r, plural+"/"+name)
	case r.Method == http.MethodPatch && merges(r):
		patch, _ := body(r)
		s.change(w, r, plural+"/"+name, merged(clone(o), patch).(object))
	case r.Method == http.MethodPut:
		next, _ := body(r)
		if version, _ := next["metadata"].(object)["resourceVersion"].(string); version == "" {
			refuse(w, []Cause{{"metadata.resourceVersion", "Invalid value: 0: must be specified for an update", "FieldValueInvalid"}})
			return
		}
		s.change(w, r, plural+"/"+name, next)
	case r.Method == http.MethodDelete:
		options, _ := body(r)
		conditions, _ := options["preconditions"].(object)
		if version, ok := conditions["resourceVersion"]; ok && version != o["metadata"].(object)["resourceVersion"] {
			answer(w, http.StatusConflict, nil)
			return
		}
		delete(s.objects, plural+"/"+name)
		answer(w, http.StatusOK, object{"kind": "Status", "apiVersion": "v1", "status": "Success"})
	default:
		answer(w, http.StatusMethodNotAllowed, nil)
	}
}

func merges(r *http.Request) bool {
	return r.Header.Get("Content-Type") == "application/merge-patch+json"
}

func (s *Server) create(w http.ResponseWriter, r *http.Request, plural string) {
	sent, err := body(r)
	if err != nil {
		answer(w, http.StatusBadRequest, nil)
		return
	}
	metadata, _ := sent["metadata"].(object)
	name, _ := metadata["name"].(string)
	if s.objects[plural+"/"+name] != nil {
		answer(w, http.StatusConflict, object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "AlreadyExists", "code": http.StatusConflict})
		return
	}
	o := s.fresh(plural, name, metadata)
	if spec, ok := sent["spec"]; ok {
		o["spec"] = spec
	}
	if s.Causes != nil && len(s.Causes(o)) > 0 {
		refuse(w, s.Causes(o))
		return
	}
	s.keep(r, plural+"/"+name, o, true)
	answer(w, http.StatusCreated, o)
}

// keep stores a resource, unless that was only a try.
func (s *Server) keep(r *http.Request, name string, o object, changed bool) {
	version, was := s.version, s.objects[name]
	s.stored(name, o, changed)
	if r.URL.Query().Get("dryRun") == "All" {
		s.version = version
		if s.objects[name] = was; was == nil {
			delete(s.objects, name)
		}
	}
}

// change makes a resource what next says, of what a caller may say.
func (s *Server) change(w http.ResponseWriter, r *http.Request, name string, next object) {
	o := clone(s.objects[name])
	meta, sent := o["metadata"].(object), next["metadata"].(object)
	if version, _ := sent["resourceVersion"].(string); version != meta["resourceVersion"] {
		answer(w, http.StatusConflict, nil)
		return
	}
	for _, field := range []string{"labels", "annotations", "finalizers"} {
		delete(meta, field)
		if value, ok := sent[field]; ok {
			meta[field] = value
		}
	}
	changed := !reflect.DeepEqual(o["spec"], next["spec"])
	delete(o, "spec")
	if spec, ok := next["spec"]; ok {
		o["spec"] = spec
	}
	if s.Causes != nil && len(s.Causes(o)) > 0 {
		refuse(w, s.Causes(o))
		return
	}
	if reflect.DeepEqual(o, s.objects[name]) {
		answer(w, http.StatusOK, o)
		return
	}
	s.keep(r, name, o, changed)
	answer(w, http.StatusOK, o)
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, plural string) {
	s.Lists++
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(s.objects)), func(name string) bool { return !strings.HasPrefix(name, plural+"/") })
	from := 0
	if next := r.URL.Query().Get("continue"); next != "" {
		if s.Expired {
			s.Expired = false
			answer(w, http.StatusGone, object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": http.StatusGone, "metadata": object{"continue": s.Instead}})
			return
		}
		var err error
		if from, err = strconv.Atoi(next); err != nil {
			answer(w, http.StatusBadRequest, object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "BadRequest", "code": http.StatusBadRequest})
			return
		}
	}
	page := s.Page
	if limit, err := strconv.Atoi(r.URL.Query().Get("limit")); err == nil && limit > 0 {
		page = min(page, limit)
	}
	meta, items := object{"resourceVersion": strconv.Itoa(s.version)}, []any{}
	for i := from; i < len(names); i++ {
		if i == from+page {
			meta["continue"] = strconv.Itoa(i)
			break
		}
		items = append(items, s.objects[names[i]])
	}
	answer(w, http.StatusOK, object{"kind": "List", "apiVersion": "tuluat.ai/v1alpha1", "metadata": meta, "items": items})
}

func (s *Server) patchStatus(w http.ResponseWriter, r *http.Request, name string) {
	patch, err := body(r)
	if err != nil {
		answer(w, http.StatusBadRequest, nil)
		return
	}
	o := s.objects[name]
	sent, _ := patch["metadata"].(object)
	if sent["resourceVersion"] != o["metadata"].(object)["resourceVersion"] {
		answer(w, http.StatusConflict, nil)
		return
	}
	before, _ := o["status"].(object)
	after := merged(before, patch["status"]).(object)
	s.patches = append(s.patches, name)
	if o["status"] = after; !reflect.DeepEqual(before, after) {
		s.stored(name, o, false)
	}
	answer(w, http.StatusOK, o)
}

func body(r *http.Request) (object, error) {
	var sent object
	err := json.NewDecoder(r.Body).Decode(&sent)
	return sent, err
}

func clone(o object) object {
	text, err := json.Marshal(o)
	var copied object
	if err == nil {
		err = json.Unmarshal(text, &copied)
	}
	if err != nil { // it came as JSON
		panic(err)
	}
	return copied
}

// merged is RFC 7386.
func merged(target, patch any) any {
	fields, ok := patch.(object)
	if !ok {
		return patch
	}
	is, _ := target.(object)
	if is = maps.Clone(is); is == nil {
		is = object{}
	}
	for name, value := range fields {
		if value == nil {
			delete(is, name)
		} else {
			is[name] = merged(is[name], value)
		}
	}
	return is
}

func refuse(w http.ResponseWriter, causes []Cause) {
	answer(w, http.StatusUnprocessableEntity, object{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": http.StatusUnprocessableEntity, "details": object{"causes": causes},
	})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if body != nil {
		_ = json.NewEncoder(w).Encode(body) // whoever asked is gone
	}
}
