package kubetest

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// event is one change as the watches tell it.
type event struct {
	version  int64
	kind     string
	resource string
	object   object
}

func newEvent(version int64, kind, resource string, o object) event {
	return event{version: version, kind: kind, resource: resource, object: o.DeepCopyObject().(object)}
}

// Forgotten makes every version up to now too old to watch or page from, as time
// does: a watch from one is answered 410.
func (s *Server) Forgotten() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.oldest = s.version
}

// watch sends what has happened since the version that was asked for; without
// one, or with 0, first what is there.
func (s *Server) watch(c *Call, k kind, res string) {
	q := c.Request.Query
	wanted, err := selectorsOf(c.Request)
	if err != nil {
		s.answer(c, 0)(nil, err)
		return
	}
	from, err := strconv.ParseInt(q.Get("resourceVersion"), 10, 64)
	s.mu.Lock()
	if err == nil && from > 0 && from < s.oldest {
		s.mu.Unlock()
		writeStatus(c.w, Expired())
		return
	}
	var first []object
	if initial := q.Get("sendInitialEvents") == "true"; err != nil || from == 0 || initial {
		from = s.version
		for _, name := range slices.Sorted(maps.Keys(s.objects[res])) {
			if o := s.objects[res][name]; wanted(o) {
				first = append(first, o.DeepCopyObject().(object))
			}
		}
	}
	seen := 0
	for seen < len(s.events) && s.events[seen].version <= from {
		seen++
	}
	s.mu.Unlock()

	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(http.StatusOK)
	sent := 0
	send := func(kind string, o any) bool {
		sent++
		return writeEvent(c.w, kind, o) == nil && (c.watchLimit == 0 || sent < c.watchLimit)
	}
	_ = http.NewResponseController(c.w).Flush()
	for _, o := range first {
		if !send("ADDED", o) {
			return
		}
	}
	if q.Get("sendInitialEvents") == "true" {
		mark := k.empty()
		mark.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: k.group, Version: "v1", Kind: k.name})
		mark.SetResourceVersion(strconv.FormatInt(from, 10))
		mark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		if writeEvent(c.w, "BOOKMARK", mark) != nil {
			return
		}
	}
	var end <-chan time.Time
	if seconds, _ := strconv.Atoi(q.Get("timeoutSeconds")); seconds > 0 {
		timer := time.NewTimer(time.Duration(seconds) * time.Second)
		defer timer.Stop()
		end = timer.C
	}
	for {
		s.mu.Lock()
		changed := s.changed
		news := s.events[seen:len(s.events):len(s.events)]
		seen = len(s.events)
		s.mu.Unlock()
		for _, e := range news {
			if e.resource == res && wanted(e.object) && !send(e.kind, e.object) {
				return
			}
		}
		select {
		case <-changed:
		case <-end:
			return
		case <-c.r.Context().Done():
			return
		case <-s.ctx.Done():
			return
		}
	}
}

func writeEvent(w http.ResponseWriter, kind string, o any) error {
	if st, ok := o.(metav1.Status); ok {
		st.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		o = st
	}
	text := mustJSON(struct {
		Type   string `json:"type"`
		Object any    `json:"object"`
	}{kind, o})
	if _, err := io.WriteString(w, string(text)+"\n"); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}
