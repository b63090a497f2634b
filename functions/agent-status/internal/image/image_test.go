package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"

	"tuluat.ai/harness/functions/agent-status/internal/image"
	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/postgres/postgrestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a registry and who reads it.
type world struct {
	t      *testing.T
	host   string
	store  *postgres.Store
	skills *image.Skills
	asked  atomic.Int64 // requests for manifests and blobs
	before atomic.Pointer[http.HandlerFunc]
	config string // of the pull secret
}

// answers has the registry answer by do first, which says by the header Handled
// that it has.
func (w *world) answers(do http.HandlerFunc) { w.before.Store(&do) }

func newWorld(t *testing.T) *world {
	w := &world{t: t, store: postgrestest.New(t)}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/manifests/") || strings.Contains(r.URL.Path, "/blobs/") {
			w.asked.Add(1)
		}
		if before := w.before.Load(); before != nil {
			(*before)(answer, r)
			if answer.Header().Get("Handled") != "" {
				return
			}
		}
		inner.ServeHTTP(answer, r)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	t.Cleanup(remote.DefaultTransport.(*http.Transport).CloseIdleConnections)
	w.host = strings.TrimPrefix(server.URL, "http://")
	w.skills = w.reader(true, w.host)
	return w
}

func (w *world) reader(private bool, plain ...string) *image.Skills {
	puller := image.NewPuller(private, plain)
	w.t.Cleanup(puller.Close)
	return &image.Skills{Puller: puller, Store: w.store, Secrets: texts{w}}
}

// texts is the pull secret "pull".
type texts struct{ w *world }

func (s texts) Text(_ context.Context, agent harness.AgentName, ref harness.SecretRef) (harness.Secret, error) {
	if agent != "coder" || ref != (harness.SecretRef{Name: "pull", Key: ".dockerconfigjson"}) {
		return "", nil
	}
	return harness.Secret(s.w.config), nil
}

func (w *world) push(tag string, i v1.Image) string {
	w.t.Helper()
	ref, err := name.ParseReference(w.host + "/skills/" + tag)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := remote.Write(ref, i); err != nil {
		w.t.Fatal(err)
	}
	digest, err := i.Digest()
	if err != nil {
		w.t.Fatal(err)
	}
	return digest.String()
}

// entry is one of a layer: a file, or with kind something else.
type entry struct {
	name, text string
	kind       byte
}

func layer(t *testing.T, entries ...entry) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	archive := tar.NewWriter(z)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: 0o644, Size: int64(len(e.text)), Typeflag: tar.TypeReg}
		if e.kind != 0 {
			h.Typeflag, h.Size, h.Linkname = e.kind, 0, e.text
		}
		if err := archive.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(archive, e.text); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return static.NewLayer(b.Bytes(), types.DockerLayer)
}

