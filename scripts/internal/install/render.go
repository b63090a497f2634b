// Package install puts the product on a cluster and takes it away again: what
// kubectl apply -k and ko do, in the order in which nothing waits for what does
// not come, with what is missing said before anything is touched.
//
// It runs kubectl and ko as a person would, so that whatever they are configured
// for (contexts, credentials, registries) holds here too.
package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// DefaultPrefix begins the names of the three namespaces as they are written.
const DefaultPrefix = "tuluat-"

// Render is kustomize build: the YAML of every object of the overlay, a folder.
func Render(overlay string) ([]byte, error) {
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), overlay)
	if err != nil {
		return nil, fmt.Errorf("kustomize %s: %w", overlay, err)
	}
	return objects.AsYaml()
}

var (
	namespaces  = regexp.MustCompile(`\btuluat-(system|agents|sandbox)\b`)
	validPrefix = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,30}[a-z0-9])?-$`)
)

// Rename gives the three namespaces another prefix, wherever rendered names them:
// as namespaces, in host names and in variables.
func Rename(rendered []byte, prefix string) ([]byte, error) {
	if !validPrefix.MatchString(prefix) {
		return nil, fmt.Errorf("the prefix %q: use lower-case letters, digits and dashes, a dash last", prefix)
	}
	return namespaces.ReplaceAll(rendered, []byte(prefix+"$1")), nil
}

// Object is one object as it is applied.
type Object struct {
	APIVersion string
	Kind       string
	Namespace  string
	Name       string
	Content    map[string]any
}

// Objects takes rendered YAML apart.
func Objects(rendered []byte) ([]Object, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(rendered))
	var all []Object
	for {
		var content map[string]any
		err := decoder.Decode(&content)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if content == nil {
			continue
		}
		o := Object{Content: content}
		o.APIVersion, _ = content["apiVersion"].(string)
		o.Kind, _ = content["kind"].(string)
		o.Namespace, o.Name = text(content, "metadata", "namespace"), text(content, "metadata", "name")
		if o.APIVersion == "" || o.Kind == "" || o.Name == "" {
			return nil, fmt.Errorf("an object without apiVersion, kind or name: %.80v", content)
		}
		all = append(all, o)
	}
}

// String is what a person calls the object.
func (o Object) String() string { return o.Kind + " " + o.Name }

// is reports whether the object is of the kind, of any version of the group.
func (o Object) is(group, kind string) bool {
	return o.Kind == kind && groupOf(o.APIVersion) == group
}

func groupOf(apiVersion string) string {
	if i := bytes.IndexByte([]byte(apiVersion), '/'); i >= 0 {
		return apiVersion[:i]
	}
	return ""
}

// list is the objects as one document for kubectl.
func list(objects []Object) ([]byte, error) {
	items := []any{}
	for _, o := range objects {
		items = append(items, o.Content)
	}
	return json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
}

func text(content any, path ...string) string {
	s, _ := at(content, path...).(string)
	return s
}

func at(content any, path ...string) any {
	for _, key := range path {
		m, ok := content.(map[string]any)
		if !ok {
			return nil
		}
		content = m[key]
	}
	return content
}
