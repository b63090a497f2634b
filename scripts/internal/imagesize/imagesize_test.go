package imagesize

import (
	"archive/tar"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func TestRegistry(t *testing.T) {
	const image = `{"schemaVersion":2,"config":{"size":1000},"layers":[{"size":2000000},{"size":500000}]}`
	documents := map[string]string{
		"/v2/a/runner/manifests/1":          image,
		"/v2/a/runner/manifests/latest":     image,
		"/v2/a/runner/manifests/sha256:abc": image,
		"/v2/many/manifests/1": `{"manifests":[{"digest":"sha256:other","platform":{"os":"linux","architecture":"none"}},
			{"digest":"sha256:this","platform":{"os":"linux","architecture":"` + runtime.GOARCH + `"}}]}`,
		"/v2/many/manifests/sha256:this": image,
		"/v2/foreign/manifests/1":        `{"manifests":[{"digest":"sha256:other","platform":{"os":"linux","architecture":"none"}}]}`,
		"/v2/empty/manifests/1":          `{}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := documents[r.URL.Path]
		if !ok || !slices.Contains(r.Header.Values("Accept"), "application/vnd.oci.image.index.v1+json") {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	for _, ref := range []string{"/a/runner:1", "/a/runner", "/a/runner@sha256:abc", "/a/runner:0@sha256:abc", "/many:1"} {
		if size, err := Of(t.Context(), host+ref); err != nil || size != 2501000 {
			t.Errorf("%s: %d, %v", ref, size, err)
		}
	}
	for _, ref := range []string{"runner:1", "a/runner:1", host + "/foreign:1", host + "/empty:1", host + "/none:1", "127.0.0.1:1/x:1"} {
		if size, err := Of(t.Context(), ref); err == nil {
			t.Errorf("%s: %d", ref, size)
		}
	}
	lines, err := Check(t.Context(), []Image{{"runner", host + "/a/runner:1", Runner}, {"fat", host + "/many:1", 2500999}, {"lost", host + "/none:1", Runner}})
	if len(lines) != 2 || !strings.Contains(lines[0], "2.5 MB of   3.0 MB") {
		t.Errorf("%q", lines)
	}
	if err == nil || strings.Contains(err.Error(), "runner:") || !strings.Contains(err.Error(), "fat: ") || !strings.Contains(err.Error(), "lost: ") {
		t.Errorf("%v", err)
	}
}

func TestArchive(t *testing.T) {
	write := func(files ...[2]string) string {
		t.Helper()
		name := filepath.Join(t.TempDir(), "image.tar")
		file, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		archive := tar.NewWriter(file)
		for _, f := range files {
			if err := archive.WriteHeader(&tar.Header{Name: f[0], Mode: 0o644, Size: int64(len(f[1]))}); err != nil {
				t.Fatal(err)
			}
			if _, err := archive.Write([]byte(f[1])); err != nil {
				t.Fatal(err)
			}
		}
		if err := archive.Close(); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		return name
	}
	manifest := [2]string{"manifest.json", `[{"Config":"sha256:c","Layers":["1.tar.gz","2.tar.gz"]}]`}
	whole := write([2]string{"sha256:c", "123"}, [2]string{"1.tar.gz", "12345"}, [2]string{"2.tar.gz", "1"}, manifest, [2]string{"other", "1234567890"})
	if size, err := Of(t.Context(), whole); err != nil || size != 9 {
		t.Errorf("%d, %v", size, err)
	}
	for name, archive := range map[string]string{
		"lacks a layer": write([2]string{"sha256:c", "123"}, [2]string{"1.tar.gz", "12345"}, manifest),
		"no manifest":   write([2]string{"sha256:c", "123"}),
		"two images":    write([2]string{"manifest.json", `[{},{}]`}),
		"is not there":  filepath.Join(t.TempDir(), "none.tar"),
	} {
		if size, err := Of(t.Context(), archive); err == nil {
			t.Errorf("%s: %d", name, size)
		}
	}
}
