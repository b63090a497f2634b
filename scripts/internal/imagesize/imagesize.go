// Package imagesize says how large images are for whoever pulls them, and which
// are larger than this project allows: a node keeps every image, and a function
// that sleeps waits for its own.
package imagesize

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"runtime"
	"strings"
	"time"
)

// The limits in bytes, of all layers as they are compressed.
const (
	Function           int64 = 25e6
	FunctionWithClient int64 = 45e6 // that speaks to a Kubernetes API server
	Runner             int64 = 3e6
)

// Image is one image and what it may weigh.
type Image struct {
	Name  string // for people
	Ref   string // HOST/NAME:TAG, HOST/NAME@DIGEST, or the path of a .tar that `docker save` or `ko build --tarball` made
	Limit int64
}

// Check returns a line per image, and an error that names all that are too large
// or cannot be measured.
func Check(ctx context.Context, images []Image) (lines []string, err error) {
	for _, i := range images {
		size, sizeErr := Of(ctx, i.Ref)
		switch {
		case sizeErr != nil:
			err = errors.Join(err, fmt.Errorf("%s: %w", i.Name, sizeErr))
			continue
		case size > i.Limit:
			err = errors.Join(err, fmt.Errorf("%s: the image has %s compressed, at most %s are allowed: look for a new dependency with `go list -deps`", i.Name, megabytes(size), megabytes(i.Limit)))
		}
		lines = append(lines, fmt.Sprintf("%-20s %8s of %8s", i.Name, megabytes(size), megabytes(i.Limit)))
	}
	return lines, err
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// Of returns the bytes of an image's compressed layers and its config.
func Of(ctx context.Context, ref string) (int64, error) {
	if strings.HasSuffix(ref, ".tar") {
		return ofArchive(ref)
	}
	return ofRegistry(ctx, ref)
}

// ofArchive measures what `docker save` makes, with layers compressed as ko
// leaves them.
func ofArchive(name string) (int64, error) {
	file, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	sizes := map[string]int64{}
	var manifest []struct {
		Config string
		Layers []string
	}
	for archive := tar.NewReader(file); ; {
		entry, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", name, err)
		}
		sizes[entry.Name] = entry.Size
		if entry.Name != "manifest.json" {
			continue
		}
		if err := json.NewDecoder(archive).Decode(&manifest); err != nil {
			return 0, fmt.Errorf("read %s of %s: %w", entry.Name, name, err)
		}
	}
	if len(manifest) != 1 {
		return 0, fmt.Errorf("%s holds %d images, want one", name, len(manifest))
	}
	total := int64(0)
	for _, part := range append([]string{manifest[0].Config}, manifest[0].Layers...) {
		size, ok := sizes[part]
		if !ok {
			return 0, fmt.Errorf("%s lacks %s", name, part)
		}
		total += size
	}
	return total, nil
}

// document is a manifest, or an index of them.
type document struct {
	Config    blob
	Layers    []blob
	Manifests []struct {
		Digest   string
		Platform struct{ OS, Architecture string }
	}
}

type blob struct{ Size int64 }

const requestBound = 30 * time.Second

// ofRegistry asks a registry that answers everyone. Of an image for several
// machines it measures the one for this.
func ofRegistry(ctx context.Context, ref string) (int64, error) {
	host, rest, ok := strings.Cut(ref, "/")
	if !ok || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return 0, fmt.Errorf("%q names no registry", ref)
	}
	name, reference, byDigest := strings.Cut(rest, "@")
	repository, tag, tagged := strings.Cut(name, ":")
	switch {
	case byDigest:
	case tagged:
		reference = tag
	default:
		reference = "latest"
	}
	ctx, cancel := context.WithTimeoutCause(ctx, requestBound, fmt.Errorf("ask the registry for %s", ref))
	defer cancel()
	for range 2 {
		var d document
		if err := get(ctx, scheme(host)+host+"/v2/"+path.Join(repository, "manifests", reference), &d); err != nil {
			return 0, err
		}
		if len(d.Layers) > 0 {
			total := d.Config.Size
			for _, layer := range d.Layers {
				total += layer.Size
			}
			return total, nil
		}
		reference = ""
		for _, m := range d.Manifests {
			if m.Platform.OS == "linux" && m.Platform.Architecture == runtime.GOARCH {
				reference = m.Digest
			}
		}
		if reference == "" {
			break
		}
	}
	return 0, fmt.Errorf("%s is no image for linux/%s", ref, runtime.GOARCH)
}

// scheme is http for a registry of this machine, as every client of registries
// has it.
func scheme(host string) string {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	if ip := net.ParseIP(name); name == "localhost" || ip != nil && ip.IsLoopback() {
		return "http://"
	}
	return "https://"
}

func get(ctx context.Context, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	for _, kind := range []string{
		"application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json",
		"application/vnd.docker.distribution.manifest.v2+json", "application/vnd.docker.distribution.manifest.list.v2+json",
	} {
		req.Header.Add("Accept", kind)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return json.NewDecoder(io.LimitReader(resp.Body, 4<<20)).Decode(into)
}
