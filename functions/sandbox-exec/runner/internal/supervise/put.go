package supervise

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/wire"
)

const (
	moveBound = 30 * time.Second // for the other side to take or give the next bytes of a file
	maxDepth  = 8                // folders of a path
)

// refusal is why a file was not taken, in words for people.
type refusal string

func (r refusal) Error() string { return string(r) }

// use keeps the sandbox from ending as idle until the returned function is
// called. It reports false when the sandbox ends.
func (s *supervisor) use() (done func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return nil, false
	}
	s.moving++
	s.lastUse = time.Now()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.moving--
		s.lastUse = time.Now()
	}, true
}

// servePut writes the file that follows the request, whole or not at all, and
// says so: "placed SIZE SHA256", or "refused" and why. Nothing but that line
// proves that it is there.
func (s *supervisor) servePut(conn *net.UnixConn, req wire.Request) {
	done, ok := s.use()
	if !ok {
		_ = wire.WriteFrame(conn, wire.Refuse, []byte("the sandbox ends"))
		return
	}
	defer done()
	digest, err := s.put(conn, req)
	var no refusal
	line := fmt.Sprintf("placed %d %s\n", req.Size, digest)
	switch {
	case errors.As(err, &no):
		line = fmt.Sprintf("refused %s\n", no)
	case err != nil:
		_ = wire.WriteFrame(conn, wire.Refuse, []byte(err.Error()))
		return
	}
	_ = conn.SetWriteDeadline(time.Now().Add(moveBound))
	if wire.WriteFrame(conn, wire.Stdout, []byte(line)) == nil {
		_ = wire.WriteFrame(conn, wire.Ready, nil)
	}
}

func (s *supervisor) put(conn *net.UnixConn, req wire.Request) (digest string, err error) {
	elements := strings.Split(req.Path, "/")
	if !filepath.IsLocal(req.Path) || filepath.Clean(req.Path) != req.Path || req.Path == "." || len(elements) > maxDepth || req.Size < 0 {
		return "", refusal("the path or the size is not one of a file in the workspace")
	}
	if limit := s.limits.FileSize; limit > 0 && uint64(req.Size) > limit {
		return "", refusal(fmt.Sprintf("it is %d bytes, and a file of this workspace has at most %d", req.Size, limit))
	}
	dir, err := s.workdir()
	if err != nil {
		return "", refusal("the workspace cannot be opened")
	}
	defer func() { dir.Close() }()
	for _, element := range elements[:len(elements)-1] {
		inner, err := enter(dir, element, true)
		if err != nil {
			return "", refusal("a folder of its path is not a plain folder that can be opened")
		}
		dir.Close()
		dir = inner
	}
	return receive(conn, dir, elements[len(elements)-1], req.Size)
}

// receive writes what comes to a new file and then gives it its name: whoever
// looks sees all of it or nothing.
func receive(conn *net.UnixConn, dir *os.File, name string, size int64) (digest string, err error) {
	folder := int(dir.Fd())
	temp := ".tuluat-" + rand.Text()
	fd, err := unix.Openat(folder, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return "", refusal("its folder cannot be written: " + err.Error())
	}
	file := os.NewFile(uintptr(fd), temp)
	defer func() {
		err = errors.Join(err, file.Close())
		if err != nil {
			_ = unix.Unlinkat(folder, temp, 0)
		}
	}()
	sum := sha256.New()
	if err := copyFrames(conn, file, sum, size); err != nil {
		return "", err
	}
	if err := unix.Renameat(folder, temp, folder, name); err != nil {
		return "", refusal("something else is in its place: " + err.Error())
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func copyFrames(conn *net.UnixConn, file *os.File, sum hash.Hash, size int64) error {
	for got := int64(0); ; {
		_ = conn.SetReadDeadline(time.Now().Add(moveBound))
		kind, data, err := wire.ReadFrame(conn)
		if err != nil {
			return fmt.Errorf("the file broke off: %w", err)
		}
		got += int64(len(data))
		switch {
		case kind == wire.End && got == size:
			return nil
		case kind != wire.Data || got > size:
			return refusal(fmt.Sprintf("it is not %d bytes long, as was said", size))
		}
		if _, err := file.Write(data); errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			return refusal("the sandbox's disk has no room for it")
		} else if err != nil {
			return refusal("it cannot be written: " + err.Error())
		}
		sum.Write(data)
	}
}

// workdir opens the working directory. A command may have shut it; the same user
// opens it again.
func (s *supervisor) workdir() (*os.File, error) {
	open := func() (int, error) {
		return unix.Open(s.opts.Workdir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	fd, err := open()
	if errors.Is(err, unix.EACCES) && os.Chmod(s.opts.Workdir, 0o755) == nil {
		fd, err = open()
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), s.opts.Workdir), nil
}

// enter opens a folder in dir, and makes it first where it is wanted. Nothing is
// followed: what a command has put in a folder's place, be it a link or a pipe,
// is not entered.
func enter(dir *os.File, name string, make bool) (*os.File, error) {
	folder := int(dir.Fd())
	if make {
		if err := unix.Mkdirat(folder, name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, err
		}
	}
	fd, err := unix.Openat(folder, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
