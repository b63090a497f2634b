// Package resource keeps AiAgents and AiWorkflows where they are at home: at
// the API server of a cluster, or on one machine in a folder of YAML. Both are
// read and written through the same Store, with the same validation and the same
// meaning of versions.
package resource

import (
	"context"
	"encoding/json"
	"time"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

// Resource is one AiAgent or AiWorkflow.
type Resource struct {
	Kind       string // v1alpha1.KindAgent or KindWorkflow
	Name       string
	Generation int64     // counts changes of spec; 0 in a folder
	Version    string    // changes with every change of the resource; of a folder, a digest of the document
	CreatedAt  time.Time // zero in a folder, which does not keep it

	// Object is the whole of it: apiVersion, kind, metadata (name, namespace,
	// labels, annotations, generation, resourceVersion, creationTimestamp, each
	// where there is one), spec and status.
	Object json.RawMessage

	// YAML is, of a folder, the document as its author wrote it; of a cluster, one
	// that would make the same resource. Where Create or Update are given it and it
	// says what Object says, a folder keeps it as it is.
	YAML []byte
}

// Status returns the status in r.Object, nil if there is none.
func (r Resource) Status() json.RawMessage {
	var object struct {
		Status json.RawMessage `json:"status"`
	}
	if json.Unmarshal(r.Object, &object) != nil {
		return nil
	}
	return object.Status
}

// Store reads and writes resources. Errors are *harness.Error or *Invalid:
//
//	NotFound     there is no such resource
//	Conflict     it exists already, or somebody else keeps changing it, or its file is not ours to change
//	Stale        the version given is no longer the newest
//	Denied       the API server's own rules do not allow the write
//	Unavailable  the API server does not answer, or the folder cannot be read or written
//	*Invalid     what is wrong with the fields
//
// A write with dryRun answers as it would otherwise, and changes nothing.
type Store interface {
	// List returns at most limit resources by name, and where to go on; an empty
	// next says that there are no more. after is a next, a Behind, a name, or empty;
	// one that is none of these is harness.Invalid.
	List(ctx context.Context, kind, after string, limit int) (items []Resource, next string, err error)
	Get(ctx context.Context, kind, name string) (Resource, error)
	// Create makes a resource of r.Object. What a server writes in metadata, and
	// status, are left out.
	Create(ctx context.Context, r Resource, dryRun bool) (Resource, error)
	// Update makes the resource of r.Kind and r.Name what r.Object says, if it is of
	// r.Version; an empty version is any.
	Update(ctx context.Context, r Resource, dryRun bool) (Resource, error)
	// Patch applies an RFC 7386 merge patch to the resource if it is of this
	// version; an empty version is any.
	Patch(ctx context.Context, kind, name, version string, patch []byte, dryRun bool) (Resource, error)
	// Delete removes the resource if it is of this version; an empty version is any.
	Delete(ctx context.Context, kind, name, version string) error
}

// Invalid says what is wrong with the fields of a resource, by our own rules or
// by those of the API server. Its kind is harness.Invalid.
type Invalid struct {
	Problems v1alpha1.Problems // with paths, as in spec.harness.type; without documents and lines
	cause    error
}

func (e *Invalid) Error() string { return e.Problems.Error() }

// Unwrap returns it as an error of the kind that it is.
func (e *Invalid) Unwrap() error {
	return &harness.Error{Kind: harness.Invalid, Message: e.Problems.Error(), Err: e.cause}
}

// invalid returns problems as an error, nil if there are none.
func invalid(problems v1alpha1.Problems) error {
	if len(problems) == 0 {
		return nil
	}
	return &Invalid{Problems: problems}
}