func of(t *testing.T, layers ...v1.Layer) v1.Image {
	t.Helper()
	i, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func skill(ref, path string) v1alpha1.Skill {
	return v1alpha1.Skill{Name: "csv", ImageRef: &v1alpha1.SkillImageRef{Image: ref, Path: path}}
}

// files asks once, in a pass of its own.
func (w *world) files(s v1alpha1.Skill) (lines, from, wrong string) {
	w.t.Helper()
	return w.in(w.skills.Begin(), s)
}

func (w *world) in(pass *image.Pass, s v1alpha1.Skill) (lines, from, wrong string) {
	w.t.Helper()
	files, from, problem := pass.Files(context.Background(), "coder", s)
	if problem != nil {
		return "", from, fmt.Sprintf("%s %s: %s", problem.Path, problem.What, problem.Fix)
	}
	var all []string
	for path, data := range files {
		all = append(all, path+"="+string(data))
	}
	slices.Sort(all)
	return strings.Join(all, " "), from, ""
}

// aMinutePasses lets the next look be due.
func (w *world) aMinutePasses() {
	w.t.Helper()
	if _, err := w.store.Pool().Exec(context.Background(), `UPDATE skill_images SET tried_at = tried_at - interval '1 minute', confirmed_at = confirmed_at - interval '1 minute'`); err != nil {
		w.t.Fatal(err)
	}
}

// Layers lie one over the other as a container would see them.
func TestLayers(t *testing.T) {
	file := func(name, text string) entry { return entry{name: name, text: text} }
	folder := func(name string) entry { return entry{name: name, kind: tar.TypeDir} }
	for what, c := range map[string]struct {
		path   string
		layers [][]entry
		want   string
	}{
		"one":                     {"/s", [][]entry{{file("s/SKILL.md", "x"), file("other", "y"), file("s2/z", "z")}}, "SKILL.md=x"},
		"the whole image":         {"", [][]entry{{file("./SKILL.md", "x"), file("./a/b", "y")}}, "SKILL.md=x a/b=y"},
		"the upper holds":         {"/s", [][]entry{{file("s/a", "1"), file("s/b", "1")}, {file("s/a", "2")}}, "a=2 b=1"},
		"the last in a layer":     {"/s", [][]entry{{file("s/a", "1"), file("s/a", "2")}}, "a=2"},
		"a whiteout":              {"/s", [][]entry{{file("s/a", "1"), file("s/b", "1")}, {file("s/.wh.a", "")}}, "b=1"},
		"and made again":          {"/s", [][]entry{{file("s/a", "1")}, {file("s/.wh.a", "")}, {file("s/a", "3")}}, "a=3"},
		"in its own layer":        {"/s", [][]entry{{file("s/a", "1")}, {file("s/a", "2"), file("s/.wh.a", "")}}, "a=2"},
		"of a folder":             {"/s", [][]entry{{file("s/d/a", "1"), file("s/b", "1")}, {file("s/.wh.d", "")}}, "b=1"},
		"of the skill's folder":   {"/s", [][]entry{{file("s/a", "1")}, {file(".wh.s", "")}, {file("s/b", "2")}}, "b=2"},
		"an opaque folder":        {"/s", [][]entry{{file("s/d/a", "1"), file("s/b", "1")}, {file("s/d/.wh..wh..opq", ""), file("s/d/c", "2")}}, "b=1 d/c=2"},
		"an opaque image":         {"", [][]entry{{file("a", "1")}, {file(".wh..wh..opq", ""), file("b", "2")}}, "b=2"},
		"a file over a folder":    {"/s", [][]entry{{file("s/d/a", "1")}, {file("s/d", "2")}}, "d=2"},
		"a folder over a file":    {"/s", [][]entry{{file("s/d", "1")}, {file("s/d/a", "2")}}, "d/a=2"},
		"a link that is covered":  {"/s", [][]entry{{{"s/a", "/etc/passwd", tar.TypeSymlink}}, {file("s/a", "2")}}, "a=2"},
		"a link elsewhere":        {"/s", [][]entry{{{"bin", "usr/bin", tar.TypeSymlink}, file("s/a", "1")}}, "a=1"},
		"names of dots":           {"/s", [][]entry{{folder("s/.git"), file("s/.git/a", "1"), file("s/.hidden", "1"), file("s/a", "1")}}, "a=1"},
		"large files elsewhere":   {"/s", [][]entry{{file("usr/lib", strings.Repeat("x", 1<<20)), file("s/a", "1")}}, "a=1"},
		"many that are covered":   {"/s", [][]entry{{file("s/d/a", strings.Repeat("x", 1<<20))}, {file("s/.wh.d", "")}, {file("s/b", "1")}}, "b=1"},
		"a link under a whiteout": {"/s", [][]entry{{{"s/d", "/", tar.TypeSymlink}}, {file("s/.wh.d", "")}, {file("s/b", "1")}}, "b=1"},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			var layers []v1.Layer
			for _, entries := range c.layers {
				layers = append(layers, layer(t, entries...))
			}
			digest := w.push("csv:1", of(t, layers...))
			got, from, wrong := w.files(skill(w.host+"/skills/csv:1", c.path))
			if got != c.want || wrong != "" || from != w.host+"/skills/csv:1@"+digest {
				t.Errorf("got %q of %s, %s; want %q", got, from, wrong, c.want)
			}
		})
	}
}

