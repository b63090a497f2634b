package kubetest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
)

type object interface {
	runtime.Object
	metav1.Object
}

type kind struct {
	group, name string
	namespaced  bool
	empty       func() object
}

func kindOf(resource string) (kind, bool) {
	switch resource {
	case "pods":
		return kind{"", "Pod", true, func() object { return &corev1.Pod{} }}, true
	case "persistentvolumeclaims":
		return kind{"", "PersistentVolumeClaim", true, func() object { return &corev1.PersistentVolumeClaim{} }}, true
	case "networkpolicies":
		return kind{"networking.k8s.io", "NetworkPolicy", true, func() object { return &networkingv1.NetworkPolicy{} }}, true
	case "namespaces":
		return kind{"", "Namespace", false, func() object { return &corev1.Namespace{} }}, true
	case "configmaps":
		return kind{"", "ConfigMap", true, func() object { return &corev1.ConfigMap{} }}, true
	case "events":
		return kind{"", "Event", true, func() object { return &corev1.Event{} }}, true
	case "services":
		return kind{"", "Service", true, func() object { return &corev1.Service{} }}, true
	case "nodes":
		return kind{"", "Node", false, func() object { return &corev1.Node{} }}, true
	case "runtimeclasses":
		return kind{"node.k8s.io", "RuntimeClass", false, func() object { return &nodev1.RuntimeClass{} }}, true
	case "storageclasses":
		return kind{"storage.k8s.io", "StorageClass", false, func() object { return &storagev1.StorageClass{} }}, true
	}
	return kind{}, false
}

func newNamespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}
}

func key(namespace, name string) string { return namespace + "/" + name }

func resource(k kind, name string) schema.GroupResource {
	return schema.GroupResource{Group: k.group, Resource: name}
}

func (s *Server) handle(c *Call) {
	req := c.Request
	base, sub, _ := strings.Cut(req.Resource, "/")
	k, ok := kindOf(base)
	if !ok || req.group != k.group {
		writeStatus(c.w, notFoundPath())
		return
	}
	switch {
	case req.Resource == "pods/exec":
		s.exec(c)
		return
	case req.Resource == "pods/log":
		s.podLog(c)
		return
	case sub != "" && sub != "status":
		writeStatus(c.w, notFoundPath())
		return
	}
	switch req.Verb {
	case "get":
		s.answer(c, http.StatusOK)(s.get(k, base, req))
	case "list":
		s.list(c, k, base)
	case "watch":
		s.watch(c, k, base)
	case "create":
		s.answer(c, http.StatusCreated)(s.create(k, base, req))
	case "update":
		s.answer(c, http.StatusOK)(s.update(k, base, req))
	case "patch":
		s.answer(c, http.StatusOK)(s.patch(k, base, req))
	case "delete":
		s.answer(c, http.StatusOK)(s.delete(k, base, req))
	default:
		writeStatus(c.w, apierrors.NewMethodNotSupported(resource(k, base), req.Verb).Status())
	}
}

func (s *Server) answer(c *Call, code int) func(object, error) {
	return func(o object, err error) {
		if err != nil {
			status, ok := err.(apierrors.APIStatus)
			if !ok {
				status = apierrors.NewBadRequest(err.Error())
			}
			writeStatus(c.w, status.Status())
			return
		}
		c.w.Header().Set("Content-Type", "application/json")
		c.w.WriteHeader(code)
		_, _ = c.w.Write(mustJSON(o))
	}
}

func mustJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil { // the API's own types always marshal
		panic(err)
	}
	return text
}

func nameIn(body []byte) string {
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return ""
	}
	if m, ok := o.(metav1.Object); ok {
		return m.GetName()
	}
	return ""
}

// Create stores an object without a request, as someone else would.
func (s *Server) Create(resource string, o object) {
	s.t.Helper()
	k, ok := kindOf(resource)
	if !ok {
		s.t.Fatalf("kubetest knows no %s", resource)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(k, resource, o.DeepCopyObject().(object), "ADDED")
}

// Pods returns the Pods that exist, by name.
func (s *Server) Pods() []corev1.Pod {
	return list[corev1.Pod](s, "pods")
}

// Policies returns the NetworkPolicies that exist, by name.
func (s *Server) Policies() []networkingv1.NetworkPolicy {
	return list[networkingv1.NetworkPolicy](s, "networkpolicies")
}

// Claims returns the PersistentVolumeClaims that exist, by name.
func (s *Server) Claims() []corev1.PersistentVolumeClaim {
	return list[corev1.PersistentVolumeClaim](s, "persistentvolumeclaims")
}

func list[T any](s *Server, resource string) []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []T
	for _, name := range slices.Sorted(maps.Keys(s.objects[resource])) {
		all = append(all, *any(s.objects[resource][name].DeepCopyObject()).(*T))
	}
	return all
}

