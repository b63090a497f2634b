package manifest

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"
)

// Annotations, labels and schemes with a meaning of their own.
const (
	PublicPath   = "tuluat.ai/public-path"               // the only paths of a public Service, parted by commas; one that ends in / has all below it
	Visibility   = "networking.knative.dev/visibility"   // label: cluster-local or absent
	MinScale     = "autoscaling.knative.dev/min-scale"   // of the revision template
	MaxScale     = "autoscaling.knative.dev/max-scale"   // of the revision template
	AsyncHandler = "messaging.knative.dev/async-handler" // of a Broker
	KoScheme     = "ko://"                               // image: the import path of a main package
)

const (
	clusterLocal  = "cluster-local"
	clusterDomain = ".svc.cluster.local"
	brokerIngress = "broker-ingress.knative-eventing"

	maximumTimeout = 600 * time.Second // Knative's own upper limit
)

// Service is a Knative Service, as much of it as this project uses: a field
// that is not here is refused, because neither the checks nor the runner on one
// machine would honour it.
type Service struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              ServiceSpec `json:"spec"`
}

// ServiceSpec holds the template of the Service's revisions.
type ServiceSpec struct {
	Template RevisionTemplate `json:"template"`
}

// RevisionTemplate is what every pod of the Service is made of.
type RevisionTemplate struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              RevisionSpec `json:"spec"`
}

// RevisionSpec is a pod and how many requests it takes.
type RevisionSpec struct {
	ServiceAccountName           string      `json:"serviceAccountName"`
	AutomountServiceAccountToken *bool       `json:"automountServiceAccountToken,omitempty"`
	EnableServiceLinks           *bool       `json:"enableServiceLinks,omitempty"`
	ContainerConcurrency         *int64      `json:"containerConcurrency,omitempty"`
	TimeoutSeconds               *int64      `json:"timeoutSeconds,omitempty"`
	Containers                   []Container `json:"containers"`
	Volumes                      []Volume    `json:"volumes,omitempty"`
}

// Container is the one container of a function.
type Container struct {
	Image           string                      `json:"image"`
	Env             []EnvVar                    `json:"env,omitempty"`
	VolumeMounts    []VolumeMount               `json:"volumeMounts,omitempty"`
	ReadinessProbe  *corev1.Probe               `json:"readinessProbe,omitempty"`
	LivenessProbe   *corev1.Probe               `json:"livenessProbe,omitempty"`
	Resources       corev1.ResourceRequirements `json:"resources"`
	SecurityContext *corev1.SecurityContext     `json:"securityContext"`
}

// EnvVar is a variable with a value or a key of a Secret.
type EnvVar struct {
	Name      string     `json:"name"`
	Value     string     `json:"value,omitempty"`
	ValueFrom *EnvSource `json:"valueFrom,omitempty"`
}

// EnvSource is where a variable's value is kept.
type EnvSource struct {
	SecretKeyRef SecretKeyRef `json:"secretKeyRef"`
}

// SecretKeyRef names a key of a Secret. An optional one may be absent; then
// the variable is not set.
type SecretKeyRef struct {
	Name     string `json:"name"`
	Key      string `json:"key"`
	Optional bool   `json:"optional,omitempty"`
}

// Volume is a ConfigMap as a folder.
type Volume struct {
	Name      string       `json:"name"`
	ConfigMap ConfigMapRef `json:"configMap"`
}

// ConfigMapRef names a ConfigMap. An optional one may be absent; then the folder
// is empty.
type ConfigMapRef struct {
	Name     string `json:"name"`
	Optional bool   `json:"optional,omitempty"`
}

// VolumeMount puts a Volume at a path of the container.
type VolumeMount struct {
	Name      string `json:"name"`
	MountPath string `json:"mountPath"`
	ReadOnly  bool   `json:"readOnly"`
}

// ImportPath is the main package the Service runs.
func (s *Service) ImportPath() string {
	return strings.TrimPrefix(s.Spec.Template.Spec.Containers[0].Image, KoScheme)
}

