package botapi

import (
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// call is one call of a method. All parameters are texts; what is not a string
// in JSON stays JSON.
type call struct {
	method string
	params map[string]string
	files  map[string]upload
	body   string // for the record
}

type upload struct {
	name, mimeType string
	data           []byte
}

// result is an answer of the API.
type result struct {
	status      int
	value       any
	description string
	parameters  map[string]any
	cut         bool // no answer at all
}

func done(value any) *result { return &result{status: http.StatusOK, value: value} }

func fail(status int, format string, args ...any) *result {
	return &result{status: status, description: fmt.Sprintf(format, args...)}
}

// bad is a refusal of what was asked.
func bad(format string, args ...any) *result {
	return fail(http.StatusBadRequest, "Bad Request: "+format, args...)
}

const maxCall = 51 << 20 // a file of 50 MB and what goes with it

// read reads the parameters, in any of the forms the API takes.
func (c *call) read(w http.ResponseWriter, r *http.Request) *result {
	c.params, c.files = map[string]string{}, map[string]upload{}
	r.Body = http.MaxBytesReader(w, r.Body, maxCall)
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // none is as good as another
	for name, values := range r.URL.Query() {
		c.params[name] = values[0]
	}
	switch kind {
	case "application/json":
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return fail(http.StatusRequestEntityTooLarge, "Request Entity Too Large")
		}
		c.body = string(text)
		return c.fromJSON(text)
	case "multipart/form-data":
		if err := r.ParseMultipartForm(maxCall); err != nil {
			return fail(http.StatusRequestEntityTooLarge, "Request Entity Too Large")
		}
		for name, headers := range r.MultipartForm.File {
			f, err := headers[0].Open()
			if err != nil {
				return bad("the file %s is torn", name)
			}
			data, err := io.ReadAll(f)
			f.Close()
			if err != nil {
				return bad("the file %s is torn", name)
			}
			c.files[name] = upload{headers[0].Filename, headers[0].Header.Get("Content-Type"), data}
		}
	default:
		if err := r.ParseForm(); err != nil {
			return bad("the form cannot be read")
		}
	}
	for name, values := range r.PostForm {
		c.params[name] = values[0]
	}
	c.body = r.PostForm.Encode()
	return nil
}

func (c *call) fromJSON(text []byte) *result {
	if len(text) == 0 {
		return nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return bad("can't parse JSON object")
	}
	for name, raw := range fields {
		var plain string
		if json.Unmarshal(raw, &plain) == nil {
			c.params[name] = plain
		} else {
			c.params[name] = string(raw)
		}
		if string(raw) == "null" {
			delete(c.params, name)
		}
	}
	return nil
}

// integer reads a parameter that is a number; 0 where there is none.
func (c *call) integer(name string) (int64, bool) {
	text, ok := c.params[name]
	if !ok || text == "" {
		return 0, true
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return n, err == nil
}

func (c *call) flag(name string) bool {
	return c.params[name] == "true" || c.params[name] == "True" || c.params[name] == "1"
}

// answer writes r and remembers the call.
func (s *Server) answer(w http.ResponseWriter, b *bot, c call, r *result) {
	account := ""
	if b != nil {
		account = b.Username
	}
	record := person.Call{At: s.clock.Now(), Account: account, Method: c.method, Path: "/bot/" + c.method, Body: c.body, Status: r.status}
	if r.cut {
		record.Status = 0
		s.calls.Add(record)
		s.counts.Add("cut")
		panic(http.ErrAbortHandler)
	}
	out := map[string]any{"ok": r.status == http.StatusOK}
	if r.status == http.StatusOK {
		out["result"] = r.value
		if r.description != "" {
			out["description"] = r.description
		}
	} else {
		s.counts.Add("refused")
		s.options.Log.Info("telegram call refused", "method", c.method, "status", r.status, "description", r.description)
		out["error_code"], out["description"] = r.status, r.description
		if r.parameters != nil {
			out["parameters"] = r.parameters
		}
	}
	text, err := json.Marshal(out)
	if err != nil { // plain values of this package
		panic(err)
	}
	record.Answer = string(text)
	s.calls.Add(record)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(r.status)
	_, _ = w.Write(text) // a client that is gone has nothing to be told
}
