package crd_test

import (
	"os"
	"testing"

	"tuluat.ai/harness/functions/management-api/internal/apidoc/crd"
)

// The schemas that are compiled in are those of the CustomResourceDefinitions.
func TestSchemasAreCommitted(t *testing.T) {
	schemas, err := crd.Schemas(os.DirFS("../../../../../config/crd"))
	if err != nil {
		t.Fatal(err)
	}
	if len(schemas) != 2 {
		t.Errorf("%d kinds", len(schemas))
	}
	for kind, want := range schemas {
		got, err := os.ReadFile("../../api/schema/" + kind + ".json")
		if err != nil || string(got) != string(want) {
			t.Errorf("the schema of %s is not that of config/crd (%v): run `make generate`", kind, err)
		}
	}
}
