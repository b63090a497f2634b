package supervise

import (
	"cmp"
	"errors"
	"io"
	"net"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/wire"
	"tuluat.ai/harness/shared/sandbox/outbound"
)

// maxEntries bounds what is looked at: names of files and folders.
const maxEntries = 20_000

// maxNamed is how many files that are left behind are named; the rest is counted.
const maxNamed = 20

// taken remembers what was sent out, so that a file is sent again only when it
// has changed.
type taken struct {
	mu    sync.Mutex // one at a time
	files map[string]sent
}

// sent is a file as it was, and the execution after which it was sent or named.
// Asked again after the same execution, the answer is the same.
type sent struct {
	state  fileState
	by     string
	waited bool // an earlier execution's limits had left it
	waits  bool // this one's did: it may go after the next
}

// fileState tells whether a file has changed. No program can set the time of
// the last change of a file's contents or attributes.
type fileState struct {
	size           int64
	mtime, changed unix.Timespec
	inode          uint64
}

// found is a file below the folder that is sent out.
type found struct {
	path   string
	state  fileState
	reason outbound.Reason // why it is no file to be sent
}

// offer is a file that is to be sent or named.
type offer struct {
	found
	waited, waits bool // as in sent
}

// serveOut sends, as a tar, the files below out/ that are new, have changed since
// an earlier execution, or were left by its limits. Plain files only; see outbound
// for what else is in the tar.
func (s *supervisor) serveOut(conn *net.UnixConn, req wire.Request) {
	done, ok := s.use()
	if !ok {
		_ = wire.WriteFrame(conn, wire.Refuse, []byte("the sandbox ends"))
		return
	}
	defer done()
	s.taken.mu.Lock()
	defer s.taken.mu.Unlock()
	files, more, err := s.look()
	var offers []offer
	if err == nil {
		offers = s.taken.offers(files, req.ID)
		err = s.sendFiles(frames{conn}, req, offers, more)
	}
	if err != nil {
		_ = wire.WriteFrame(conn, wire.Refuse, []byte(err.Error()))
		return
	}
	if wire.WriteFrame(conn, wire.Ready, nil) != nil {
		return
	}
	s.taken.remember(files, offers, req.ID)
}

