// Package image reads skills out of images of OCI registries. What a registry
// sends is hostile until it is proved small and plain: nothing is unpacked to a
// disk, and no link of an image is followed.
package image

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"tuluat.ai/harness/shared/dial"
	"tuluat.ai/harness/shared/harness"
)

// The most of one image that is read. An image for a skill holds little beside
// the skill.
const (
	maxManifest = 1 << 20   // bytes of one manifest, token or error
	maxPulled   = 32 << 20  // bytes of all layers as they are compressed
	maxUnpacked = 128 << 20 // bytes of all layers as they are unpacked
	maxLayers   = 64
	maxEntries  = 20_000 // of all layers
)

const dialTimeout = 5 * time.Second

// Puller reads images of registries.
type Puller struct {
	tripper bounded
	plain   []string
}

// NewPuller returns a Puller that reaches public addresses only, unless
// allowPrivate, and speaks plain http only to the hosts of plain (as in
// registry.local:5000).
func NewPuller(allowPrivate bool, plain []string) *Puller {
	return &Puller{tripper: bounded{next: dial.Transport(dialTimeout, allowPrivate), plain: plain}, plain: plain}
}

// Close frees idle connections.
func (p *Puller) Close() { p.tripper.next.CloseIdleConnections() }

// opened is an image whose manifest was read.
type opened struct {
	digest   string // of what the reference names: a manifest, or an index of several
	manifest []byte
	media    types.MediaType
	repo     name.Repository
	options  []remote.Option
}

// open asks the registry what image is now. harness.Invalid: it is nothing that
// skills come in; harness.Unavailable: the registry does not give it now.
func (p *Puller) open(ctx context.Context, image string, auth authn.Authenticator) (opened, error) {
	ref, err := p.parse(image)
	if err != nil {
		return opened{}, err
	}
	o := opened{repo: ref.Context(), options: []remote.Option{
		remote.WithContext(ctx), remote.WithTransport(p.tripper), remote.WithAuth(cmp.Or[authn.Authenticator](auth, authn.Anonymous)),
		remote.WithRetryBackoff(remote.Backoff{Steps: 1}), // the sweep tries again
	}}
	found, err := remote.Get(ref, o.options...)
	if err != nil {
		return opened{}, translate(ctx, err)
	}
	o.digest, o.manifest, o.media = found.Digest.String(), found.Manifest, found.MediaType
	return o, nil
}

// parse reads a reference.
func (p *Puller) parse(image string) (name.Reference, error) {
	ref, err := name.ParseReference(image)
	if err == nil && slices.Contains(p.plain, ref.Context().RegistryStr()) {
		ref, err = name.ParseReference(image, name.Insecure)
	}
	if err != nil {
		return nil, harness.Wrap(harness.Invalid, err, "is not an image reference")
	}
	return ref, nil
}

// files reads the files below root of the image that was opened.
func (o opened) files(ctx context.Context, root string) (map[string][]byte, error) {
	manifest, err := o.one(ctx)
	if err != nil {
		return nil, err
	}
	if len(manifest.Layers) > maxLayers {
		return nil, wrong("has %d layers: at most %d are read", len(manifest.Layers), maxLayers)
	}
	var size int64
	for _, layer := range manifest.Layers {
		if len(layer.URLs) > 0 || !layer.MediaType.IsLayer() || !layer.MediaType.IsDistributable() {
			return nil, wrong("has a layer of type %q, which is not a layer of files in this registry", layer.MediaType)
		}
		if size += max(layer.Size, 0); layer.Size < 0 || size > maxPulled {
			return nil, wrong("has layers of more than %d bytes", maxPulled)
		}
	}
	u := newUnpacking(root)
	for _, layer := range slices.Backward(manifest.Layers) { // from the top: what a layer hides is never read
		if err := o.layer(ctx, u, layer); err != nil {
			return nil, err
		}
	}
	return u.files, nil
}

