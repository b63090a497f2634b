package resourcetest

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"testing"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/resource"
)

// SwitchingOff holds a store to what an emergency needs: blocks of an agent are
// switched off whatever else is wrong with what is stored, and every other write
// is held to all the rules. put stores the spec of an agent as others do, unasked.
func SwitchingOff(t *testing.T, s resource.Store, put func(name, spec string)) {
	const name = "emergency"
	put(name, `{"future": 1, "harness": {"type": "CODE", "sandbox": {"imageRef": "gone"}}, "skills": {"items": [{"name": "s", "description": "d", "text": "t"}]}}`)
	patch := func(version, text string, dryRun bool) (resource.Resource, error) {
		return s.Patch(t.Context(), v1alpha1.KindAgent, name, version, []byte(text), dryRun)
	}
	stored := func() (resource.Resource, object) {
		t.Helper()
		r, err := s.Get(t.Context(), v1alpha1.KindAgent, name)
		var o struct{ Spec object }
		if err = errors.Join(err, json.Unmarshal(r.Object, &o)); err != nil {
			t.Fatal(err)
		}
		return r, o.Spec
	}
	const both = `{"spec":{"harness":{"enabled":false},"skills":{"enabled":false}}}`
	first, before := stored()
	for _, refused := range []string{
		`{"spec":{"harness":{"enabled":true}}}`, `{"spec":{"harness":{"enabled":false},"skills":{"enabled":true}}}`, `{"spec":{"harness":{"enabled":null}}}`,
		`{"spec":{"harness":{"enabled":false,"maxSandboxes":1}}}`, `{"spec":{"harness":{"enabled":false},"description":"d"}}`,
		`{"metadata":{"labels":{"a":"b"}},"spec":{"harness":{"enabled":false}}}`, `{"spec":{}}`, `{}`,
	} {
		if _, err := patch("", refused, false); !slices.Contains(wrong(err), "spec.future") {
			t.Errorf("%s: %v, want a problem of spec.future", refused, err)
		}
	}
	// A problem that the patch itself brings is one.
	if _, err := patch("", `{"spec":{"other":{"enabled":false}}}`, false); !slices.Equal(wrong(err), []string{"spec.other"}) {
		t.Errorf("a block that no agent has: %v", err)
	}
	if _, err := patch(first.Version+"0", both, false); harness.KindOf(err) != harness.Stale {
		t.Errorf("of another version: %v", err)
	}
	if tried, err := patch(first.Version, both, true); err != nil || tried.Name != name {
		t.Errorf("a try: %+v, %v", tried, err)
	}
	if _, is := stored(); !reflect.DeepEqual(before, is) {
		t.Errorf("what was refused or tried changed it:\n%v\n%v", before, is)
	}
	off, err := patch(first.Version, both, false)
	if err != nil {
		t.Fatal(err)
	}
	want := merged(clone(before), object{"harness": object{"enabled": false}, "skills": object{"enabled": false}})
	if r, is := stored(); !reflect.DeepEqual(want, any(is)) || r.Version != off.Version || r.Version == first.Version {
		t.Errorf("switched off, version %s of %s:\n%v, want\n%v", r.Version, off.Version, is, want)
	}
	if again, err := patch("", both, false); err != nil || again.Version != off.Version {
		t.Errorf("again: %+v, %v", again, err)
	}
	if _, err := patch("", `{"spec":{"harness":{"enabled":true}}}`, false); !slices.Contains(wrong(err), "spec.future") {
		t.Errorf("switched on: %v, want a problem of spec.future", err)
	}
	if _, err := patch("", `{"spec":{"future":null,"harness":{"enabled":true,"sandbox":null}}}`, false); err != nil {
		t.Errorf("mended and switched on: %v", err)
	}
}

// wrong are the paths of what is wrong with a resource.
func wrong(err error) []string {
	var paths []string
	if invalid, ok := errors.AsType[*resource.Invalid](err); ok {
		for _, p := range invalid.Problems {
			paths = append(paths, p.Path)
		}
	}
	return paths
}