// outbound reports whether there is a folder of files to be sent out.
func (s *supervisor) outbound() bool {
	var st unix.Stat_t
	return unix.Lstat(path.Join(s.opts.Workdir, outbound.Folder), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// frames writes to a client that takes what comes.
type frames struct{ conn *net.UnixConn }

func (f frames) Write(p []byte) (int, error) {
	for written := 0; written < len(p); {
		part := p[written:min(len(p), written+chunk)]
		_ = f.conn.SetWriteDeadline(time.Now().Add(moveBound))
		if err := wire.WriteFrame(f.conn, wire.Stdout, part); err != nil {
			return written, err
		}
		written += len(part)
	}
	return len(p), nil
}

// sendFiles writes the tar. Files beyond a limit are named and left; those that
// would fit after another command are marked as waiting for it. A caller that
// takes no files at all is not to be offered them for ever.
func (s *supervisor) sendFiles(w io.Writer, req wire.Request, offers []offer, more int) error {
	archive := outbound.NewWriter(w)
	count, total, named := 0, int64(0), 0
	leave := func(f *offer, reason outbound.Reason) error {
		if named++; named > maxNamed && reason != outbound.Changed { // what was sent must be taken back by name
			more++
			return nil
		}
		return archive.Left(f.path, f.state.size, reason)
	}
	for i := range offers {
		f := &offers[i]
		reason := f.reason
		switch {
		case reason != 0:
		case f.state.size == 0:
			reason = outbound.Empty
		case f.state.size > min(req.MaxBytes, req.MaxTotal):
			reason = outbound.TooLarge
		case count >= req.MaxFiles:
			reason, f.waits = outbound.TooMany, req.MaxFiles > 0
		case total+f.state.size > req.MaxTotal:
			reason, f.waits = outbound.TooMuch, req.MaxFiles > 0
		default:
			var err error
			if reason, err = s.sendFile(archive, f.found); err != nil {
				return err
			}
			if reason == 0 || reason == outbound.Changed {
				count++
				total += f.state.size
			}
		}
		if reason != 0 {
			if err := leave(f, reason); err != nil {
				return err
			}
		}
	}
	return archive.Close(more)
}

// sendFile sends one file, or says why it could not. One that shrinks or grows
// while it is read is sent at the size it had and then named as changed, so that
// nobody takes it for whole.
func (s *supervisor) sendFile(archive *outbound.Writer, f found) (outbound.Reason, error) {
	file, err := s.open(f)
	if errors.Is(err, errChanged) {
		return outbound.Changed, nil
	}
	if err != nil {
		return outbound.Unreadable, nil
	}
	defer file.Close()
	w, err := archive.File(f.path, f.state.size)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(w, io.LimitReader(unbroken{file}, f.state.size))
	if err != nil {
		return 0, err
	}
	if err := archive.Fill(f.state.size - n); err != nil {
		return 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil || n < f.state.size || stateOf(st) != f.state {
		return outbound.Changed, nil
	}
	return 0, nil
}

// unbroken ends at an error of the disk as at the end of the file, so that only
// the client's errors break the archive off.
type unbroken struct{ io.Reader }

func (u unbroken) Read(p []byte) (int, error) {
	n, err := u.Reader.Read(p)
	if err != nil {
		err = io.EOF
	}
	return n, err
}

// errChanged says that a file is not the one that was found.
var errChanged = errors.New("another file has taken its place")

// open opens the very file that was found.
func (s *supervisor) open(f found) (*os.File, error) {
	dir, err := s.workdir()
	if err != nil {
		return nil, err
	}
	defer func() { dir.Close() }()
	folder, name := path.Split(outbound.Folder + "/" + f.path)
	for _, element := range elements(folder) {
		inner, err := enter(dir, element, false)
		if err != nil {
			return nil, err
		}
		dir.Close()
		dir = inner
	}
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || stateOf(st) != f.state {
		return nil, errors.Join(errChanged, err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

func elements(folder string) []string {
	var all []string
	for folder = path.Clean(folder); folder != "." && folder != "/"; folder = path.Dir(folder) {
		all = append(all, path.Base(folder))
	}
	slices.Reverse(all)
	return all
}

// look lists what is below out/, in the order of paths, and counts what is
// beyond the bound. No folder is no files.
func (s *supervisor) look() (files []found, more int, err error) {
	dir, err := s.workdir()
	if err != nil {
		return nil, 0, err
	}
	defer dir.Close()
	out, err := enter(dir, outbound.Folder, false)
	if err != nil {
		return nil, 0, nil // nothing, or something that is no folder, is there: nothing is to be sent
	}
	survey := survey{left: maxEntries}
	survey.folder(out, "", 1)
	slices.SortFunc(survey.files, func(a, b found) int { return cmp.Compare(a.path, b.path) })
	return survey.files, survey.more, nil
}

// survey is a walk through folders. It stops at the bound: a command may make
// more files than this process can know.
type survey struct {
	left  int // entries
	files []found
	more  int
}

// folder adds what is in dir, and closes it.
func (v *survey) folder(dir *os.File, prefix string, depth int) {
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			if v.left == 0 {
				v.more++
				continue
			}
			v.left--
			v.entry(dir, prefix+name, name, depth)
		}
		if err != nil || v.more > maxEntries {
			return // the end, or what cannot be read, or more than anybody counts
		}
	}
}

func (v *survey) entry(dir *os.File, full, name string, depth int) {
	var st unix.Stat_t
	if unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return // gone meanwhile
	}
	f := found{path: full, state: stateOf(st)}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		inner, err := enter(dir, name, false)
		if err == nil && depth < maxDepth {
			v.folder(inner, full+"/", depth+1)
			return
		}
		if err == nil {
			inner.Close()
		}
		f.reason = outbound.Unreadable
	default:
		f.reason = outbound.NoFile
	}
	v.files = append(v.files, f)
}

func stateOf(st unix.Stat_t) fileState {
	return fileState{size: st.Size, mtime: st.Mtim, changed: st.Ctim, inode: st.Ino}
}

// offers picks what is to be sent or named after the execution id, in the order
// in which it may use up the limits and the names: what is new, so that nothing
// old keeps out what a command has just made; what has waited; and at last what
// nobody misses. Within each, the order of files.
func (t *taken) offers(files []found, id string) []offer {
	var all []offer
	for _, f := range files {
		was, known := t.files[f.path]
		same := known && was.state == f.state
		switch {
		case known && was.by == id:
			all = append(all, offer{found: f, waited: was.waited})
		case same && was.waits:
			all = append(all, offer{found: f, waited: true})
		case !same:
			all = append(all, offer{found: f})
		}
	}
	slices.SortStableFunc(all, func(a, b offer) int { return cmp.Compare(a.rank(), b.rank()) })
	return all
}

func (o *offer) rank() int {
	switch {
	case o.reason == outbound.NoFile, o.reason == 0 && o.state.size == 0:
		return 2
	case o.waited:
		return 1
	}
	return 0
}

// remember notes what was sent or named; what is gone is forgotten.
func (t *taken) remember(files []found, offers []offer, id string) {
	now := make(map[string]sent, len(files))
	for _, f := range files {
		if was, known := t.files[f.path]; known {
			now[f.path] = was
		}
	}
	for _, o := range offers {
		now[o.path] = sent{state: o.state, by: id, waited: o.waited, waits: o.waits}
	}
	t.files = now
}
