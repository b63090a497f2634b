// Package crd asks of a resource what a Kubernetes API server asks before it
// stores one, with the API server's own code and without an API server: unknown
// fields, defaults, the schema, keys of lists and CEL rules within their budget.
package crd

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	definition "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metadata "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// Resource is one version of one CustomResourceDefinition.
type Resource struct {
	Kind   string
	Schema *schema.Structural

	values validation.SchemaValidator
	rules  *cel.Validator
}

// Read reads a CustomResourceDefinition. An error says why an API server would
// refuse it, rules that could cost too much among the reasons.
func Read(ctx context.Context, text []byte) (*Resource, error) {
	var written apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &written); err != nil {
		return nil, err
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&written)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&written.Spec)
	written.Status.StoredVersions = []string{written.Spec.Versions[0].Name}
	var internal apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&written, &internal, nil); err != nil {
		return nil, err
	}
	if problems := definition.ValidateCustomResourceDefinition(ctx, &internal); len(problems) > 0 {
		return nil, problems.ToAggregate()
	}
	if len(internal.Spec.Versions) != 1 || internal.Spec.Validation == nil {
		return nil, errors.New("has not exactly one version")
	}
	props := internal.Spec.Validation.OpenAPIV3Schema
	structural, err := schema.NewStructural(props)
	if err != nil {
		return nil, err
	}
	values, _, err := validation.NewSchemaValidator(props)
	if err != nil {
		return nil, err
	}
	return &Resource{Kind: internal.Spec.Names.Kind, Schema: structural, values: values, rules: cel.NewValidator(structural, true, celconfig.PerCallLimit)}, nil
}

// Admit returns the resource as it would be stored, with defaults filled in, and
// what an API server would say against creating it.
func (r *Resource) Admit(ctx context.Context, text []byte) (map[string]any, []string, error) {
	sent, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, nil, err
	}
	var object map[string]any
	if err := json.Unmarshal(sent, &object); err != nil { // keeps whole numbers whole
		return nil, nil, err
	}
	var refused []string
	unknown := pruning.PruneWithOptions(object, r.Schema, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	for _, path := range unknown {
		refused = append(refused, fmt.Sprintf("unknown field %q", path))
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(object, r.Schema)
	defaulting.Default(object, r.Schema)

	u := &unstructured.Unstructured{Object: object}
	meta := metav1.ObjectMeta{Name: u.GetName(), Namespace: "agents", Labels: u.GetLabels(), Annotations: u.GetAnnotations()}
	problems := metadata.ValidateObjectMeta(&meta, true, metadata.NameIsDNSSubdomain, field.NewPath("metadata"))
	problems = append(problems, validation.ValidateCustomResource(nil, object, r.values)...)
	problems = append(problems, listtype.ValidateListSetsAndMaps(nil, r.Schema, object)...)
	if len(problems) == 0 { // rules are only asked of what has the right form
		broken, _ := r.rules.Validate(ctx, nil, r.Schema, object, nil, celconfig.RuntimeCELCostBudget)
		problems = append(problems, broken...)
	}
	for _, p := range problems {
		refused = append(refused, p.Error())
	}
	return object, refused, nil
}
