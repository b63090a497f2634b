package resource

import (
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

// translate turns an error of the API server into one of ours, here and nowhere
// else. Only what depends on the version that was read is told apart: everything
// else may be otherwise the next time.
func translate(err error, what string) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err):
		return harness.Wrap(harness.Stale, err, what+": it was changed meanwhile")
	case apierrors.IsNotFound(err):
		return harness.Wrap(harness.NotFound, err, what+": there is no such resource")
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return harness.Wrap(harness.Unavailable, err, what+": the API server does not allow it: check the function's Role")
	}
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsUnsupportedMediaType(err) {
		return harness.Wrap(harness.Internal, err, what+": the API server refuses its form")
	}
	if answer, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return harness.Wrap(harness.Unavailable, err, fmt.Sprintf("%s: the API server answers %d", what, answer.ErrStatus.Code))
	}
	return harness.Wrap(harness.Unavailable, err, what+": the API server does not answer")
}

// listError is translate for lists, of which nothing can be missing but the kind.
func listError(err error, kind string) error {
	if apierrors.IsNotFound(err) {
		return harness.Wrap(harness.Unavailable, err, plurals[kind]+" cannot be listed: the API server does not know them: install the CustomResourceDefinitions")
	}
	return translateOurs(err, plurals[kind]+" cannot be listed")
}

// writeError is translate for what a caller asks to have written. missing is what
// it means that the API server finds no such thing.
func writeError(err error, kind, name string, missing harness.Kind) error {
	what := kind + " " + name + " cannot be written"
	switch {
	case apierrors.IsAlreadyExists(err):
		return harness.Wrap(harness.Conflict, err, kind+" "+name+" exists already")
	case apierrors.IsNotFound(err) && missing == harness.Unavailable:
		return harness.Wrap(missing, err, what+": the API server does not know its namespace or its kind: install the CustomResourceDefinitions")
	case apierrors.IsInvalid(err):
		return &Invalid{Problems: causes(err), cause: err}
	case apierrors.IsBadRequest(err), apierrors.IsUnsupportedMediaType(err):
		return &Invalid{cause: err, Problems: v1alpha1.Problems{{
			What: "has a form that the API server does not take", Fix: "install the CustomResourceDefinitions of this release, or leave out what is new",
		}}}
	case apierrors.IsRequestEntityTooLargeError(err):
		return &Invalid{cause: err, Problems: v1alpha1.Problems{{What: "is larger than the API server takes", Fix: "shorten it"}}}
	case apierrors.IsForbidden(err):
		return harness.Wrap(harness.Denied, err, what+": a quota or an admission rule of the cluster does not allow it, or the function's Role")
	}
	return translateOurs(err, what)
}

// translateOurs leaves alone what is one of our errors already.
func translateOurs(err error, what string) error {
	if _, ours := errors.AsType[*harness.Error](err); ours {
		return err
	}
	return translate(err, what)
}

// causes are the API server's own problems with the fields.
func causes(err error) v1alpha1.Problems {
	answer, ok := errors.AsType[*apierrors.StatusError](err)
	var problems v1alpha1.Problems
	if ok && answer.ErrStatus.Details != nil {
		for _, cause := range answer.ErrStatus.Details.Causes {
			p := v1alpha1.Problem{Path: cause.Field, What: cause.Message}
			if cause.Field == "<nil>" { // of a rule of the whole resource
				p.Path = ""
			}
			if !slices.Contains(problems, p) {
				problems.Add(p)
			}
		}
	}
	if len(problems) == 0 {
		problems = v1alpha1.Problems{{What: "is not what the API server's rules allow"}}
	}
	return problems
}
