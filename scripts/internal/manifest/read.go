package manifest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/eventing/pkg/apis/feature"
	"knative.dev/pkg/apis"
	kjson "sigs.k8s.io/json"
)

// Read reads every .yaml file directly in the folders named and returns what
// they say, or every problem found, each with its file and line.
func Read(folders ...string) (*Set, error) {
	set := &Set{}
	var problems []error
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			problems = append(problems, fmt.Errorf("%s: no .yaml file", folder))
		}
		for _, file := range files {
			if filepath.Base(file) == "kustomization.yaml" {
				continue // kubectl's own list of these files, checked by a test
			}
			problems = append(problems, set.readFile(file))
		}
	}
	problems = append(problems, set.checkUnique())
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return set, nil
}

func (s *Set) readFile(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return s.readText(file, text)
}

// Parse reads what kustomize rendered. name stands for it in errors.
func Parse(name string, text []byte) (*Set, error) {
	set := &Set{}
	if err := errors.Join(set.readText(name, text), set.checkUnique()); err != nil {
		return nil, err
	}
	return set, nil
}

func (s *Set) readText(file string, text []byte) error {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var problems []error
	for {
		var doc yaml.Node
		err := decoder.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return errors.Join(problems...)
		}
		if err != nil {
			return errors.Join(append(problems, fmt.Errorf("%s: %w", file, err))...)
		}
		if len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" {
			continue
		}
		problems = append(problems, s.readObject(file, doc.Content[0]))
	}
}

// validated is what eventing's types and our own Service share.
type validated interface {
	Validate(context.Context) *apis.FieldError
}

func (s *Set) readObject(file string, node *yaml.Node) error {
	var generic map[string]any
	if err := node.Decode(&generic); err != nil {
		return fmt.Errorf("%s: %w", file, err) // yaml's errors name the line
	}
	data, err := json.Marshal(generic)
	if err != nil {
		return fmt.Errorf("%s:%d: %w", file, node.Line, err)
	}
	var head struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        struct{ Name, Namespace string }
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return fmt.Errorf("%s:%d: %w", file, node.Line, err)
	}
	object, keep := s.newObject(head.APIVersion, head.Kind)
	if object == nil {
		return fmt.Errorf("%s:%d: %s %s is not supported", file, lineOf(node, "kind"), head.APIVersion, head.Kind)
	}
	if err := decodeStrict(file, node, data, object); err != nil {
		return err
	}
	if head.Metadata.Name == "" || (head.Metadata.Namespace == "") != clusterWide[head.Kind] {
		if clusterWide[head.Kind] {
			return fmt.Errorf("%s:%d: metadata needs a name and no namespace", file, lineOf(node, "metadata"))
		}
		return fmt.Errorf("%s:%d: metadata needs a name and a namespace", file, lineOf(node, "metadata"))
	}
	if v, ok := object.(validated); ok {
		ctx, err := defaultFeatures(context.Background())
		if err != nil {
			return err
		}
		if errs := v.Validate(ctx); errs != nil {
			return fieldErrors(file, node, errs)
		}
	}
	keep()
	s.origins = append(s.origins, origin{
		key: head.Kind + " " + head.Metadata.Namespace + "/" + head.Metadata.Name, at: fmt.Sprintf("%s:%d", file, node.Line),
	})
	return nil
}

// defaultFeatures switches eventing's features as its own webhook does where
// nobody has configured them.
func defaultFeatures(ctx context.Context) (context.Context, error) {
	flags, err := feature.NewFlagsConfigFromMap(map[string]string{})
	if err != nil {
		return nil, err
	}
	return feature.ToContext(ctx, flags), nil
}

