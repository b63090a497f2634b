package conformance

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// Every case, against the functions as they are built from this checkout: they
// hold all of them, and every changed expectation is told apart.
func TestTheFunctionsHoldEveryCase(t *testing.T) {
	dsn := os.Getenv("TEST_DATABASE_URL")
	if dsn == "" {
		t.Fatal("TEST_DATABASE_URL is not set: run the tests by `make test`, or under `go run ./scripts/testdb -- ...`")
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	for name, mutate := range map[string]bool{"as they are": false, "changed": true} {
		t.Run(name, func(t *testing.T) {
			report, err := Channels(t.Context(), Options{Root: root, DatabaseURL: dsn, slack: 15}, filepath.Join("testdata", "channels"), "", mutate)
			if err != nil {
				t.Fatal(err)
			}
			if report.Cases != 97 || !report.OK() {
				var table bytes.Buffer
				if err := report.WriteTable(&table); err != nil {
					t.Fatal(err)
				}
				t.Error(table.String())
			}
		})
	}
}
