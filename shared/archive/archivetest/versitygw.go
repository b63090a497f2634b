//go:build versitygw

package archivetest

import (
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"tuluat.ai/harness/shared/archive"
)

// Versity starts the S3 server whose binary VERSITYGW names, and returns its bucket
// and the folder in which the objects of that are files.
func Versity(t testing.TB) (*archive.Store, string) {
	t.Helper()
	binary := os.Getenv("VERSITYGW")
	if binary == "" {
		t.Fatal("VERSITYGW names no binary: use make test-s3")
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, Name), 0o755); err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(binary, "--access", "key", "--secret", "very-secret", "--port", address, "posix", "--sidecar", t.TempDir(), dir)
	server.Stdout, server.Stderr = t.Output(), t.Output()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		if _, exited := errors.AsType[*exec.ExitError](server.Wait()); !exited {
			t.Error("the S3 server was gone before")
		}
	})
	for range 100 {
		if response, err := http.Get("http://" + address); err == nil {
			_ = response.Body.Close()
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	store, err := archive.Open(archive.Options{Endpoint: "http://" + address, Region: "us-east-1", Bucket: Name, AccessKey: "key", SecretKey: "very-secret", PathStyle: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store, filepath.Join(dir, Name)
}
