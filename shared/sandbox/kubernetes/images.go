package kubernetes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// defaultImage is the file whose image an agent gets that names none.
const defaultImage = "default"

// image returns the image of a spec. The files are read at every start: a
// changed ConfigMap counts from the next sandbox on.
func (d *Driver) image(spec harness.SandboxSpec) (string, error) {
	if spec.Image != "" {
		return spec.Image, nil
	}
	ref := spec.ImageRef
	if ref == "" {
		ref = defaultImage
	}
	known, err := d.images()
	if err != nil {
		return "", sandbox.Fail(harness.Unavailable, sandbox.ReasonSpec, "the platform's list of images cannot be read", err)
	}
	for _, name := range known {
		if name != ref {
			continue
		}
		text, err := os.ReadFile(filepath.Join(d.ImagesDir, name))
		if err != nil {
			return "", sandbox.Fail(harness.Unavailable, sandbox.ReasonSpec, "the platform's list of images cannot be read", err)
		}
		if image := strings.TrimSpace(string(text)); image != "" {
			return image, nil
		}
		return "", sandbox.Fail(harness.Invalid, sandbox.ReasonSpec, fmt.Sprintf("the platform's image %q is empty: whoever runs it must fill it in", ref), nil)
	}
	return "", sandbox.Fail(harness.Invalid, sandbox.ReasonSpec,
		fmt.Sprintf("there is no image %q on this platform: there are %s", ref, strings.Join(known, ", ")), nil)
}

// images returns the names of the platform's images, sorted. A folder mounted
// from a ConfigMap has links of its own, which begin with a dot.
func (d *Driver) images() ([]string, error) {
	if d.ImagesDir == "" {
		return nil, errors.New("no folder of images is configured")
	}
	entries, err := os.ReadDir(d.ImagesDir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && e.Type()&fs.ModeDir == 0 {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
