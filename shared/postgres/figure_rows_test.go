package postgres_test

import (
	"io/fs"
	"strings"
	"testing"

	"tuluat.ai/harness/shared/postgres/schema"
)

// countRows is the statement of the migration that counts what there is.
func countRows(t *testing.T) string {
	t.Helper()
	files, err := fs.Glob(schema.Files(), "migrations/*_metrics_rows.sql")
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	text, err := fs.ReadFile(schema.Files(), files[0])
	if err != nil {
		t.Fatal(err)
	}
	from := strings.Index(string(text), "INSERT INTO figure_changes")
	statement, _, _ := strings.Cut(string(text)[from:], ";")
	return statement
}
