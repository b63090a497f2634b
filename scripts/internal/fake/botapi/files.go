package botapi

import (
	"fmt"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// file is one that a person or a bot has sent.
type file struct {
	person.File
	Bot   string // whose id it is
	Path  string
	Data  []byte
	Until time.Time // the path serves; zero: getFile was not called
}

const (
	maxDownload = 20 << 20
	maxUpload   = 50 << 20
	maxPhoto    = 10 << 20
	pathLife    = time.Hour
)

// keep keeps a file for a bot. size is what is said of it. s.mu is held.
func (s *Server) keep(b *bot, kind, name, mimeType string, data []byte, size int64) person.File {
	s.ids++
	mark := number(s.options.Seed, b.Username, "file", strconv.FormatInt(s.ids, 10))
	extension := path.Ext(path.Base(name))
	if extension == "" {
		if known, err := mime.ExtensionsByType(mimeType); err == nil && len(known) > 0 {
			extension = known[0]
		}
	}
	f := person.File{ID: fmt.Sprintf("AgACAgQAAx-%016x_%d", mark, s.ids), Name: name, MimeType: mimeType, Bytes: max(size, int64(len(data)))}
	s.files[f.ID] = &file{File: f, Bot: b.Username, Path: fmt.Sprintf("%ss/file_%d%s", kind, s.ids, extension), Data: data}
	return f
}

func (s *Server) getFile(b *bot, c call) *result {
	if fault, ok := s.faults.Take("media", ""); ok {
		return faulty(fault)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[strings.TrimSuffix(c.params["file_id"], "s")] // a photo's small size is the same file here
	switch {
	case f == nil || f.Bot != b.Username:
		return bad("wrong file_id or the file is temporarily unavailable")
	case f.Bytes > maxDownload:
		return bad("file is too big")
	}
	f.Until = s.clock.Now().Add(pathLife)
	s.counts.Add("mediaLookups")
	return done(map[string]any{"file_id": f.ID, "file_unique_id": unique(f.ID), "file_size": f.Bytes, "file_path": f.Path})
}

func unique(id string) string { return fmt.Sprintf("AQAD%08x", uint32(number(id))) }

func (s *Server) download(w http.ResponseWriter, _ *http.Request, token, at string) {
	var found *file
	s.mu.Lock()
	if b := s.withToken(token); b != nil {
		for _, f := range s.files {
			if f.Bot == b.Username && f.Path == at && s.clock.Now().Before(f.Until) {
				found = f
			}
		}
	}
	s.mu.Unlock()
	status := http.StatusOK
	if found == nil {
		status = http.StatusNotFound
	}
	s.calls.Add(person.Call{At: s.clock.Now(), Method: "download", Path: "/file/bot/" + at, Status: status})
	if found == nil {
		s.counts.Add("downloadsRefused")
		person.Answer(w, status, map[string]any{"ok": false, "error_code": status, "description": "Not Found"})
		return
	}
	s.counts.Add("downloads")
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(found.Data) // a client that is gone has nothing to be told
}

// attach puts the file of sendPhoto and sendDocument into a message. s.mu is held.
func (s *Server) attach(b *bot, c call, message map[string]any, line *person.Line) *result {
	kind := strings.TrimPrefix(c.method, "send") // photo or document
	given, isFile := c.files[kind]
	if name, ok := strings.CutPrefix(c.params[kind], "attach://"); ok {
		given, isFile = c.files[name]
	}
	var f person.File
	switch id := c.params[kind]; {
	case isFile && len(given.data) == 0:
		return bad("file must be non-empty")
	case isFile && kind == "photo" && len(given.data) > maxPhoto:
		return bad("file is too big for a photo")
	case isFile && len(given.data) > maxUpload:
		return fail(http.StatusRequestEntityTooLarge, "Request Entity Too Large")
	case isFile && kind == "photo" && !strings.HasPrefix(http.DetectContentType(given.data), "image/"):
		return bad("IMAGE_PROCESS_FAILED")
	case isFile:
		mimeType := given.mimeType
		if mimeType == "" || mimeType == "application/octet-stream" {
			mimeType = http.DetectContentType(given.data)
		}
		f = s.keep(b, kind, given.name, mimeType, given.data, 0)
		s.counts.Add("uploads")
	case id == "":
		return bad("there is no %s in the request", kind)
	case strings.HasPrefix(id, "http://"), strings.HasPrefix(id, "https://"):
		return bad("failed to get HTTP URL content") // there is no way out of here
	case s.files[id] == nil || s.files[id].Bot != b.Username:
		return bad("wrong file identifier/HTTP URL specified")
	default:
		f = s.files[id].File
	}
	message[kind] = shownFile(kind, f)
	line.Kind, line.File = kind, &f
	if kind == "photo" {
		line.Kind = "image"
	}
	return nil
}

// shownFile is a file as messages have it.
func shownFile(kind string, f person.File) any {
	base := map[string]any{"file_id": f.ID, "file_unique_id": unique(f.ID), "file_size": f.Bytes}
	if kind == "photo" { // in several sizes
		small := map[string]any{"file_id": f.ID + "s", "file_unique_id": unique(f.ID + "s"), "file_size": min(f.Bytes, 1000), "width": 90, "height": 60}
		base["width"], base["height"] = 1280, 853
		return []any{small, base}
	}
	if f.MimeType != "" {
		base["mime_type"] = f.MimeType
	}
	switch kind {
	case "document", "audio", "video":
		if f.Name != "" {
			base["file_name"] = f.Name
		}
	case "sticker":
		base["width"], base["height"], base["is_animated"], base["is_video"], base["type"] = 512, 512, false, false, "regular"
		delete(base, "mime_type")
	}
	if kind == "voice" || kind == "audio" || kind == "video" {
		base["duration"] = 3
	}
	if kind == "video" {
		base["width"], base["height"] = 640, 480
	}
	return base
}

// File returns the bytes of a file, as a phone shows it.
func (s *Server) File(id string) (person.File, []byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[id]
	if f == nil {
		return person.File{}, nil, false
	}
	return f.File, f.Data, true
}