// Function is the name of the function the Service runs.
func (s *Service) Function() string { return path.Base(s.ImportPath()) }

// Env is the container's environment as written.
func (s *Service) Env() []EnvVar { return s.Spec.Template.Spec.Containers[0].Env }

// Host is the name under which the cluster reaches the Service.
func (s *Service) Host() string { return s.Name + "." + s.Namespace + clusterDomain }

// BrokerPath is the path of a Broker behind the shared broker ingress.
func BrokerPath(namespace, name string) string { return "/" + namespace + "/" + name }

// BrokerHost is the name under which the cluster reaches every Broker.
func BrokerHost() string { return brokerIngress + clusterDomain }

// Public reports whether the outside may reach the Service.
func (s *Service) Public() bool { return s.Labels[Visibility] != clusterLocal }

func (s *Service) publicPaths() []string { return strings.Split(s.Annotations[PublicPath], ",") }

// Serves returns the public path of the Service that url belongs to, "" if it
// belongs to none. Of several Services the one with the longest has it.
func (s *Service) Serves(url string) string {
	longest := ""
	if !s.Public() {
		return longest
	}
	for _, p := range s.publicPaths() {
		if (url == p || strings.HasSuffix(p, "/") && strings.HasPrefix(url, p)) && len(p) > len(longest) {
			longest = p
		}
	}
	return longest
}

// Timeout ends a request.
func (s *Service) Timeout() time.Duration {
	return time.Duration(*s.Spec.Template.Spec.TimeoutSeconds) * time.Second
}

// Concurrency is how many requests one process takes at once; 0 is no limit.
func (s *Service) Concurrency() int { return int(*s.Spec.Template.Spec.ContainerConcurrency) }

// Scale is the value of the scale annotation named.
func (s *Service) Scale(annotation string) (int, error) {
	return strconv.Atoi(s.Spec.Template.Annotations[annotation])
}

// Validate reports what is missing or contradicts itself, in the form of
// eventing's own checks. The rules: every number that bounds load is written
// down, a public Service has its public paths, and settings that need a Knative
// feature flag are absent because the types above have no field for them.
func (s *Service) Validate(context.Context) *apis.FieldError {
	var errs *apis.FieldError
	errs = errs.Also(s.validateReach().ViaField("metadata"))
	template := s.Spec.Template
	for _, annotation := range []string{MinScale, MaxScale} {
		n, err := s.Scale(annotation)
		if err != nil || n < 0 || (annotation == MaxScale && n == 0) {
			errs = errs.Also(apis.ErrInvalidValue(template.Annotations[annotation], "annotations").ViaField("spec", "template", "metadata"))
		}
	}
	return errs.Also(template.Spec.validate().ViaField("spec", "template", "spec"))
}

func (s *Service) validateReach() *apis.FieldError {
	value, labelled := s.Labels[Visibility]
	if labelled && value != clusterLocal {
		return apis.ErrInvalidValue(value, "labels")
	}
	at, annotated := s.Annotations[PublicPath]
	switch {
	case s.Public() && !annotated:
		return apis.ErrGeneric(fmt.Sprintf("a Service without %s=%s needs the annotation %s", Visibility, clusterLocal, PublicPath), "annotations")
	case !s.Public() && annotated:
		return apis.ErrGeneric(fmt.Sprintf("a %s Service may not have the annotation %s", clusterLocal, PublicPath), "annotations")
	case annotated && slices.ContainsFunc(s.publicPaths(), func(p string) bool { return p == "/" || !path.IsAbs(p) || path.Clean(p) != strings.TrimSuffix(p, "/") }):
		return apis.ErrInvalidValue(at, "annotations")
	}
	return nil
}

