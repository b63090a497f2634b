// Package manifest reads the YAML that wires the system: config/functions and
// eventing, the same files kubectl applies, and what kustomize renders of them.
// It is strict: an unknown field, an unsupported kind or an object that eventing
// itself would refuse is an error with file and line, because what is skipped
// here would be obeyed there.
package manifest

import (
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	eventingv1 "knative.dev/eventing/pkg/apis/eventing/v1"
	sourcesv1 "knative.dev/eventing/pkg/apis/sources/v1"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// Set is what the files say.
type Set struct {
	Services        []*Service
	Accounts        []*corev1.ServiceAccount
	Roles           []*rbacv1.Role
	RoleBindings    []*rbacv1.RoleBinding
	ClusterRoles    []*rbacv1.ClusterRole
	ClusterBindings []*rbacv1.ClusterRoleBinding
	Brokers         []*eventingv1.Broker
	Triggers        []*eventingv1.Trigger
	Pings           []*sourcesv1.PingSource
	ResourceSources []*sourcesv1.ApiServerSource

	// What only a cluster honours.
	Namespaces   []*corev1.Namespace
	ConfigMaps   []*corev1.ConfigMap
	Quotas       []*corev1.ResourceQuota
	LimitRanges  []*corev1.LimitRange
	Policies     []*networkingv1.NetworkPolicy
	Claims       []*corev1.PersistentVolumeClaim
	Jobs         []*batchv1.Job
	Deployments  []*appsv1.Deployment
	StatefulSets []*appsv1.StatefulSet
	Plain        []*corev1.Service // of Kubernetes itself
	Definitions  []*Definition

	origins []origin
}

// Definition is a CustomResourceDefinition, whose schema is generated and tested
// where it is made.
type Definition struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              map[string]any `json:"spec"`
	Status            map[string]any `json:"status,omitempty"` // controller-gen leaves an empty one
}

// origin is where an object is written.
type origin struct{ key, at string }

// Service returns the Service of that name, nil if there is none.
func (s *Set) Service(namespace, name string) *Service {
	for _, service := range s.Services {
		if service.Namespace == namespace && service.Name == name {
			return service
		}
	}
	return nil
}

// Broker returns the Broker of that name, nil if there is none.
func (s *Set) Broker(namespace, name string) *eventingv1.Broker {
	for _, broker := range s.Brokers {
		if broker.Namespace == namespace && broker.Name == name {
			return broker
		}
	}
	return nil
}

// Target resolves a subscriber or sink to the Service it names and the path on
// it. Anything but a Service of this set is an error: nothing here would be
// delivered to it.
func (s *Set) Target(d duckv1.Destination) (service *Service, path string, err error) {
	if d.Ref == nil {
		return nil, "", errors.New("a subscriber or sink must be a ref to a Service")
	}
	if d.Ref.APIVersion != "serving.knative.dev/v1" || d.Ref.Kind != "Service" {
		return nil, "", fmt.Errorf("%s %s is not supported as a subscriber or sink", d.Ref.APIVersion, d.Ref.Kind)
	}
	service = s.Service(d.Ref.Namespace, d.Ref.Name)
	if service == nil {
		return nil, "", fmt.Errorf("there is no Service %s/%s", d.Ref.Namespace, d.Ref.Name)
	}
	path = "/"
	if d.URI != nil {
		if d.URI.Host != "" || d.URI.Path == "" {
			return nil, "", fmt.Errorf("the uri %q must be a path beside the ref", d.URI)
		}
		path = d.URI.Path
	}
	return service, path, nil
}

func (s *Set) checkUnique() error {
	first := map[string]string{}
	var problems []error
	for _, o := range s.origins {
		if at, ok := first[o.key]; ok {
			problems = append(problems, fmt.Errorf("%s: %s is already at %s", o.at, o.key, at))
			continue
		}
		first[o.key] = o.at
	}
	return errors.Join(problems...)
}
