package resource

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/resource/internal/yamltext"
)

const (
	// temporary is what a file is called until it is whole. Readers leave it out,
	// and whoever has the lock may remove it.
	temporary = ".tuluat-resource.tmp"
	// lockEvery is how often a lock that another has is tried again.
	lockEvery = 5 * time.Millisecond
	// newMode is that of a new file.
	newMode = 0o644
)

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// errChanged says that a file is not as it was read.
var errChanged = errors.New("the file was changed meanwhile")

// Create implements Store. The resource gets a file of its own.
func (f Folder) Create(ctx context.Context, r Resource, dryRun bool) (Resource, error) {
	object, err := accept(&r, f.Limits)
	if err != nil {
		return Resource{}, err
	}
	text := yamltext.Document(object)
	if authored(r.YAML, object) {
		text = r.YAML
	}
	return f.write(ctx, func(root *os.Root, files []file) (Resource, error) {
		for _, file := range files {
			for _, d := range file.documents {
				if d.is(r.Kind, r.Name) {
					return Resource{}, harness.Errorf(harness.Conflict, "%s %s exists already, in %s", r.Kind, r.Name, file.name)
				}
			}
		}
		names := []string{r.Name + ".yaml", r.Name + "." + strings.ToLower(r.Kind) + ".yaml"}
		for _, name := range names {
			if _, err := root.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return f.replace(root, file{name: name}, text, r, nil, dryRun)
		}
		return Resource{}, harness.Errorf(harness.Conflict, "there are %s already, and do not define %s %s: rename them", strings.Join(names, " and "), r.Kind, r.Name)
	})
}

// authored reports whether a text is one document that says what object says, of
// a form that can stand in any file.
func authored(text []byte, object fields) bool {
	says, err := yamltext.Value(text)
	return err == nil && yamltext.Equal(written(says), object) && len(yamltext.Split(text)) == 1 && !bytes.HasPrefix(text, []byte("\uFEFF")) &&
		!bytes.HasPrefix(text, []byte("%")) && !bytes.Contains(text, []byte("\n..."))
}

// Update implements Store. What r says otherwise than the document does is
// changed, and nothing else.
func (f Folder) Update(ctx context.Context, r Resource, dryRun bool) (Resource, error) {
	object, err := accept(&r, f.Limits)
	if err != nil {
		return Resource{}, err
	}
	return f.change(ctx, r.Kind, r.Name, r.Version, dryRun, func(is fields) (edit, error) {
		to := edit{object: object}
		if authored(r.YAML, object) {
			to.text = r.YAML
		}
		return to, nil
	})
}

// Patch implements Store.
func (f Folder) Patch(ctx context.Context, kind, name, version string, patch []byte, dryRun bool) (Resource, error) {
	return f.change(ctx, kind, name, version, dryRun, func(is fields) (edit, error) {
		merged, clean, err := merge(is, patch)
		return edit{object: merged, off: switchesOff(clean)}, err
	})
}

// edit is what becomes of a document.
type edit struct {
	object fields
	text   []byte // that says what object says; nil: that of the document, with its changes
	off    bool   // see switchesOff
}

// change makes of a document what to returns.
func (f Folder) change(ctx context.Context, kind, name, version string, dryRun bool, to func(is fields) (edit, error)) (Resource, error) {
	return f.write(ctx, func(root *os.Root, files []file) (Resource, error) {
		at, d, err := find(files, kind, name, version)
		if err != nil {
			return Resource{}, err
		}
		is, err := yamltext.Value(d.text)
		if err != nil {
			return Resource{}, f.unchangeable(d, at.name, err)
		}
		next, err := to(written(is))
		if err != nil {
			return Resource{}, err
		}
		var before v1alpha1.Problems
		if next.off {
			_, before = read(d.text, f.Limits)
		} else if err := check(next.object, kind, name, f.Limits); err != nil {
			return Resource{}, err
		}
		text := next.text
		if text == nil {
			text, err = yamltext.Apply(d.text, yamltext.Diff(written(is), next.object))
		}
		if err != nil {
			return Resource{}, f.unchangeable(d, at.name, err)
		}
		return f.replace(root, at, at.with(d.part, text), Resource{Kind: kind, Name: name}, before, dryRun)
	})
}