func (r RevisionSpec) validate() *apis.FieldError {
	var errs *apis.FieldError
	if r.ServiceAccountName == "" {
		errs = errs.Also(apis.ErrMissingField("serviceAccountName"))
	}
	if r.AutomountServiceAccountToken != nil && *r.AutomountServiceAccountToken {
		errs = errs.Also(apis.ErrGeneric("is true where it is left out, and Knative refuses to be told", "automountServiceAccountToken"))
	}
	if r.ContainerConcurrency == nil || *r.ContainerConcurrency < 1 {
		errs = errs.Also(apis.ErrMissingField("containerConcurrency"))
	}
	switch {
	case r.TimeoutSeconds == nil:
		errs = errs.Also(apis.ErrMissingField("timeoutSeconds"))
	case *r.TimeoutSeconds < 1 || time.Duration(*r.TimeoutSeconds)*time.Second > maximumTimeout:
		errs = errs.Also(apis.ErrOutOfBoundsValue(*r.TimeoutSeconds, 1, maximumTimeout.Seconds(), "timeoutSeconds"))
	}
	if len(r.Containers) != 1 {
		return errs.Also(apis.ErrGeneric("exactly one container", "containers"))
	}
	return errs.Also(r.Containers[0].validate(r.Volumes).ViaFieldIndex("containers", 0))
}

func (c Container) validate(volumes []Volume) *apis.FieldError {
	var errs *apis.FieldError
	if !strings.HasPrefix(c.Image, KoScheme) {
		errs = errs.Also(apis.ErrInvalidValue(c.Image, "image", "an image is "+KoScheme+" and the import path of a main package"))
	}
	seen := map[string]bool{}
	for i, env := range c.Env {
		switch {
		case env.Name == "":
			errs = errs.Also(apis.ErrMissingField("name").ViaFieldIndex("env", i))
		case seen[env.Name]:
			errs = errs.Also(apis.ErrGeneric(env.Name+" is set twice", "name").ViaFieldIndex("env", i))
		case env.Value == "" && env.ValueFrom == nil:
			errs = errs.Also(apis.ErrMissingOneOf("value", "valueFrom").ViaFieldIndex("env", i))
		case env.Value != "" && env.ValueFrom != nil:
			errs = errs.Also(apis.ErrMultipleOneOf("value", "valueFrom").ViaFieldIndex("env", i))
		case env.ValueFrom != nil && (env.ValueFrom.SecretKeyRef.Name == "" || env.ValueFrom.SecretKeyRef.Key == ""):
			errs = errs.Also(apis.ErrMissingField("valueFrom").ViaFieldIndex("env", i))
		}
		seen[env.Name] = true
	}
	named := map[string]bool{}
	for _, v := range volumes {
		named[v.Name] = true
	}
	for i, m := range c.VolumeMounts {
		if !named[m.Name] || !m.ReadOnly || !path.IsAbs(m.MountPath) {
			errs = errs.Also(apis.ErrGeneric("a mount names a volume, an absolute path and is read-only", "name").ViaFieldIndex("volumeMounts", i))
		}
	}
	return errs.Also(validateSecurity(c.SecurityContext).ViaField("securityContext"))
}

// validateSecurity demands what Pod Security "restricted" demands of a
// container: the pod's own securityContext needs a feature flag of Knative.
func validateSecurity(s *corev1.SecurityContext) *apis.FieldError {
	if s == nil {
		return apis.ErrMissingField(apis.CurrentField)
	}
	is := func(b *bool, want bool) bool { return b != nil && *b == want }
	dropsAll := s.Capabilities != nil && len(s.Capabilities.Drop) == 1 && s.Capabilities.Drop[0] == "ALL" && len(s.Capabilities.Add) == 0
	confined := s.SeccompProfile != nil && s.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault
	if !is(s.RunAsNonRoot, true) || !is(s.AllowPrivilegeEscalation, false) || !is(s.ReadOnlyRootFilesystem, true) || !dropsAll || !confined {
		return apis.ErrGeneric("runAsNonRoot, no privilege escalation, read-only root, all capabilities dropped and seccomp RuntimeDefault are needed", apis.CurrentField)
	}
	return nil
}
