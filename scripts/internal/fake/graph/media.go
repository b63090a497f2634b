package graph

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// media is a file of a number.
type media struct {
	person.File
	Number string
	Data   []byte
	Until  time.Time
}

// link is where a file can be fetched for a while.
type link struct {
	media string
	until time.Time
}

const (
	inboundLife = 7 * 24 * time.Hour
	uploadLife  = 30 * 24 * time.Hour
	linkLife    = 5 * time.Minute

	maxUpload = 100 << 20
)

// kindOf is what a message with such a file is called; empty: it is refused.
func kindOf(mimeType string) string {
	base, _, err := mime.ParseMediaType(mimeType)
	if err != nil {
		return ""
	}
	switch base {
	case "image/jpeg", "image/png":
		return "image"
	case "image/webp":
		return "sticker"
	case "audio/aac", "audio/amr", "audio/mpeg", "audio/mp4", "audio/ogg":
		return "audio"
	case "video/mp4", "video/3gpp":
		return "video"
	case "text/plain", "application/pdf", "application/vnd.ms-powerpoint", "application/msword", "application/vnd.ms-excel",
		"application/vnd.openxmlformats-officedocument.wordprocessingml.document",
		"application/vnd.openxmlformats-officedocument.presentationml.presentation",
		"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet":
		return "document"
	}
	return ""
}

// most is how many bytes a file of a kind may have.
func most(kind string) int {
	switch kind {
	case "image":
		return 5 << 20
	case "audio", "video":
		return 16 << 20
	case "sticker":
		return 500 << 10
	}
	return maxUpload
}

// keep keeps a file and returns how it is known. s.mu is held.
func (s *Server) keep(number, name, mimeType string, data []byte, life time.Duration) person.File {
	id := numeric(hexDigest(s.options.Seed, "media", fmt.Sprint(s.next())))[:15]
	f := person.File{ID: "4" + id, Name: name, MimeType: mimeType, Bytes: int64(len(data))}
	s.media[f.ID] = &media{File: f, Number: number, Data: data, Until: s.clock.Now().Add(life)}
	return f
}

func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	n, refused := s.number(r, r.PathValue("id"))
	if refused != nil {
		s.refuse(w, r, n, nil, refused)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxUpload+(1<<20))
	if err := r.ParseMultipartForm(32 << 20); err != nil {
		s.refuse(w, r, n, nil, parameter("the upload must be multipart/form-data of at most 100 MB"))
		return
	}
	defer func() { _ = r.MultipartForm.RemoveAll() }()
	file, header, err := r.FormFile("file")
	if err != nil || r.FormValue("messaging_product") != "whatsapp" {
		s.refuse(w, r, n, nil, parameter("file and messaging_product are required"))
		return
	}
	defer file.Close()
	data, err := io.ReadAll(file)
	mimeType := header.Header.Get("Content-Type")
	if given := r.FormValue("type"); given != "" {
		mimeType = given
	}
	kind := kindOf(mimeType)
	switch {
	case err != nil || len(data) == 0:
		refused = parameter("the file is empty or torn")
	case kind == "":
		refused = parameter("Param file must be a file with one of the following types: audio/aac, audio/mp4, audio/mpeg, audio/amr, audio/ogg, image/jpeg, image/png, image/webp, video/mp4, video/3gpp, text/plain, application/pdf and the usual office types. Received file of type '%s'.", mimeType)
	case len(data) > most(kind):
		refused = parameter("a file of type %s may have %d bytes", mimeType, most(kind))
	}
	if refused != nil {
		s.refuse(w, r, n, nil, refused)
		return
	}
	s.mu.Lock()
	kept := s.keep(n.PhoneNumberID, header.Filename, mimeType, data, uploadLife)
	s.mu.Unlock()
	s.counts.Add("uploads")
	s.answer(w, r, n, nil, map[string]any{"id": kept.ID})
}

// file answers GET and DELETE of a file's id.
func (s *Server) file(w http.ResponseWriter, r *http.Request, id string) {
	n, refused := s.number(r, "")
	if refused != nil {
		s.refuse(w, r, n, nil, refused)
		return
	}
	if fault, ok := s.faults.Take("media", ""); ok {
		s.refuse(w, r, n, nil, coded(fault))
		return
	}
	s.mu.Lock()
	f := s.media[id]
	if f == nil || !s.mayRead(r, f) || s.clock.Now().After(f.Until) {
		s.mu.Unlock()
		s.refuse(w, r, n, nil, unknownObject(r.Method, id))
		return
	}
	if r.Method == http.MethodDelete {
		delete(s.media, id)
		s.mu.Unlock()
		s.answer(w, r, n, nil, map[string]any{"success": true})
		return
	}
	key := hexDigest(s.options.Seed, "link", id, fmt.Sprint(s.next()))[:32]
	s.links[key] = link{id, s.clock.Now().Add(linkLife)}
	s.mu.Unlock()
	sum := sha256.Sum256(f.Data)
	s.counts.Add("mediaLookups")
	s.answer(w, r, n, nil, map[string]any{
		"id": f.ID, "messaging_product": "whatsapp", "url": "http://" + r.Host + "/_media/" + key, "mime_type": f.MimeType,
		"sha256": hex.EncodeToString(sum[:]), "file_size": f.Bytes,
	})
}

// mayRead reports whether the token of r is of the number that has f. s.mu is held.
func (s *Server) mayRead(r *http.Request, f *media) bool {
	token, _ := bearer(r)
	return s.numbers[f.Number] != nil && s.numbers[f.Number].AccessToken == token
}

// download serves a link: for five minutes, and with the bearer only.
func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	s.mu.Lock()
	at := s.links[r.PathValue("id")]
	f := s.media[at.media]
	var status int
	switch {
	case !ok || token == "":
		status = http.StatusUnauthorized
	case f == nil || s.clock.Now().After(at.until) || !s.mayRead(r, f):
		status = http.StatusNotFound
	}
	s.mu.Unlock()
	if fault, hit := s.faults.Take("media", ""); status == 0 && hit {
		status = coded(fault).Status
	}
	if status != 0 {
		s.counts.Add("downloadsRefused")
		s.remember(r, Number{}, nil, status, nil)
		http.Error(w, http.StatusText(status), status)
		return
	}
	s.counts.Add("downloads")
	s.remember(r, Number{PhoneNumberID: f.Number}, nil, http.StatusOK, nil)
	w.Header().Set("Content-Type", f.MimeType)
	_, _ = w.Write(f.Data) // a client that is gone has nothing to be told
}

// File returns the bytes of a file, as a phone shows it.
func (s *Server) File(id string) (person.File, []byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.media[id]
	if f == nil {
		return person.File{}, nil, false
	}
	return f.File, f.Data, true
}