// store sets identity and version, and tells the watches. s.mu is held.
func (s *Server) store(k kind, resource string, o object, event string) {
	s.version++
	if o.GetUID() == "" {
		o.SetUID(types.UID(fmt.Sprintf("%08x-0000-4000-8000-000000000000", s.version)))
	}
	if t := o.GetCreationTimestamp(); t.IsZero() {
		o.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	}
	o.SetResourceVersion(strconv.FormatInt(s.version, 10))
	version := "v1"
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: k.group, Version: version, Kind: k.name})
	if s.objects[resource] == nil {
		s.objects[resource] = map[string]object{}
	}
	name := key(o.GetNamespace(), o.GetName())
	if event == "DELETED" {
		delete(s.objects[resource], name)
	} else {
		s.objects[resource][name] = o
	}
	s.events = append(s.events, newEvent(s.version, event, resource, o))
	s.wake()
}

func (s *Server) get(k kind, res string, req *Request) (object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[res][key(req.Namespace, req.Name)]
	if !ok {
		return nil, apierrors.NewNotFound(resource(k, res), req.Name)
	}
	return o.DeepCopyObject().(object), nil
}

func decode(k kind, body []byte) (object, error) {
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if o.GetObjectKind().GroupVersionKind().Kind != k.name {
		return nil, apierrors.NewBadRequest("the object in the body is none of " + k.name)
	}
	return o.(object), nil
}

func (s *Server) create(k kind, res string, req *Request) (object, error) {
	o, err := decode(k, req.Body)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.GetName() == "" && o.GetGenerateName() != "" {
		o.SetName(fmt.Sprintf("%s%05x", o.GetGenerateName(), s.version+1))
	}
	if k.namespaced {
		if o.GetNamespace() == "" {
			o.SetNamespace(req.Namespace)
		}
		ns, ok := s.objects["namespaces"][key("", req.Namespace)]
		if !ok {
			return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, req.Namespace)
		}
		if ns.(*corev1.Namespace).Status.Phase == corev1.NamespaceTerminating {
			return nil, &apierrors.StatusError{ErrStatus: NamespaceTerminating(o.GetName(), req.Namespace)}
		}
	}
	o.SetUID("")
	o.SetCreationTimestamp(metav1.Time{})
	o.SetDeletionTimestamp(nil)
	if bad := validation.ValidateObjectMetaAccessor(o, k.namespaced, validation.NameIsDNSSubdomain, field.NewPath("metadata")); len(bad) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: k.group, Kind: k.name}, o.GetName(), bad)
	}
	if _, taken := s.objects[res][key(o.GetNamespace(), o.GetName())]; taken {
		return nil, apierrors.NewAlreadyExists(resource(k, res), o.GetName())
	}
	if pod, ok := o.(*corev1.Pod); ok {
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSGuaranteed}
	}
	dry := len(req.Query["dryRun"]) > 0
	if !dry {
		s.store(k, res, o, "ADDED")
		if pod, ok := o.(*corev1.Pod); ok {
			s.live(pod)
		}
	}
	return o.DeepCopyObject().(object), nil
}

func (s *Server) update(k kind, res string, req *Request) (object, error) {
	o, err := decode(k, req.Body)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replace(k, res, req, o)
}

// replace stores o over what is there. s.mu is held.
func (s *Server) replace(k kind, res string, req *Request, o object) (object, error) {
	was, ok := s.objects[res][key(req.Namespace, req.Name)]
	if !ok {
		return nil, apierrors.NewNotFound(resource(k, res), req.Name)
	}
	if o.GetUID() != "" && o.GetUID() != was.GetUID() {
		return nil, conflict(k, res, req.Name, fmt.Sprintf("Precondition failed: UID in precondition: %v, UID in object meta: %v", o.GetUID(), was.GetUID()))
	}
	if v := o.GetResourceVersion(); v != "" && v != was.GetResourceVersion() {
		return nil, conflict(k, res, req.Name, "the object has been modified; please apply your changes to the latest version and try again")
	}
	o.SetNamespace(was.GetNamespace())
	o.SetName(was.GetName())
	o.SetUID(was.GetUID())
	o.SetCreationTimestamp(was.GetCreationTimestamp())
	o.SetDeletionTimestamp(was.GetDeletionTimestamp())
	s.store(k, res, o, "MODIFIED")
	return o.DeepCopyObject().(object), nil
}

func conflict(k kind, res, name, why string) error {
	return apierrors.NewConflict(resource(k, res), name, fmt.Errorf("%s", why))
}