// newObject returns an empty object of the kind and what adds it to the set
// once it is read; nil for a kind nobody here would honour.
func (s *Set) newObject(apiVersion, kind string) (object any, keep func()) {
	switch apiVersion + " " + kind {
	case "serving.knative.dev/v1 Service":
		return into(&s.Services)
	case "v1 ServiceAccount":
		return into(&s.Accounts)
	case "rbac.authorization.k8s.io/v1 Role":
		return into(&s.Roles)
	case "rbac.authorization.k8s.io/v1 RoleBinding":
		return into(&s.RoleBindings)
	case "rbac.authorization.k8s.io/v1 ClusterRole":
		return into(&s.ClusterRoles)
	case "rbac.authorization.k8s.io/v1 ClusterRoleBinding":
		return into(&s.ClusterBindings)
	case "eventing.knative.dev/v1 Broker":
		return into(&s.Brokers)
	case "eventing.knative.dev/v1 Trigger":
		return into(&s.Triggers)
	case "sources.knative.dev/v1 PingSource":
		return into(&s.Pings)
	case "sources.knative.dev/v1 ApiServerSource":
		return into(&s.ResourceSources)
	}
	return s.newPlatformObject(apiVersion, kind)
}

// clusterWide has the kinds that are in no namespace.
var clusterWide = map[string]bool{"Namespace": true, "CustomResourceDefinition": true, "ClusterRole": true, "ClusterRoleBinding": true}

// newPlatformObject is newObject for what only a cluster honours. A Secret is
// not among them: no file here may hold one.
func (s *Set) newPlatformObject(apiVersion, kind string) (object any, keep func()) {
	switch apiVersion + " " + kind {
	case "v1 Namespace":
		return into(&s.Namespaces)
	case "v1 ConfigMap":
		return into(&s.ConfigMaps)
	case "v1 ResourceQuota":
		return into(&s.Quotas)
	case "v1 LimitRange":
		return into(&s.LimitRanges)
	case "v1 PersistentVolumeClaim":
		return into(&s.Claims)
	case "v1 Service":
		return into(&s.Plain)
	case "networking.k8s.io/v1 NetworkPolicy":
		return into(&s.Policies)
	case "batch/v1 Job":
		return into(&s.Jobs)
	case "apps/v1 Deployment":
		return into(&s.Deployments)
	case "apps/v1 StatefulSet":
		return into(&s.StatefulSets)
	case "apiextensions.k8s.io/v1 CustomResourceDefinition":
		return into(&s.Definitions)
	}
	return nil, nil
}

func into[T any](list *[]*T) (object any, keep func()) {
	o := new(T)
	return o, func() { *list = append(*list, o) }
}

func decodeStrict(file string, node *yaml.Node, data []byte, into any) error {
	strict, err := kjson.UnmarshalStrict(data, into)
	if err != nil {
		line := node.Line
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			line = lineOf(node, wrong.Field)
		}
		return fmt.Errorf("%s:%d: %w", file, line, err)
	}
	var problems []error
	for _, e := range strict {
		line := node.Line
		if field, ok := errors.AsType[kjson.FieldError](e); ok {
			line = lineOf(node, field.FieldPath())
		}
		problems = append(problems, fmt.Errorf("%s:%d: %w", file, line, e))
	}
	return errors.Join(problems...)
}

// fieldErrors gives each of errs the line of the first field it names.
func fieldErrors(file string, node *yaml.Node, errs *apis.FieldError) error {
	var problems []error
	for _, e := range errs.WrappedErrors() {
		line := node.Line
		if len(e.Paths) > 0 {
			line = lineOf(node, e.Paths[0])
		}
		problems = append(problems, fmt.Errorf("%s:%d: %w", file, line, e))
	}
	return errors.Join(problems...)
}

// lineOf walks a path such as spec.filters[0].exact and returns the line of
// the deepest part that is there: a missing field is reported at its parent.
func lineOf(node *yaml.Node, path string) int {
	line := node.Line
	for part := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		key, value := child(node, part)
		if value == nil {
			return line
		}
		line, node = key.Line, value
	}
	return line
}

func child(node *yaml.Node, part string) (key, value *yaml.Node) {
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == part {
				return node.Content[i], node.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(part); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i], node.Content[i]
		}
	}
	return nil, nil
}