func (o opened) layer(ctx context.Context, u *unpacking, d v1.Descriptor) error {
	layer, err := remote.Layer(o.repo.Digest(d.Digest.String()), o.options...)
	if err != nil {
		return translate(ctx, err)
	}
	content, err := layer.Compressed()
	if err != nil {
		return translate(ctx, err)
	}
	defer content.Close()
	plain, err := decompress(content)
	if err != nil {
		return translate(ctx, err)
	}
	defer plain.Close()
	if err := u.layer(plain); err != nil {
		return translate(ctx, err)
	}
	_, err = io.Copy(io.Discard, content) // to the end: its digest is checked there
	return translate(ctx, err)
}

// one is the manifest of the image itself: of an index, the entry for linux on
// the processor that this function runs on.
func (o opened) one(ctx context.Context) (v1.Manifest, error) {
	if o.media.IsIndex() {
		var index v1.IndexManifest
		if err := json.Unmarshal(o.manifest, &index); err != nil {
			return v1.Manifest{}, wrong("has an index that cannot be read")
		}
		i := slices.IndexFunc(index.Manifests, func(d v1.Descriptor) bool {
			return d.MediaType.IsImage() && d.Platform != nil && d.Platform.OS == "linux" && d.Platform.Architecture == runtime.GOARCH
		})
		if i < 0 {
			return v1.Manifest{}, wrong("has nothing for linux/%s", runtime.GOARCH)
		}
		found, err := remote.Get(o.repo.Digest(index.Manifests[i].Digest.String()), o.options...)
		if err != nil {
			return v1.Manifest{}, translate(ctx, err)
		}
		o.manifest, o.media = found.Manifest, found.MediaType
	}
	if !o.media.IsImage() {
		return v1.Manifest{}, wrong("is of type %q, which is no image", o.media)
	}
	var manifest v1.Manifest
	if err := json.Unmarshal(o.manifest, &manifest); err != nil {
		return manifest, wrong("has a manifest that cannot be read")
	}
	return manifest, nil
}

// wrong is what the image's author is to mend.
func wrong(format string, args ...any) error { return harness.Errorf(harness.Invalid, format, args...) }

// translate makes errors of the wire ours. What a registry says itself is left
// out: it may repeat what it was sent.
func translate(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if known, ok := errors.AsType[*harness.Error](err); ok {
		return known
	}
	answer, answered := errors.AsType[*transport.Error](err)
	switch {
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return wrong("has a layer that takes more than %d bytes of memory to unpack", maxWindow)
	case ctx.Err() != nil:
		return harness.Wrap(harness.Unavailable, err, "the registry did not answer in time")
	case errors.Is(err, dial.ErrPrivate):
		return harness.Wrap(harness.Unavailable, err, "the registry's address is not public: private, loopback and link-local addresses are refused")
	case !answered:
		return harness.Wrap(harness.Unavailable, err, "the registry cannot be reached, or broke off")
	case answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden:
		return harness.Wrap(harness.Unavailable, err, "the registry does not let these credentials read it: check pullSecretRef")
	case answer.StatusCode == http.StatusNotFound:
		return harness.Wrap(harness.Unavailable, err, "the registry has no such image, or shows it only to those it knows")
	}
	return harness.Wrap(harness.Unavailable, err, fmt.Sprintf("the registry answered %d", answer.StatusCode))
}

// bounded is a transport that keeps answers small and plain http to where it is
// allowed, redirects and token servers too.
type bounded struct {
	next  *http.Transport
	plain []string
}

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !slices.Contains(b.plain, r.URL.Host) {
		return nil, harness.Errorf(harness.Unavailable, "%s is reached by plain http, which the platform does not allow for it", r.URL.Host)
	}
	response, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	most := int64(maxManifest)
	if strings.Contains(r.URL.Path, "/blobs/") || r.Response != nil { // redirected: to the store of blobs
		most = maxPulled
	}
	response.Body = &limited{ReadCloser: response.Body, left: most}
	return response, nil
}
