//go:build versitygw

package reap_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/archive/archivetest"
	"tuluat.ai/harness/shared/archive/part"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/postgres"
)

// A real S3 server: logs and output go there, its list has what the rows say and
// nothing else, every digest is right, and a byte that is flipped on its disk is
// found. What is to go is gone from its disk.
func TestVersityHasTheArchive(t *testing.T) {
	ctx := t.Context()
	w := &archived{world: newWorld(t)}
	var dir string
	w.files, dir = archivetest.Versity(t)
	w.agent()
	w.options.Objects, w.options.PartEntries = w.files, 7
	w.log("coder", 40, 20)
	w.log("coder", 33, 5)
	w.command("exe_1", 3*postgres.OutputWindow+1)
	w.pass()
	w.printed("exe_1", 3*postgres.OutputWindow+1)
	found, live := w.everything()
	if diff := cmp.Diff(united(entries("coder", 40, 20), entries("coder", 33, 5)), found); diff != "" || live != 0 {
		t.Errorf("%d live: %s", live, diff)
	}
	rows, err := w.store.ArchiveSums(ctx, "", 100)
	if err != nil {
		t.Fatal(err)
	}
	var listed, known []string
	for after := ""; ; {
		objects, more, err := w.files.List(ctx, part.Prefix, after, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			listed, after = append(listed, o.Key), o.Key
		}
		if !more {
			break
		}
	}
	for _, row := range rows {
		known = append(known, row.Key)
		if err := part.Verify(ctx, w.files, row.Key, part.Sum{SHA256: row.SHA256, Size: row.Size}); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(known, listed); diff != "" || len(known) != 3+1+1 {
		t.Errorf("%d rows: %s", len(known), diff)
	}
	file := filepath.Join(dir, filepath.FromSlash(known[1]))
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 0x10
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := part.Verify(ctx, w.files, known[1], part.Sum{SHA256: rows[1].SHA256, Size: rows[1].Size}); !errors.Is(err, part.ErrChanged) {
		t.Errorf("a flipped byte: %v", err)
	}
	w.sql(`UPDATE log_archives SET state = 'REMOVING'`)
	w.pass()
	if left, err := w.store.LogArchives(ctx, postgres.LogFilter{}, view.Place{}, postgres.LogArchive{}, 10); err != nil || len(left) != 0 {
		t.Errorf("rows %v, %v", left, err)
	}
	if objects, _, err := w.files.List(ctx, "", "", 10); err != nil || len(objects) != 0 {
		t.Errorf("objects %v, %v", objects, err)
	}
}