// What a hostile image has is refused with its reason, and not pulled again while
// it is the same.
func TestHostileImages(t *testing.T) {
	bomb := func(t *testing.T) v1.Layer {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		archive := tar.NewWriter(z)
		const size = 256 << 20
		if err := archive.WriteHeader(&tar.Header{Name: "other", Size: size, Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		zeros := make([]byte, 1<<20)
		for range size >> 20 {
			if _, err := archive.Write(zeros); err != nil {
				t.Fatal(err)
			}
		}
		if err := archive.Close(); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return static.NewLayer(b.Bytes(), types.DockerLayer)
	}
	many := make([]entry, harness.MaxSkillFiles+1)
	for i := range many {
		many[i] = entry{name: fmt.Sprintf("s/%d", i)}
	}
	for what, c := range map[string]struct {
		entries []entry
		layer   func(*testing.T) v1.Layer
		want    string
	}{
		"a symlink":        {[]entry{{"s/a", "/etc/passwd", tar.TypeSymlink}}, nil, `has "a", which is a link or a special file`},
		"a hardlink":       {[]entry{{"x", "1", 0}, {"s/a", "x", tar.TypeLink}}, nil, `has "a", which is a link or a special file`},
		"a device":         {[]entry{{"s/a", "", tar.TypeChar}}, nil, `has "a", which is a link or a special file`},
		"a linked folder":  {[]entry{{"s", "/etc", tar.TypeSymlink}}, nil, `has "/s", which is no folder, where path leads through it`},
		"an absolute path": {[]entry{{"/s/a", "1", 0}}, nil, `has a layer with the path "/s/a": paths are relative, without ..`},
		"a path upwards":   {[]entry{{"s/../../a", "1", 0}}, nil, `has a layer with the path "s/../../a"`},
		"only upwards":     {[]entry{{"../a", "1", 0}}, nil, `has a layer with the path "../a"`},
		"too large":        {[]entry{{"s/a", strings.Repeat("x", harness.MaxSkillBytes+1), 0}}, nil, "has more than 262144 bytes"},
		"together":         {[]entry{{"s/a", strings.Repeat("x", harness.MaxSkillBytes), 0}, {"s/b", "x", 0}}, nil, "has more than 262144 bytes"},
		"too many":         {many, nil, "has more than 64 files"},
		"a bomb":           {nil, bomb, "unpacks to more than 134217728 bytes"},
		"no archive": {nil, func(*testing.T) v1.Layer {
			return static.NewLayer(bytes.Repeat([]byte("no tar "), 500), types.DockerLayer)
		}, "has a layer that is not a tar archive"},
		"no layer of files": {nil, func(*testing.T) v1.Layer { return static.NewLayer([]byte("x"), "application/x-other") }, `has a layer of type "application/x-other"`},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			l := c.layer
			if l == nil {
				l = func(t *testing.T) v1.Layer { return layer(t, c.entries...) }
			}
			w.push("csv:1", of(t, l(t)))
			s := skill(w.host+"/skills/csv:1", "/s")
			for range 2 {
				if _, _, wrong := w.files(s); !strings.Contains(wrong, "imageRef "+c.want) {
					t.Errorf("got %q, want %q", wrong, c.want)
				}
				w.aMinutePasses()
				w.asked.Store(0)
			}
			if _, _, wrong := w.files(s); !strings.Contains(wrong, c.want) || w.asked.Load() != 1 {
				t.Errorf("the same again: %q after %d requests, want the manifest only", wrong, w.asked.Load())
			}
		})
	}
}

