package resource

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/resource/internal/yamltext"
)

// lastApplied is kubectl's copy of the whole resource.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// shown is what Object has of metadata; written, what of it its author writes;
// served, what a server writes and whoever sends an object back may send with it.
var (
	shown  = []string{"name", "namespace", "labels", "annotations", "generation", "resourceVersion", "creationTimestamp"}
	served = []string{"generation", "resourceVersion", "creationTimestamp", "uid", "selfLink", "managedFields", "deletionTimestamp", "deletionGracePeriodSeconds"}
)

type fields = map[string]any

// Read returns a resource as its author wrote it, and all that is wrong with it.
// It goes through the reader that files go through, so that a folder and a
// cluster are held to the same rules. Lines are left out: nobody sees those of
// a resource.
func Read(r Resource, limits v1alpha1.Limits) (v1alpha1.Document, v1alpha1.Problems) {
	object, problems := parse(r.Object, false)
	if len(problems) > 0 {
		return v1alpha1.Document{}, problems
	}
	return read(yamltext.Flow(written(object)), limits)
}

// read reads a text of one document.
func read(text []byte, limits v1alpha1.Limits) (v1alpha1.Document, v1alpha1.Problems) {
	documents, err := v1alpha1.Read(text)
	if err != nil || len(documents) != 1 {
		return v1alpha1.Document{}, v1alpha1.Problems{{Path: "spec", What: "cannot be read: " + harness.MessageOf(err)}}
	}
	problems := documents[0].Validate(limits)
	for i := range problems {
		problems[i].Document, problems[i].Line = 0, 0
	}
	return documents[0], problems
}

// written is the object without what a server writes.
func written(object fields) fields {
	own := maps.Clone(object)
	delete(own, "status")
	if metadata, ok := own["metadata"].(fields); ok {
		metadata = maps.Clone(metadata)
		for _, name := range served {
			delete(metadata, name)
		}
		if annotations, ok := metadata["annotations"].(fields); ok {
			annotations = maps.Clone(annotations)
			delete(annotations, lastApplied)
			metadata["annotations"] = annotations
			if len(annotations) == 0 {
				delete(metadata, "annotations")
			}
		}
		own["metadata"] = metadata
	}
	return own
}

// accept returns what the author wrote of r.Object, or what is wrong with it. A
// resource without a name gets that of its object.
func accept(r *Resource, limits v1alpha1.Limits) (fields, error) {
	object, problems := parse(r.Object, false)
	if len(problems) > 0 {
		return nil, invalid(problems)
	}
	object = written(object)
	if metadata, ok := object["metadata"].(fields); ok && r.Name == "" {
		r.Name = text(metadata["name"])
	}
	return object, check(object, r.Kind, r.Name, limits)
}

// check says what is wrong with an object that is to be this resource.
func check(object fields, kind, name string, limits v1alpha1.Limits) error {
	_, problems := read(yamltext.Flow(object), limits)
	all := identity(object, kind, name)
	for _, p := range problems {
		all.Add(p)
	}
	return invalid(all)
}

// identity says what of an object would make another resource of it.
func identity(object fields, kind, name string) v1alpha1.Problems {
	var problems v1alpha1.Problems
	if is, ok := object["kind"].(string); ok && is != kind && slices.Contains([]string{v1alpha1.KindAgent, v1alpha1.KindWorkflow}, is) {
		problems.Add(v1alpha1.Problem{Path: "kind", What: fmt.Sprintf("is %q, and the resource is of kind %s", is, kind), Fix: "write " + kind})
	}
	metadata, _ := object["metadata"].(fields)
	if is, ok := metadata["name"].(string); ok && is != "" && is != name {
		problems.Add(v1alpha1.Problem{Path: "metadata.name", What: fmt.Sprintf("is %q, and the resource is %q", is, name), Fix: "write " + name + ": a resource keeps its name"})
	}
	return problems
}

// merge returns an object with a merge patch applied that a caller sent, and the
// patch without what is not the caller's to write.
func merge(object fields, patch []byte) (merged, clean fields, err error) {
	clean, problems := parse(patch, true)
	if len(problems) > 0 {
		return nil, nil, invalid(problems)
	}
	clean = written(clean)
	result, ok := yamltext.Merge(object, clean).(fields)
	if !ok {
		return nil, nil, harness.Errorf(harness.Internal, "a merge patch of an object made none")
	}
	return written(result), clean, nil
}

