package resource

import (
	"context"
	"encoding/json"
	"maps"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/resource/internal/yamltext"
)

// Create implements Store.
func (c *Cluster) Create(ctx context.Context, r Resource, dryRun bool) (Resource, error) {
	limits, err := c.Now()
	if err != nil {
		return Resource{}, err
	}
	object, err := accept(&r, limits)
	if err != nil {
		return Resource{}, err
	}
	c.place(object)
	created, err := c.send(ctx, c.client.Post(), r.Kind, "", marshal(object), dryRun)
	return created, writeError(err, r.Kind, r.Name, harness.Unavailable)
}

// place puts an object into the namespace of all resources, whichever it names.
func (c *Cluster) place(object fields) {
	if metadata, ok := object["metadata"].(fields); ok {
		metadata["namespace"] = c.Namespace
	}
}

// Update implements Store. What metadata has of others, as finalizers and
// owners, stays.
func (c *Cluster) Update(ctx context.Context, r Resource, dryRun bool) (Resource, error) {
	limits, err := c.Now()
	if err != nil {
		return Resource{}, err
	}
	object, err := accept(&r, limits)
	if err != nil {
		return Resource{}, err
	}
	return c.write(ctx, r.Kind, r.Name, r.Version, func(is fields, version string) (Resource, error) {
		return c.send(ctx, c.client.Put(), r.Kind, r.Name, marshal(c.instead(is, object, version)), dryRun)
	})
}

// instead is the object that takes the place of is.
func (c *Cluster) instead(is, object fields, version string) fields {
	object = maps.Clone(object)
	was, _ := is["metadata"].(fields)
	own, _ := object["metadata"].(fields)
	metadata := maps.Clone(was)
	delete(metadata, "managedFields")
	for _, name := range []string{"labels", "annotations"} {
		delete(metadata, name)
		if value, ok := own[name]; ok {
			metadata[name] = value
		}
	}
	if annotations, _ := was["annotations"].(fields); annotations[lastApplied] != nil {
		kept := fields{lastApplied: annotations[lastApplied]}
		if given, ok := metadata["annotations"].(fields); ok {
			maps.Copy(kept, given)
		}
		metadata["annotations"] = kept
	}
	metadata["resourceVersion"], object["metadata"] = version, metadata
	c.place(object)
	return object
}

// Patch implements Store. The patch that is sent names the version for which it
// was found valid.
func (c *Cluster) Patch(ctx context.Context, kind, name, version string, patch []byte, dryRun bool) (Resource, error) {
	limits, err := c.Now()
	if err != nil {
		return Resource{}, err
	}
	return c.write(ctx, kind, name, version, func(is fields, version string) (Resource, error) {
		merged, clean, err := merge(own(is), patch)
		switch {
		case err != nil:
		case switchesOff(clean):
			_, before := read(yamltext.Flow(own(is)), limits)
			_, after := read(yamltext.Flow(merged), limits)
			err = invalid(added(after, before))
		default:
			err = check(merged, kind, name, limits)
		}
		if err != nil {
			return Resource{}, err
		}
		metadata, _ := clean["metadata"].(fields)
		if metadata = maps.Clone(metadata); metadata == nil {
			metadata = fields{}
		}
		delete(metadata, "namespace")
		metadata["resourceVersion"], clean["metadata"] = version, metadata
		return c.send(ctx, c.client.Patch(types.MergePatchType), kind, name, marshal(clean), dryRun)
	})
}

// own is what the reader knows of an object that is stored.
func own(object fields) fields {
	object = written(object)
	metadata, _ := object["metadata"].(fields)
	known := fields{}
	for _, name := range shown {
		if value, ok := metadata[name]; ok {
			known[name] = value
		}
	}
	object["metadata"] = known
	return object
}

// write reads a resource and lets change write it for the version that was read.
// Where any version would do, a write that came too late is made again.
func (c *Cluster) write(ctx context.Context, kind, name, version string, change func(is fields, version string) (Resource, error)) (Resource, error) {
	for range attempts {
		is, err := c.get(ctx, kind, name)
		if err != nil {
			return Resource{}, err
		}
		metadata, _ := is["metadata"].(fields)
		newest := text(metadata["resourceVersion"])
		if version != "" && version != newest {
			return Resource{}, stale(name)
		}
		r, err := change(is, newest)
		err = writeError(err, kind, name, harness.NotFound)
		if version != "" || harness.KindOf(err) != harness.Stale {
			return r, err
		}
	}
	return Resource{}, harness.Errorf(harness.Conflict, "%s is being changed by others all the time: try again", name)
}

func stale(name string) error {
	return harness.Errorf(harness.Stale, "%s was changed meanwhile: read it again", name)
}

// send makes a request that writes, and returns the resource that it made.
func (c *Cluster) send(ctx context.Context, request *rest.Request, kind, name string, body []byte, dryRun bool) (Resource, error) {
	request = request.Namespace(c.Namespace).Resource(plurals[kind]).Param("fieldValidation", "Strict").Body(body)
	if name != "" {
		request = request.Name(name)
	}
	if dryRun {
		request = request.Param("dryRun", "All")
	}
	answer, err := raw(request.Do(ctx))
	if err != nil {
		return Resource{}, err
	}
	return answered(answer, kind)
}

// Delete implements Store.
func (c *Cluster) Delete(ctx context.Context, kind, name, version string) error {
	if _, err := c.get(ctx, kind, name); err != nil {
		return err
	}
	options := fields{"kind": "DeleteOptions", "apiVersion": "v1"}
	if version != "" {
		options["preconditions"] = fields{"resourceVersion": version}
	}
	err := c.client.Delete().Namespace(c.Namespace).Resource(plurals[kind]).Name(name).Body([]byte(marshal(options))).Do(ctx).Error()
	return writeError(err, kind, name, harness.NotFound)
}

// StatusOf is the status of a resource as it was read.
type StatusOf struct {
	Kind, Name, Version string
	Is                  json.RawMessage // nil: none
}

// PutStatus makes the status of a resource what next says, by a merge patch of
// the status subresource that names the version that was read and empties every
// field that is there and should not be. It is no change of the resource's
// generation. harness.Stale: somebody has changed the resource since it was
// read; harness.NotFound: it is gone.
func (c *Cluster) PutStatus(ctx context.Context, s StatusOf, next any) error {
	patch, err := s.patch(next)
	if err != nil {
		return err
	}
	err = c.client.Patch(types.MergePatchType).Namespace(c.Namespace).Resource(plurals[s.Kind]).Name(s.Name).SubResource("status").
		Body(patch).Do(ctx).Error()
	return translate(err, "the status of "+s.Name+" cannot be written")
}

func (s StatusOf) patch(next any) ([]byte, error) {
	text, err := json.Marshal(next)
	if err != nil {
		return nil, err
	}
	put, is := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &put); err != nil {
		return nil, err
	}
	if len(s.Is) > 0 && json.Unmarshal(s.Is, &is) == nil {
		for name := range is {
			if _, stays := put[name]; !stays {
				put[name] = json.RawMessage("null")
			}
		}
	}
	return json.Marshal(map[string]any{"metadata": map[string]string{"resourceVersion": s.Version}, "status": put})
}