// unchangeable says why a document cannot be changed in its place: mostly because
// of anchors and aliases, which are problems of their own.
func (f Folder) unchangeable(d document, file string, err error) error {
	if _, problems := read(d.text, f.Limits); len(problems) > 0 {
		return &Invalid{Problems: problems, cause: err}
	}
	return harness.Wrap(harness.Conflict, err, fmt.Sprintf("%s %s cannot be changed in its place in %s: change the file itself", d.parsed.Kind, d.parsed.Name(), file))
}

// find returns the one document that defines a resource, and its file.
func find(files []file, kind, name, version string) (file, document, error) {
	var at file
	var found document
	var places []string
	for _, file := range files {
		for _, d := range file.documents {
			if d.is(kind, name) {
				at, found = file, d
				places = append(places, file.name)
			}
		}
	}
	switch {
	case len(places) == 0:
		return at, found, missing(files, kind, name)
	case len(places) > 1:
		return at, found, harness.Errorf(harness.Conflict, "%s %s is defined %d times (%s): keep one of them", kind, name, len(places), strings.Join(places, ", "))
	case at.link:
		return at, found, harness.Errorf(harness.Conflict, "%s %s is in %s, which is a link to another file: change that one", kind, name, at.name)
	}
	if version != "" && version != found.resource().Version {
		return at, found, stale(name)
	}
	return at, found, nil
}

// with returns the file with one of its parts replaced.
func (f file) with(part int, text []byte) []byte {
	parts := yamltext.Split(f.text)
	if part > 0 && !yamltext.Begins(text) {
		text = append([]byte("---\n"), text...)
	}
	if part < len(parts)-1 && !bytes.HasSuffix(text, []byte("\n")) && !bytes.HasSuffix(text, []byte("\r")) {
		text = append(bytes.Clone(text), '\n')
	}
	parts[part] = text
	return bytes.Join(parts, nil)
}

// Delete implements Store. A file goes with its last document.
func (f Folder) Delete(ctx context.Context, kind, name, version string) error {
	_, err := f.write(ctx, func(root *os.Root, files []file) (Resource, error) {
		at, d, err := find(files, kind, name, version)
		if err != nil {
			return Resource{}, err
		}
		parts := yamltext.Split(at.text)
		parts = slices.Delete(parts, d.part, d.part+1)
		left := bytes.Join(parts, nil)
		next := file{name: at.name, text: left}
		next.part()
		documents, err := v1alpha1.Read(left)
		switch {
		case err == nil && len(documents) == 0:
			return Resource{}, f.remove(root, at)
		case len(next.documents) != len(at.documents)-1:
			return Resource{}, harness.Errorf(harness.Conflict, "%s %s cannot be taken out of %s: change the file itself", kind, name, at.name)
		}
		return Resource{}, f.commit(root, at, left)
	})
	return err
}

// write runs change under the folder's lock, anew when somebody without the lock
// has changed a file meanwhile.
func (f Folder) write(ctx context.Context, change func(root *os.Root, files []file) (Resource, error)) (Resource, error) {
	root, err := os.OpenRoot(f.Path)
	if err != nil {
		return Resource{}, harness.Wrap(harness.Unavailable, err, "the folder of agents cannot be opened")
	}
	defer root.Close()
	unlock, err := lock(ctx, root)
	if err != nil {
		return Resource{}, err
	}
	defer unlock()
	for range attempts {
		files, err := readAll(root)
		if err != nil {
			return Resource{}, err
		}
		r, err := change(root, files)
		if !errors.Is(err, errChanged) {
			return r, err
		}
	}
	return Resource{}, harness.Errorf(harness.Conflict, "the file is being changed by others all the time: try again")
}

// lock keeps every other writer out until unlock. It is on the folder itself, so
// that it leaves no file behind and ends with the process.
func lock(ctx context.Context, root *os.Root) (unlock func(), err error) {
	folder, err := root.Open(".")
	if err != nil {
		return nil, harness.Wrap(harness.Unavailable, err, "the folder of agents cannot be opened")
	}
	again := time.NewTicker(lockEvery)
	defer again.Stop()
	for {
		err := unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { folder.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			folder.Close()
			return nil, harness.Wrap(harness.Unavailable, err, "the folder of agents cannot be locked")
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			folder.Close()
			return nil, harness.Wrap(harness.Unavailable, ctx.Err(), "the folder of agents is being written by others: try again")
		}
	}
}

