package graph

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"tuluat.ai/harness/scripts/internal/fake/person"
)

// apiError is an error of the Graph API.
type apiError struct {
	Status  int
	Code    int
	Subcode int
	Type    string
	Message string
	Details string
}

const oauth = "OAuthException"

// parameter is code 100: the request breaks a rule of the API.
func parameter(format string, args ...any) *apiError {
	return &apiError{Status: http.StatusBadRequest, Code: 100, Type: oauth, Message: "(#100) Invalid parameter", Details: fmt.Sprintf(format, args...)}
}

// value is code 131009: a parameter is well formed and means nothing.
func value(format string, args ...any) *apiError {
	return &apiError{Status: http.StatusBadRequest, Code: 131009, Type: oauth, Message: "(#131009) Parameter value is not valid", Details: fmt.Sprintf(format, args...)}
}

func unknownObject(method, id string) *apiError {
	return &apiError{
		Status: http.StatusBadRequest, Code: 100, Subcode: 33, Type: "GraphMethodException",
		Message: fmt.Sprintf("Unsupported %s request. Object with ID '%s' does not exist, cannot be loaded due to missing permissions, or does not support this operation", strings.ToLower(method), id),
	}
}

// title is what the vendor calls a code.
func title(code int) string {
	switch code {
	case 4:
		return "API Too Many Calls"
	case 130429:
		return "Rate limit hit"
	case 131000:
		return "Something went wrong"
	case 131016:
		return "Service unavailable"
	case 131026:
		return "Message undeliverable"
	case 131047:
		return "Re-engagement message"
	case 131049:
		return "This message was not delivered to maintain healthy ecosystem engagement."
	case 131051:
		return "Message type unknown"
	case 131052:
		return "Media download error"
	case 131053:
		return "Media upload error"
	case 131056:
		return "(Business Account, Consumer Account) pair rate limit hit"
	case 190:
		return "Access token has expired"
	}
	return "Error"
}

// coded is an error by its number, as a fault asks for it.
func coded(f person.Fault) *apiError {
	e := &apiError{Status: f.Status, Code: f.Code, Type: oauth, Message: fmt.Sprintf("(#%d) %s", f.Code, title(f.Code)), Details: f.Text}
	if e.Code == 0 {
		e.Code = 131000
		e.Message = "(#131000) Something went wrong"
	}
	if e.Status == 0 {
		switch e.Code {
		case 190:
			e.Status = http.StatusUnauthorized
		case 130429, 4, 80007:
			e.Status = http.StatusTooManyRequests
		case 131000, 1, 2:
			e.Status = http.StatusInternalServerError
		case 131016:
			e.Status = http.StatusServiceUnavailable
		default:
			e.Status = http.StatusBadRequest
		}
	}
	return e
}

func bearer(r *http.Request) (string, bool) {
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok && token != "" {
		return token, true
	}
	token := r.URL.Query().Get("access_token")
	return token, token != ""
}

const maxBody = 1 << 20

func readBody(r *http.Request) ([]byte, *apiError) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil || len(body) > maxBody {
		return body, parameter("the request is too large or torn")
	}
	return body, nil
}

// answer writes a success and remembers the call.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, n Number, body []byte, value any) {
	text, err := json.Marshal(value)
	if err != nil { // plain values of this package
		panic(err)
	}
	s.remember(r, n, body, http.StatusOK, text)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Facebook-Api-Version", r.PathValue("version"))
	_, _ = w.Write(text) // a client that is gone has nothing to be told
}

func (s *Server) refuse(w http.ResponseWriter, r *http.Request, n Number, body []byte, e *apiError) {
	inner := map[string]any{"message": e.Message, "type": e.Type, "code": e.Code, "fbtrace_id": "A" + hexDigest(s.options.Seed, r.URL.Path)[:21]}
	if e.Subcode != 0 {
		inner["error_subcode"] = e.Subcode
	}
	if e.Details != "" {
		inner["error_data"] = map[string]any{"messaging_product": "whatsapp", "details": e.Details}
	}
	text, err := json.Marshal(map[string]any{"error": inner})
	if err != nil {
		panic(err)
	}
	s.counts.Add("refused")
	s.remember(r, n, body, e.Status, text)
	s.options.Log.Info("whatsapp call refused", "method", r.Method, "path", r.URL.Path, "status", e.Status, "code", e.Code, "details", e.Details)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Www-Authenticate", `OAuth "Facebook Platform"`)
	w.WriteHeader(e.Status)
	_, _ = w.Write(text)
}

func (s *Server) remember(r *http.Request, n Number, body []byte, status int, answer []byte) {
	s.calls.Add(person.Call{At: s.clock.Now(), Account: n.PhoneNumberID, Method: r.Method, Path: r.URL.Path, Body: string(body), Status: status, Answer: string(answer)})
}

// Sign returns the X-Hub-Signature-256 header of body.
func Sign(appSecret string, body []byte) string {
	mac := hmac.New(sha256.New, []byte(appSecret))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// Escape writes v as the vendor does: other than ASCII as \uXXXX, and \/ for /.
func Escape(v any) []byte {
	var plain bytes.Buffer
	encoder := json.NewEncoder(&plain)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil { // plain values of this package
		panic(err)
	}
	text := bytes.TrimSuffix(plain.Bytes(), []byte("\n"))
	out := make([]byte, 0, len(text)+len(text)/8)
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == '/':
			out = append(out, '\\', '/')
		case r < utf8.RuneSelf:
			out = append(out, byte(r))
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		text = text[size:]
	}
	return out
}

// wamid makes a message id like the vendor's: base64 with / + = in it. s.mu is held.
func (s *Server) wamid(phone string) string {
	n := s.next()
	sum := sha256.Sum256(fmt.Appendf(nil, "%s|%s|%d", s.options.Seed, phone, n))
	raw := append([]byte{0x1d, 0x18, byte(len(phone))}, phone...)
	raw = append(append(raw, 0x15, 0x02, 0x00, 0x11, 0x18, 0x12), sum[:10]...)
	return "wamid." + base64.StdEncoding.EncodeToString(raw)
}

func hexDigest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "|")))
	return hex.EncodeToString(sum[:])
}

// digits is a phone number as the API writes it.
func digits(phone string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, phone)
}
