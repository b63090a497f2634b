package resource_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/resource"
)

func contextFor(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}

// writerFolder is set in a process that writes without end.
const writerFolder = "TULUAT_RESOURCE_TEST_WRITER"

// TestWriter is the process that TestACrashLeavesAWholeFile kills.
func TestWriter(t *testing.T) {
	path := os.Getenv(writerFolder)
	if path == "" {
		t.Skip("is started by TestACrashLeavesAWholeFile")
	}
	f := resource.Folder{Path: path, Limits: v1alpha1.DefaultLimits()}
	for n := 0; ; n++ {
		if _, err := f.Patch(t.Context(), agents, "a", "", []byte(fmt.Sprintf(`{"spec":{"budget":{"maxSteps":%d}}}`, n%900+1)), false); err != nil {
			t.Fatal(err)
		}
	}
}

// A process that ends at any place of a write leaves the old file or the new
// one, and no lock.
func TestACrashLeavesAWholeFile(t *testing.T) {
	long := strings.Repeat("# a long file, so that writing it takes a while\n", 4000)
	text := head + "metadata: {name: a}\nspec: {budget: {maxSteps: 1}}\n" + long
	f := folder(t, map[string]string{"a.yaml": text})
	temporary := filepath.Join(f.Path, ".tuluat-resource.tmp")
	between := 0
	for range 15 {
		writer := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWriter$")
		writer.Env = append(os.Environ(), writerFolder+"="+f.Path)
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		for begun := time.Now(); time.Since(begun) < 20*time.Second; { // until it is in the middle of a write
			if _, err := os.Lstat(temporary); err == nil {
				break
			}
		}
		if err := writer.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = writer.Wait()
		if _, err := os.Lstat(temporary); err == nil {
			between++
		}
		got := files(t, f)["a.yaml"]
		_, rest, ok := strings.Cut(got, "maxSteps: ")
		if number, tail, is := strings.Cut(rest, "}}\n"); !ok || !is || len(number) > 3 || tail != long || !strings.HasPrefix(got, head+"metadata: {name: a}\nspec: {budget: {") {
			t.Fatalf("%.200q", got)
		}
		ctx, cancel := contextFor(t, 10*time.Second)
		if _, err := f.Patch(ctx, agents, "a", "", []byte(`{"spec":{"budget":{"maxSteps":1}}}`), false); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Patch(ctx, agents, "a", "", []byte(`{"spec":{"budget":{"maxSteps":2}}}`), false); err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err := os.Lstat(temporary); err == nil {
			t.Error("what the crash left is still there")
		}
	}
	if between == 0 {
		t.Error("no crash came between the temporary file and its rename")
	}
	t.Logf("%d of 15 crashes left a temporary file", between)
}