// A layer of 10 GB is not begun, and one that is larger than it says is not read on.
func TestALayerOfTenGigabytes(t *testing.T) {
	const digest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	for size, want := range map[int64]string{10 << 30: "has layers of more than 33554432 bytes", 100: "has a part that is larger than is read of one", -1: "has layers of more than"} {
		w := newWorld(t)
		var sent int64
		w.answers(func(a http.ResponseWriter, r *http.Request) {
			a.Header().Set("Handled", "1")
			switch {
			case strings.Contains(r.URL.Path, "/manifests/"):
				a.Header().Set("Content-Type", string(types.OCIManifestSchema1))
				fmt.Fprintf(a, `{"schemaVersion":2,"layers":[{"mediaType":%q,"size":%d,"digest":%q}]}`, types.OCIUncompressedLayer, size, digest)
			case strings.Contains(r.URL.Path, "/blobs/"):
				var head bytes.Buffer
				if err := tar.NewWriter(&head).WriteHeader(&tar.Header{Name: "other", Size: 10 << 30, Mode: 0o644}); err != nil {
					t.Error(err)
				}
				a.Write(head.Bytes())
				for chunk := make([]byte, 1<<20); ; sent += 1 << 20 {
					if _, err := a.Write(chunk); err != nil {
						return
					}
				}
			}
		})
		if _, _, wrong := w.files(skill(w.host+"/skills/csv:1", "/s")); !strings.Contains(wrong, want) || sent > 100<<20 {
			t.Errorf("size %d: %q after %d MiB, want %q", size, wrong, sent>>20, want)
		}
	}
}

