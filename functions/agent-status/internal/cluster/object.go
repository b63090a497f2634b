package cluster

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"tuluat.ai/harness/functions/agent-status/internal/status"
	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

// object is a resource as the API server gives it.
type object struct {
	Metadata struct {
		Name            string            `json:"name"`
		Namespace       string            `json:"namespace"`
		Generation      int64             `json:"generation"`
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels"`
		Annotations     map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec   json.RawMessage `json:"spec"`
	Status json.RawMessage `json:"status"`
}

func parse(text []byte) (object, error) {
	var o object
	if err := json.Unmarshal(text, &o); err != nil {
		return o, harness.Wrap(harness.Unavailable, err, "the API server's answer cannot be read")
	}
	return o, nil
}

func (o object) resource(kind string) status.Resource {
	return status.Resource{Kind: kind, Name: o.Metadata.Name, Generation: o.Metadata.Generation, Version: o.Metadata.ResourceVersion, Status: o.Status}
}

// lastApplied is kubectl's copy of the whole resource.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// add adds one resource to what was found. What its author wrote goes through
// the reader that files go through, so that both are held to the same rules.
func add(found *status.Found, kind, namespace string, item []byte, limits v1alpha1.Limits) error {
	o, err := parse(item)
	if err != nil {
		return err
	}
	resource := o.resource(kind)
	document, problems := o.read(kind, limits)
	if kind == v1alpha1.KindWorkflow {
		if len(problems) > 0 {
			resource.Problems = problems.Error()
		}
		found.Resources = append(found.Resources, resource)
		return nil
	}
	document.Agent.Metadata.Name = o.Metadata.Name // also where nothing could be read
	text := status.Text(document, problems, namespace+"/"+o.Metadata.Name, "", limits)
	text.Generation = o.Metadata.Generation
	found.Texts, found.Resources = append(found.Texts, text), append(found.Resources, resource)
	return nil
}

// read is the resource without what the server added, and all that is wrong with
// it. Lines are left out: nobody sees those of a resource.
func (o object) read(kind string, limits v1alpha1.Limits) (v1alpha1.Document, v1alpha1.Problems) {
	maps.DeleteFunc(o.Metadata.Annotations, func(name, _ string) bool { return name == lastApplied })
	text, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": kind, "spec": o.Spec,
		"metadata": map[string]any{"name": o.Metadata.Name, "namespace": o.Metadata.Namespace, "labels": o.Metadata.Labels, "annotations": o.Metadata.Annotations},
	})
	if err == nil {
		text, err = toYAML(text)
	}
	var documents []v1alpha1.Document
	if err == nil {
		documents, err = v1alpha1.Read(text)
	}
	if err != nil || len(documents) != 1 {
		return v1alpha1.Document{}, v1alpha1.Problems{{Path: "spec", What: "cannot be read: " + harness.MessageOf(err)}}
	}
	problems := documents[0].Validate(limits)
	if kind == v1alpha1.KindWorkflow { // that this release runs none is a condition of its own
		problems = slices.DeleteFunc(problems, func(p v1alpha1.Problem) bool { return p.Path == "kind" })
	}
	for i := range problems {
		problems[i].Document, problems[i].Line = 0, 0
	}
	return documents[0], problems
}

// toYAML writes JSON as YAML of the same meaning. JSON itself nearly is, but
// YAML reads no surrogate pairs and allows fewer characters as they are.
func toYAML(text []byte) ([]byte, error) {
	var value any
	numbers := json.NewDecoder(bytes.NewReader(text))
	numbers.UseNumber()
	if err := numbers.Decode(&value); err != nil {
		return nil, err
	}
	return appendYAML(nil, value), nil
}

func appendYAML(out []byte, value any) []byte {
	switch v := value.(type) {
	case map[string]any:
		out = append(out, '{')
		for i, key := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				out = append(out, ", "...)
			}
			out = append(strconv.AppendQuoteToASCII(out, key), ": "...)
			out = appendYAML(out, v[key])
		}
		return append(out, '}')
	case []any:
		out = append(out, '[')
		for i, item := range v {
			if i > 0 {
				out = append(out, ", "...)
			}
			out = appendYAML(out, item)
		}
		return append(out, ']')
	case string:
		return strconv.AppendQuoteToASCII(out, v)
	case json.Number:
		return append(out, v...)
	case bool:
		return strconv.AppendBool(out, v)
	}
	return append(out, "null"...)
}
