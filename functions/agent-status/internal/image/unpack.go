package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"

	"tuluat.ai/harness/shared/harness"
)

// limited fails where an answer goes on after left bytes.
type limited struct {
	io.ReadCloser
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p[:min(int64(len(p)), l.left+1)])
	if l.left -= int64(n); l.left < 0 {
		return 0, wrong("has a part that is larger than is read of one")
	}
	return n, err
}

// unpacking is the folder of a skill as the layers of an image make it. They
// come from the top down, so that a path once decided stays so.
type unpacking struct {
	root    string // without the first slash; empty: all of the image
	files   map[string][]byte
	left    int64 // bytes that all layers may still unpack to
	entries int
	kept    int64

	above  marks // of the layers above the present one
	within marks // of the present one
}

// marks say what a layer hides of those below it, by whole paths.
type marks struct {
	gone   map[string]bool // it and all below
	opaque map[string]bool // all below
	folder map[string]bool // hides what is no folder
}

func newMarks() marks {
	return marks{gone: map[string]bool{}, opaque: map[string]bool{}, folder: map[string]bool{}}
}

func (m marks) add(other marks) {
	for p := range other.gone {
		m.gone[p] = true
	}
	for p := range other.opaque {
		m.opaque[p] = true
	}
	for p := range other.folder {
		m.folder[p] = true
	}
}

// hides reports whether p, of a lower layer, is not to be seen.
func (m marks) hides(p string, folder bool) bool {
	if m.gone[p] || !folder && m.folder[p] {
		return true
	}
	for dir := path.Dir(p); ; dir = path.Dir(dir) {
		if dir == "." {
			return m.opaque["."]
		}
		if m.gone[dir] || m.opaque[dir] {
			return true
		}
	}
}

func newUnpacking(root string) *unpacking {
	return &unpacking{root: strings.Trim(root, "/"), files: map[string][]byte{}, left: maxUnpacked, above: newMarks()}
}

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// layer adds what the next layer down has. harness.Invalid: the image is none for
// a skill.
func (u *unpacking) layer(content io.Reader) error {
	u.within = newMarks()
	count := &counted{from: content, u: u}
	archive := tar.NewReader(count)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) {
			return wrong("has a layer that is not a tar archive")
		}
		if err != nil {
			return err
		}
		if u.entries++; u.entries > maxEntries {
			return wrong("has more than %d entries", maxEntries)
		}
		if err := u.entry(header, archive); err != nil {
			return err
		}
	}
	u.above.add(u.within)
	_, err := io.Copy(io.Discard, count) // what is behind the archive counts too
	return err
}

func (u *unpacking) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name := strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
	if name == "" || name == "." {
		return nil
	}
	if path.IsAbs(h.Name) || path.Clean(name) != name || name == ".." || strings.HasPrefix(name, "../") {
		return wrong("has a layer with the path %.200q: paths are relative, without ..", h.Name)
	}
	base, dir := path.Base(name), path.Dir(name)
	switch {
	case base == opaque:
		u.within.opaque[dir] = true
		return nil
	case strings.HasPrefix(base, whiteout):
		u.within.gone[path.Join(dir, strings.TrimPrefix(base, whiteout))] = true
		return nil
	}
	for above := dir; above != "."; above = path.Dir(above) {
		u.within.folder[above] = true
	}
	folder := h.Typeflag == tar.TypeDir
	if folder {
		u.within.folder[name] = true
	} else {
		u.within.gone[name] = true
	}
	below, ours := u.below(name)
	switch {
	case u.above.hides(name, folder), folder:
		return nil
	case !ours && (u.root == name || strings.HasPrefix(u.root, name+"/")):
		return wrong("has %.200q, which is no folder, where path leads through it", "/"+name)
	case !ours || hidden(below):
		return nil
	case h.Typeflag != tar.TypeReg:
		return wrong("has %.200q, which is a link or a special file", below)
	}
	return u.file(below, content)
}

func (u *unpacking) file(name string, content io.Reader) error {
	if _, again := u.files[name]; !again && len(u.files) == harness.MaxSkillFiles {
		return wrong("has more than %d files", harness.MaxSkillFiles)
	}
	data, err := io.ReadAll(io.LimitReader(content, harness.MaxSkillBytes+1))
	if err != nil {
		return err
	}
	u.kept += int64(len(data)) - int64(len(u.files[name]))
	if u.kept > harness.MaxSkillBytes {
		return wrong("has more than %d bytes", harness.MaxSkillBytes)
	}
	u.files[name] = data
	return nil
}

// below is the path below the skill's folder, if it is there.
func (u *unpacking) below(name string) (string, bool) {
	if u.root == "" {
		return name, true
	}
	return strings.CutPrefix(name, u.root+"/")
}

// hidden reports whether a name of the path begins with a dot: such files are left
// out, as they are of folders.
func hidden(name string) bool { return strings.HasPrefix(name, ".") || strings.Contains(name, "/.") }

// The most that unpacking may need of memory at once, in bytes: an archive says
// itself how far back it refers.
const maxWindow = 8 << 20

// decompress reads a layer as it is packed, whatever its type says.
func decompress(packed io.Reader) (io.ReadCloser, error) {
	head := bufio.NewReader(packed)
	magic, err := head.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzip.NewReader(head)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		plain, err := zstd.NewReader(head, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(maxUnpacked))
		if err != nil {
			return nil, err
		}
		return plain.IOReadCloser(), nil
	}
	return io.NopCloser(head), nil
}

// counted counts what all layers unpack to.
type counted struct {
	from io.Reader
	u    *unpacking
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if c.u.left -= int64(n); c.u.left < 0 {
		return 0, wrong("unpacks to more than %d bytes", maxUnpacked)
	}
	return n, err
}