// switchesOff reports whether a patch does nothing but switch blocks off. That is
// for emergencies, and no problem that was there before is in its way.
func switchesOff(clean fields) bool {
	spec, ok := clean["spec"].(fields)
	for _, block := range spec {
		b, _ := block.(fields)
		ok = ok && len(b) == 1 && b["enabled"] == false
	}
	return ok && len(spec) > 0 && len(clean) == 1
}

// added are the problems that were not there before; none, where there were too
// many to know.
func added(problems, before v1alpha1.Problems) v1alpha1.Problems {
	return slices.DeleteFunc(problems, func(p v1alpha1.Problem) bool { return before.Full() || slices.Contains(before, p) })
}

// parse reads a JSON object. Of fields that are null it keeps those of a patch
// only. A field that is written twice is a problem: one of the two would be lost.
func parse(text []byte, nulls bool) (fields, v1alpha1.Problems) {
	p := parser{nulls: nulls, tokens: json.NewDecoder(bytes.NewReader(text))}
	p.tokens.UseNumber()
	value, err := p.value("", 0)
	if errors.Is(err, errEnough) {
		return nil, p.problems
	}
	if err == nil {
		if _, more := p.tokens.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more than one value")
		}
	}
	object, ok := value.(fields)
	if err != nil || !ok {
		return nil, v1alpha1.Problems{{What: "is not a JSON object", Fix: "send one"}}
	}
	return object, p.problems
}

type parser struct {
	tokens   *json.Decoder
	nulls    bool
	problems v1alpha1.Problems
}

// maxDepth is how deep an object may be. Ours have a quarter of it.
const maxDepth = 64

// errEnough says that the rest is not worth reading.
var errEnough = errors.New("enough problems")

func (p *parser) value(path string, depth int) (any, error) {
	if depth > maxDepth {
		p.problems.Add(v1alpha1.Problem{Path: path, What: fmt.Sprintf("is over %d levels deep", maxDepth), Fix: "remove what is not a field"})
		return nil, errEnough
	}
	if p.problems.Full() {
		return nil, errEnough
	}
	token, err := p.tokens.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		object := fields{}
		seen := map[string]bool{}
		for p.tokens.More() {
			key, err := p.tokens.Token()
			if err != nil {
				return nil, err
			}
			name, _ := key.(string) // nothing else comes before a colon
			at := v1alpha1.Below(path, name)
			if seen[name] {
				p.problems.Add(v1alpha1.Problem{Path: at, What: "is written twice", Fix: "keep one of them"})
			}
			seen[name] = true
			value, err := p.value(at, depth+1)
			if err != nil {
				return nil, err
			}
			if value != nil || p.nulls {
				object[name] = value
			}
		}
		_, err = p.tokens.Token()
		return object, err
	case json.Delim('['):
		list := []any{}
		for p.tokens.More() {
			value, err := p.value(fmt.Sprintf("%s[%d]", path, len(list)), depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		_, err = p.tokens.Token()
		return list, err
	}
	return token, nil
}

// marshal writes an object as JSON. It is of plain values, so that it can be.
func marshal(object fields) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(object); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// resourceOf is the Resource of an object of an API server.
func resourceOf(kind string, object fields) Resource {
	object = maps.Clone(object)
	object["apiVersion"], object["kind"] = v1alpha1.APIVersion, kind // items of a list may do without
	metadata, _ := object["metadata"].(fields)
	visible := fields{}
	for _, name := range shown {
		if value, ok := metadata[name]; ok {
			visible[name] = value
		}
	}
	if annotations, ok := visible["annotations"].(fields); ok {
		annotations = maps.Clone(annotations)
		delete(annotations, lastApplied)
		visible["annotations"] = annotations
		if len(annotations) == 0 {
			delete(visible, "annotations")
		}
	}
	object["metadata"] = visible
	r := Resource{Kind: kind, Name: text(visible["name"]), Version: text(visible["resourceVersion"]), Object: marshal(object)}
	if n, ok := visible["generation"].(json.Number); ok {
		r.Generation, _ = n.Int64()
	}
	r.CreatedAt, _ = time.Parse(time.RFC3339, text(visible["creationTimestamp"]))
	own := written(object)
	if metadata, ok := own["metadata"].(fields); ok {
		delete(metadata, "namespace")
	}
	r.YAML = yamltext.Document(own)
	return r
}

func text(value any) string {
	text, _ := value.(string)
	return text
}
