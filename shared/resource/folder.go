package resource

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/resource/internal/yamltext"
)

// Folder is the resources in the files of one folder: every document of every
// *.yaml, *.yml and *.json file directly in it, names that begin with a dot left
// out. Names are those of the documents, whatever their files are called. Files
// change under it at any time, by editors and by other processes with a Folder:
// what it writes, it writes for the text it has read.
//
// A write changes the lines of what changes and keeps every other byte. Links
// that stay in the folder are read, and never written through.
type Folder struct {
	Path   string
	Limits v1alpha1.Limits
}

var _ Store = Folder{}

// name is that of a document that can be an agent's or workflow's.
var name = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// file is one file of the folder and the documents in it.
type file struct {
	name      string
	text      []byte
	link      bool // it is a link to another file
	documents []document
	broken    string // why some of its documents cannot be read; empty: all could
}

// document is one document of a file.
type document struct {
	parsed v1alpha1.Document
	part   int // of yamltext.Split
	text   []byte
}

func (d document) is(kind, name string) bool { return d.parsed.Kind == kind && d.parsed.Name() == name }

// resource is the document as it is shown. Of one whose aliases make too much of
// it, no more than its name.
func (d document) resource() Resource {
	object, err := yamltext.Value(d.text)
	if err != nil {
		object = fields{"apiVersion": v1alpha1.APIVersion, "kind": d.parsed.Kind, "metadata": fields{"name": d.parsed.Name()}}
	}
	digest := sha256.Sum256(d.text)
	r := Resource{Kind: d.parsed.Kind, Name: d.parsed.Name(), Version: hex.EncodeToString(digest[:12]), YAML: bytes.Clone(d.text)}
	object = written(object)
	if metadata, ok := object["metadata"].(fields); ok {
		metadata["resourceVersion"] = r.Version
	}
	r.Object = marshal(object)
	return r
}

// List implements Store.
func (f Folder) List(_ context.Context, kind, after string, limit int) ([]Resource, string, error) {
	files, err := f.read()
	if err != nil {
		return nil, "", err
	}
	found := map[string]document{}
	for _, file := range files {
		for _, d := range file.documents {
			if _, twice := found[d.parsed.Name()]; !twice && d.parsed.Kind == kind && d.parsed.Name() > after {
				found[d.parsed.Name()] = d
			}
		}
	}
	items := []Resource{}
	for _, name := range sorted(found) {
		if len(items) == limit {
			return items, items[limit-1].Name, nil
		}
		items = append(items, found[name].resource())
	}
	return items, "", nil
}

// Get implements Store. Of two documents that define a resource it returns the
// first; nobody can change either until one is gone.
func (f Folder) Get(_ context.Context, kind, name string) (Resource, error) {
	files, err := f.read()
	if err != nil {
		return Resource{}, err
	}
	for _, file := range files {
		for _, d := range file.documents {
			if d.is(kind, name) {
				return d.resource(), nil
			}
		}
	}
	return Resource{}, missing(files, kind, name)
}

// missing says that no file defines a resource, and which files might.
func missing(files []file, kind, name string) error {
	message := fmt.Sprintf("there is no %s %s", kind, name)
	for _, file := range files {
		if file.broken != "" {
			message += "; " + file.broken
		}
	}
	return harness.Errorf(harness.NotFound, "%s", message)
}

// read returns the files of the folder by name.
func (f Folder) read() ([]file, error) {
	root, err := os.OpenRoot(f.Path)
	if err != nil {
		return nil, harness.Wrap(harness.Unavailable, err, "the folder of agents cannot be read")
	}
	defer root.Close()
	return readAll(root)
}

func readAll(root *os.Root) ([]file, error) {
	entries, err := fs.ReadDir(root.FS(), ".") // by name
	if err != nil {
		return nil, harness.Wrap(harness.Unavailable, err, "the folder of agents cannot be read")
	}
	var files []file
	for _, entry := range entries {
		if name := entry.Name(); !strings.HasPrefix(name, ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			read := file{name: name, link: entry.Type()&fs.ModeSymlink != 0}
			if read.text, err = readFile(root, name); errors.Is(err, fs.ErrNotExist) {
				continue // it went meanwhile
			}
			if err != nil {
				read.broken = name + " cannot be read"
			} else {
				read.part()
			}
			files = append(files, read)
		}
	}
	return files, nil
}

// errNotAFile says that a name is not that of a regular file.
var errNotAFile = errors.New("not a regular file")

// readFile reads at most a byte more than a file may have, of one state of the
// file: one that is written while it is read is read again. Something that is
// not a regular file is never waited for.
func readFile(root *os.Root, name string) ([]byte, error) {
	for range attempts {
		text, same, err := readOnce(root, name)
		if err != nil || same {
			return text, err
		}
	}
	return nil, errors.New("it is being written")
}

func readOnce(root *os.Root, name string) (text []byte, same bool, err error) {
	open, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	defer open.Close()
	before, err := open.Stat()
	if err != nil {
		return nil, false, err
	}
	if !before.Mode().IsRegular() {
		return nil, false, errNotAFile
	}
	if text, err = io.ReadAll(io.LimitReader(open, v1alpha1.MaxFileBytes+1)); err != nil {
		return nil, false, err
	}
	after, err := open.Stat()
	if err != nil {
		return nil, false, err
	}
	return text, before.Size() == after.Size() && before.ModTime().Equal(after.ModTime()), nil
}

// part finds the documents of a file. The reader of all files decides what they
// are; a file that parts otherwise, by directives say, is left alone.
func (f *file) part() {
	whole, err := v1alpha1.Read(f.text)
	if err != nil {
		f.broken = f.name + ": " + harness.MessageOf(err)
	}
	var documents []document
	parts := yamltext.Split(f.text)
	for i, part := range parts {
		alone := whole
		if len(parts) > 1 {
			alone, _ = v1alpha1.Read(part)
		}
		for _, d := range alone {
			documents = append(documents, document{parsed: d, part: i, text: part})
		}
	}
	for i, d := range whole {
		if i >= len(documents) || documents[i].parsed.Kind != d.Kind || documents[i].parsed.Name() != d.Name() || i > 0 && documents[i-1].part == documents[i].part {
			f.documents, f.broken = nil, f.name+" has documents that cannot be told apart: begin each with ---"
			return
		}
		if d.Kind != "" && name.MatchString(d.Name()) {
			f.documents = append(f.documents, documents[i])
		}
	}
}
