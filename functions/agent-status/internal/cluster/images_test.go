package cluster_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"tuluat.ai/harness/functions/agent-status/internal/image"
	"tuluat.ai/harness/functions/agent-status/internal/status"
	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

// skillImages begins a look; a rig without a registry has no images.
func (r *rig) skillImages() status.SkillImages { return r.looks.Begin() }

// The status says which image, by its digest, a skill is of; and while its registry
// is away, since when it is.
func TestSkillsOfAnImage(t *testing.T) {
	r, away := newRig(t), false
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if away {
			panic(http.ErrAbortHandler)
		}
		inner.ServeHTTP(w, q)
	}))
	defer server.Close()
	defer remote.DefaultTransport.(*http.Transport).CloseIdleConnections()
	host := strings.TrimPrefix(server.URL, "http://")
	puller := image.NewPuller(true, []string{host})
	defer puller.Close()
	r.looks = &image.Skills{Puller: puller, Store: r.store}
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	if err := archive.WriteHeader(&tar.Header{Name: "csv/SKILL.md", Size: 6, Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Write([]byte("Do it.")); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	built, err := mutate.AppendLayers(empty.Image, static.NewLayer(layer.Bytes(), types.OCIUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(host + "/csv:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, built); err != nil {
		t.Fatal(err)
	}
	digest, err := built.Digest()
	if err != nil {
		t.Fatal(err)
	}
	r.server.Put("aiagents", "a", fmt.Sprintf(`{"skills": {"items": [{"name": "csv", "description": "d", "imageRef": {"image": "%s/csv:1", "path": "/csv"}}]}}`, host))
	r.reconcile()
	of := fmt.Sprintf("csv is of %s/csv:1@%s", host, digest)
	if c := r.condition("a", v1alpha1.ConditionSkills); r.status("a").Phase != harness.AgentReady || c.Status != v1alpha1.ConditionTrue || c.Message != of || r.skill() != "Do it." {
		t.Errorf("%s, %+v, %q", r.status("a").Phase, c, r.skill())
	}
	away = true
	if _, err := r.store.Pool().Exec(context.Background(), `UPDATE skill_images SET tried_at = tried_at - interval '1 minute', confirmed_at = '2026-01-02T03:04:05Z'`); err != nil {
		t.Fatal(err)
	}
	r.timePasses()
	r.reconcile()
	want := of + " as of 2026-01-02T03:04:05Z: the registry cannot be reached, or broke off"
	if s, c := r.status("a"), r.condition("a", v1alpha1.ConditionSkills); s.Phase != harness.AgentDegraded || s.Revision != 1 || c.Status != v1alpha1.ConditionFalse || c.Message != want {
		t.Errorf("away: %+v, %+v; want %q", s, c, want)
	}
}