// replace makes a file have this text and returns the resource in it that r
// names, as it is read from there. before are the problems that it may have.
func (f Folder) replace(root *os.Root, at file, text []byte, r Resource, before v1alpha1.Problems, dryRun bool) (Resource, error) {
	if len(text) > v1alpha1.MaxFileBytes {
		return Resource{}, invalid(v1alpha1.Problems{{What: fmt.Sprintf("would make %s longer than %d bytes", at.name, v1alpha1.MaxFileBytes), Fix: "shorten it, or give it a file of its own"}})
	}
	next := file{name: at.name, text: text}
	next.part()
	if len(next.documents) != max(len(at.documents), 1) || next.broken != "" && at.broken == "" {
		return Resource{}, harness.Errorf(harness.Conflict, "%s %s cannot be written into %s: change the file itself", r.Kind, r.Name, at.name)
	}
	_, d, err := find([]file{next}, r.Kind, r.Name, "")
	if err != nil {
		return Resource{}, err
	}
	_, problems := read(d.text, f.Limits)
	if err := invalid(added(problems, before)); err != nil {
		return Resource{}, err
	}
	if !dryRun && !bytes.Equal(text, at.text) {
		err = f.commit(root, at, text)
	}
	return d.resource(), err
}

// commit makes a file have this text at once, or not at all, if it is as it was
// read; a file that was not there must not be there.
func (f Folder) commit(root *os.Root, at file, text []byte) error {
	failed := func(err error) error {
		if errors.Is(err, errChanged) {
			return err
		}
		return harness.Wrap(harness.Unavailable, err, at.name+" cannot be written")
	}
	if err := prepare(root, at, text); err != nil {
		return failed(err)
	}
	defer root.Remove(temporary) //nolint:errcheck // it is gone unless something failed, and then the next write removes it
	if at.text == nil {
		err := root.Link(temporary, at.name) // unlike a rename, never over another file
		switch {
		case err == nil:
			return syncFolder(root)
		case errors.Is(err, fs.ErrExist):
			return errChanged
		case !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.ENOSYS):
			return failed(err)
		} // this file system has no links
	} else if err := unchanged(root, at); err != nil {
		return failed(err)
	}
	if err := root.Rename(temporary, at.name); err != nil {
		return failed(err)
	}
	return syncFolder(root)
}

// prepare writes the temporary file, with the rights of the file whose place it
// takes, and its owner where we may give it away.
func prepare(root *os.Root, at file, text []byte) error {
	if err := root.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	mode, owner := fs.FileMode(newMode), (*syscall.Stat_t)(nil)
	if at.text != nil {
		info, err := root.Lstat(at.name)
		if err != nil {
			return errChanged
		}
		mode = info.Mode().Perm()
		owner, _ = info.Sys().(*syscall.Stat_t)
	}
	next, err := root.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer next.Close()
	if owner != nil {
		_ = next.Chown(int(owner.Uid), int(owner.Gid))
		if err := next.Chmod(mode); err != nil { // what the process's mask left out
			return err
		}
	}
	if _, err := next.Write(text); err != nil {
		return err
	}
	if err := next.Sync(); err != nil {
		return err
	}
	return next.Close()
}

// unchanged returns errChanged unless a file is still the one that was read.
func unchanged(root *os.Root, at file) error {
	info, err := root.Lstat(at.name)
	if err != nil || !info.Mode().IsRegular() {
		return errChanged
	}
	text, err := readFile(root, at.name)
	if err != nil || !bytes.Equal(text, at.text) {
		return errChanged
	}
	return nil
}

func (f Folder) remove(root *os.Root, at file) error {
	if err := unchanged(root, at); err != nil {
		return err
	}
	if err := root.Remove(at.name); err != nil {
		return harness.Wrap(harness.Unavailable, err, at.name+" cannot be removed")
	}
	return syncFolder(root)
}

// syncFolder makes names survive a crash of the machine. Where a file system
// cannot say so, the write has happened all the same.
func syncFolder(root *os.Root) error {
	folder, err := root.Open(".")
	if err != nil {
		return harness.Wrap(harness.Unavailable, err, "the folder of agents cannot be opened")
	}
	defer folder.Close()
	_ = folder.Sync()
	return nil
}