// patch knows merge and strategic merge patches.
func (s *Server) patch(k kind, res string, req *Request) (object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, ok := s.objects[res][key(req.Namespace, req.Name)]
	if !ok {
		return nil, apierrors.NewNotFound(resource(k, res), req.Name)
	}
	var text []byte
	var err error
	switch form := types.PatchType(strings.TrimSpace(strings.Split(req.Header.Get("Content-Type"), ";")[0])); form {
	case types.StrategicMergePatchType:
		text, err = strategicpatch.StrategicMergePatch(mustJSON(was), req.Body, k.empty())
	case types.MergePatchType:
		var doc, change map[string]any
		if err = json.Unmarshal(mustJSON(was), &doc); err == nil {
			if err = json.Unmarshal(req.Body, &change); err == nil {
				text = mustJSON(merge(doc, change))
			}
		}
	default:
		err = fmt.Errorf("kubetest knows no patch of type %q", form)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	o := k.empty()
	if err := json.Unmarshal(text, o); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return s.replace(k, res, req, o)
}

// merge applies an RFC 7396 merge patch to doc.
func merge(doc, change map[string]any) map[string]any {
	if doc == nil {
		doc = map[string]any{}
	}
	for name, value := range change {
		switch value := value.(type) {
		case nil:
			delete(doc, name)
		case map[string]any:
			inner, _ := doc[name].(map[string]any)
			doc[name] = merge(inner, value)
		default:
			doc[name] = value
		}
	}
	return doc
}

func (s *Server) delete(k kind, res string, req *Request) (object, error) {
	var opts metav1.DeleteOptions
	if len(req.Body) > 0 {
		if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(req.Body, nil, &opts); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[res][key(req.Namespace, req.Name)]
	if !ok {
		return nil, apierrors.NewNotFound(resource(k, res), req.Name)
	}
	if p := opts.Preconditions; p != nil {
		if p.UID != nil && *p.UID != o.GetUID() {
			return nil, conflict(k, res, req.Name, fmt.Sprintf("Precondition failed: UID in precondition: %v, UID in object meta: %v", *p.UID, o.GetUID()))
		}
		if p.ResourceVersion != nil && *p.ResourceVersion != o.GetResourceVersion() {
			return nil, conflict(k, res, req.Name, fmt.Sprintf("Precondition failed: ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", *p.ResourceVersion, o.GetResourceVersion()))
		}
	}
	if pod, ok := o.(*corev1.Pod); ok {
		return s.deletePod(k, pod, opts), nil
	}
	gone := o.DeepCopyObject().(object)
	s.store(k, res, gone, "DELETED")
	return gone.DeepCopyObject().(object), nil
}

// selectorsOf reads which objects of a list or watch are meant.
func selectorsOf(req *Request) (func(object) bool, error) {
	byLabel, err := labels.Parse(req.Query.Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	byField, err := fields.ParseSelector(req.Query.Get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return func(o object) bool {
		set := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
		if pod, ok := o.(*corev1.Pod); ok {
			set["status.phase"], set["spec.nodeName"] = string(pod.Status.Phase), pod.Spec.NodeName
		}
		return (req.Namespace == "" || o.GetNamespace() == req.Namespace) && (req.Name == "" || req.Name == o.GetName()) &&
			byLabel.Matches(labels.Set(o.GetLabels())) && byField.Matches(set)
	}, nil
}

// list answers by pages when the client asks for them. Like a server's watch
// cache it gives everything at once to who asks for version 0.
func (s *Server) list(c *Call, k kind, res string) {
	wanted, err := selectorsOf(c.Request)
	if err != nil {
		s.answer(c, 0)(nil, err)
		return
	}
	limit, _ := strconv.Atoi(c.Request.Query.Get("limit"))
	if c.Request.Query.Get("resourceVersion") == "0" {
		limit = 0
	}
	after, _ := base64.RawURLEncoding.DecodeString(c.Request.Query.Get("continue"))
	s.mu.Lock()
	page := metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(s.version, 10)}}
	page.TypeMeta = metav1.TypeMeta{Kind: k.name + "List", APIVersion: schema.GroupVersion{Group: k.group, Version: "v1"}.String()}
	page.Items = []runtime.RawExtension{}
	var left int64
	last := ""
	for _, name := range slices.Sorted(maps.Keys(s.objects[res])) {
		o := s.objects[res][name]
		switch {
		case name <= string(after) || !wanted(o):
		case limit > 0 && len(page.Items) == limit:
			left++
		default:
			page.Items = append(page.Items, runtime.RawExtension{Raw: mustJSON(o)})
			last = name
		}
	}
	s.mu.Unlock()
	if left > 0 {
		page.Continue = base64.RawURLEncoding.EncodeToString([]byte(last))
		page.RemainingItemCount = &left
	}
	c.w.Header().Set("Content-Type", "application/json")
	_, _ = c.w.Write(mustJSON(page))
}
