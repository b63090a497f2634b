package resource

import (
	"context"
	"encoding/json"
	"maps"

	"k8s.io/client-go/rest"

	"tuluat.ai/harness/shared/harness"
)

// ConfigMap returns the data of a ConfigMap of the namespace by its keys, texts and
// bytes alike. harness.NotFound: there is none.
func (c *Cluster) ConfigMap(ctx context.Context, name string) (map[string][]byte, error) {
	what := "ConfigMap " + name + " cannot be read"
	if len(rest.IsValidPathSegmentName(name)) > 0 || name == "" {
		return nil, harness.Errorf(harness.NotFound, "%s: there is no such resource", what)
	}
	body, err := raw(c.client.Get().AbsPath("/api/v1").Namespace(c.Namespace).Resource("configmaps").Name(name).Do(ctx))
	if err != nil {
		return nil, translate(err, what)
	}
	var read struct { // its own names
		Data       map[string]string
		BinaryData map[string][]byte
	}
	if err := json.Unmarshal(body, &read); err != nil {
		return nil, harness.Wrap(harness.Unavailable, err, what+": the API server's answer cannot be read")
	}
	data := make(map[string][]byte, len(read.Data)+len(read.BinaryData))
	for key, text := range read.Data {
		data[key] = []byte(text)
	}
	maps.Copy(data, read.BinaryData)
	return data, nil
}