// A layer may be packed in either way, or in none; one that would need the memory of
// the whole function to be unpacked is not.
func TestHowLayersArePacked(t *testing.T) {
	var plain bytes.Buffer
	archive := tar.NewWriter(&plain)
	if err := archive.WriteHeader(&tar.Header{Name: "a", Size: 1, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Write([]byte("1")); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	packed := func(window int) []byte {
		var b bytes.Buffer
		z, err := zstd.NewWriter(&b, zstd.WithWindowSize(window))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := z.Write(append(plain.Bytes(), make([]byte, window)...)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	for what, c := range map[string]struct {
		layer []byte
		media types.MediaType
		good  bool
	}{
		"plain":        {plain.Bytes(), types.OCIUncompressedLayer, true},
		"zstd":         {packed(1 << 20), types.OCILayerZStd, true},
		"large window": {packed(64 << 20), types.OCILayerZStd, false},
	} {
		w := newWorld(t)
		w.push("csv:1", of(t, static.NewLayer(c.layer, c.media)))
		if got, _, wrong := w.files(skill(w.host+"/skills/csv:1", "")); (got == "a=1") != c.good || !c.good && !strings.Contains(wrong, "takes more than 8388608 bytes of memory to unpack") {
			t.Errorf("%s: %q, %s", what, got, wrong)
		}
	}
}

func TestAnIndexOfTwoPlatforms(t *testing.T) {
	w := newWorld(t)
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	index := func(architectures ...string) v1.ImageIndex {
		var i v1.ImageIndex = empty.Index
		for _, a := range architectures {
			i = mutate.AppendManifests(i, mutate.IndexAddendum{
				Add: of(t, layer(t, entry{name: "SKILL.md", text: a})), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: a}},
			})
		}
		return i
	}
	both, one := index(other, runtime.GOARCH), index(other)
	for tag, i := range map[string]v1.ImageIndex{"both": both, "one": one} {
		ref, err := name.ParseReference(w.host + "/skills/csv:" + tag)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.WriteIndex(ref, i); err != nil {
			t.Fatal(err)
		}
	}
	digest, err := both.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got, from, wrong := w.files(skill(w.host+"/skills/csv:both", "")); got != "SKILL.md="+runtime.GOARCH || !strings.HasSuffix(from, "@"+digest.String()) {
		t.Errorf("got %q of %s, %s", got, from, wrong)
	}
	if _, _, wrong := w.files(skill(w.host+"/skills/csv:one", "")); !strings.Contains(wrong, "has nothing for linux/"+runtime.GOARCH) {
		t.Errorf("got %q", wrong)
	}
}

// A tag is looked at again at the sweep's pace; a digest never.
func TestHowOftenItIsAsked(t *testing.T) {
	w := newWorld(t)
	first := w.push("csv:1", of(t, layer(t, entry{name: "a", text: "1"})))
	tag, pinned := skill(w.host+"/skills/csv:1", ""), skill(w.host+"/skills/csv@"+first, "")
	pinned.Name = "pinned"
	w.files(tag)
	w.files(pinned)
	w.push("csv:1", of(t, layer(t, entry{name: "a", text: "2"})))
	w.asked.Store(0)
	got, _, _ := w.files(tag)
	if got != "a=1" || w.asked.Load() != 0 {
		t.Errorf("within the minute: %q after %d requests", got, w.asked.Load())
	}
	w.aMinutePasses()
	if got, from, _ := w.files(tag); got != "a=2" || strings.Contains(from, first) {
		t.Errorf("after it: %q of %s", got, from)
	}
	w.aMinutePasses()
	w.asked.Store(0)
	if got, _, _ := w.files(tag); got != "a=2" || w.asked.Load() != 1 {
		t.Errorf("unchanged: %q after %d requests", got, w.asked.Load())
	}
	w.asked.Store(0)
	if got, from, _ := w.files(pinned); got != "a=1" || from != w.host+"/skills/csv@"+first || w.asked.Load() != 0 {
		t.Errorf("a digest: %q of %s after %d requests", got, from, w.asked.Load())
	}
}

// A registry that is away or slow leaves what there is; what is newly wrong there
// does not.
func TestARegistryThatDoesNotAnswer(t *testing.T) {
	w := newWorld(t)
	s := skill(w.host+"/skills/csv:1", "")
	if _, _, wrong := w.files(s); !strings.Contains(wrong, "imageRef cannot be pulled: the registry has no such image") {
		t.Errorf("nothing there: %q", wrong)
	}
	w.push("csv:1", of(t, layer(t, entry{name: "a", text: "1"})))
	w.aMinutePasses()
	w.files(s)
	for what, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"dead":   {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "the registry cannot be reached, or broke off"},
		"broken": {func(a http.ResponseWriter, _ *http.Request) { a.Header().Set("Handled", "1"); a.WriteHeader(500) }, "the registry answered 500"},
		"endless": {func(a http.ResponseWriter, r *http.Request) {
			a.Header().Set("Handled", "1")
			for r.Context().Err() == nil {
				if _, err := a.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, "has a part that is larger than is read of one"},
	} {
		w.answers(c.answer)
		w.aMinutePasses()
		pass := w.skills.Begin()
		got, _, wrong := w.in(pass, s)
		if what == "endless" {
			w.before.Store(nil)
			continue // it may be refused: that it ends is what matters
		}
		if got != "a=1" || wrong != "" || len(pass.Warnings()) != 1 || !strings.Contains(pass.Warnings()[0], c.want) {
			t.Errorf("%s: %q, %s, warnings %q", what, got, wrong, pass.Warnings())
		}
		w.before.Store(nil)
	}
	moved := skill(w.host+"/skills/csv:2", "")
	w.answers(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	if got, _, wrong := w.files(moved); got != "" || !strings.Contains(wrong, "cannot be pulled") {
		t.Errorf("another tag while it is away: %q, %q", got, wrong)
	}
}

// One slow registry costs a pass its time once, however many skills it has.
func TestASlowRegistry(t *testing.T) {
	w := newWorld(t)
	w.answers(func(a http.ResponseWriter, r *http.Request) {
		a.Header().Set("Handled", "1")
		<-r.Context().Done()
	})
	pass := w.skills.Begin()
	first, second := skill(w.host+"/skills/csv:1", ""), skill(w.host+"/skills/csv:2", "")
	second.Name = "second"
	if _, _, wrong := w.in(pass, first); !strings.Contains(wrong, "the registry did not answer in time") {
		t.Errorf("got %q", wrong)
	}
	if _, _, wrong := w.in(pass, second); !strings.Contains(wrong, "was not pulled yet") {
		t.Errorf("got %q", wrong)
	}
}

func TestCredentials(t *testing.T) {
	w := newWorld(t)
	w.push("csv:1", of(t, layer(t, entry{name: "a", text: "1"})))
	w.answers(func(a http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "u" || password != "p, with a comma" {
			a.Header().Set("Handled", "1")
			a.Header().Set("WWW-Authenticate", `Basic realm="r"`)
			a.WriteHeader(http.StatusUnauthorized)
		}
	})
	for what, c := range map[string]struct{ config, secret, want string }{
		"none":          {"", "", "the registry does not let these credentials read it"},
		"right":         {fmt.Sprintf(`{"auths": {%q: {"username": "u", "password": "p, with a comma"}}}`, w.host), "pull", ""},
		"of the folder": {fmt.Sprintf(`{"auths": {%q: {"auth": "eDp4"}, "https://%s/skills/": {"auth": "dTpwLCB3aXRoIGEgY29tbWE="}}}`, w.host, w.host), "pull", ""},
		"wrong":         {fmt.Sprintf(`{"auths": {%q: {"username": "u", "password": "hidden-value"}}}`, w.host), "pull", "the registry does not let these credentials read it"},
		"another's":     {`{"auths": {"registry.example": {"username": "u", "password": "hidden-value"}}}`, "pull", "without credentials for this registry"},
		"no JSON":       {"hidden-value", "pull", "is not the JSON of registry credentials"},
		"no Secret":     {"", "other", "names other, and there is no such Secret"},
	} {
		w.config = c.config
		s := skill(w.host+"/skills/csv:1", "")
		s.Name = v1alpha1.Name(strings.ReplaceAll(strings.ToLower(what), " ", "-"))
		if c.secret != "" {
			s.ImageRef.PullSecretRef = &v1alpha1.PullSecretRef{Name: c.secret}
		}
		got, _, wrong := w.files(s)
		if (c.want == "") != (got == "a=1") || !strings.Contains(wrong, c.want) || strings.Contains(wrong, "hidden") {
			t.Errorf("%s: %q, %q; want %q", what, got, wrong, c.want)
		}
	}
}

// Private addresses and plain http are refused where the platform does not allow
// them, also where a registry sends its reader there.
func TestAddresses(t *testing.T) {
	w := newWorld(t)
	w.push("csv:1", of(t, layer(t, entry{name: "a", text: "1"})))
	s := skill(w.host+"/skills/csv:1", "")
	for what, c := range map[string]struct {
		skills *image.Skills
		want   string
	}{
		"private": {w.reader(false, w.host), "the registry's address is not public"},
		"plain":   {w.reader(true), "is reached by plain http, which the platform does not allow for it"},
	} {
		if _, _, wrong := w.in(c.skills.Begin(), s); !strings.Contains(wrong, c.want) {
			t.Errorf("%s: %q", what, wrong)
		}
		w.aMinutePasses()
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	defer elsewhere.Close()
	w.answers(func(a http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			a.Header().Set("Handled", "1")
			http.Redirect(a, r, elsewhere.URL, http.StatusTemporaryRedirect)
		}
	})
	if _, _, wrong := w.files(s); !strings.Contains(wrong, "plain http") {
		t.Errorf("redirected: %q", wrong)
	}
}

func TestWhatIsKept(t *testing.T) {
	w := newWorld(t)
	digest := w.push("csv:1", of(t, layer(t, entry{name: "a", text: "\xff\x00"})))
	w.files(skill(w.host+"/skills/csv:1", ""))
	is, err := w.store.SkillImage(context.Background(), "coder", "csv", w.host+"/skills/csv:1  ")
	if diff := cmp.Diff(map[string][]byte{"a": []byte("\xff\x00")}, is.Files); err != nil || diff != "" || is.Digest != digest || !is.Tried {
		t.Errorf("%+v, %v\n%s", is, err, diff)
	}
}
