package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/theory/jsonpath"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// The limits of a message, in bytes.
const (
	maxBody     = 1 << 20
	maxText     = 64 << 10
	maxID       = 200
	maxMetadata = 16 << 10 // as compact JSON
)

const (
	maxDepth    = 32   // of nested metadata
	maxExponent = 1000 // of a number in metadata: the database writes its zeros out
)

// parse normalises a hook's JSON. The channel is always WEBHOOK, whatever the
// body says. Keys are exact: Text is not text. Of a key given twice the last
// value counts, everywhere. key, if not empty, is the caller's Idempotency-Key
// and stands for the messageId.
func parse(body []byte, account, key string, f fields) (postgres.Arrival, error) {
	a := postgres.Arrival{Account: account, Message: harness.Message{Channel: harness.ChannelWebhook}}
	object, err := decode(body)
	if err != nil {
		return a, err
	}
	if a.ProviderID, err = identifier(object, "messageId", f.messageID, key == ""); err != nil {
		return a, err
	}
	if key != "" {
		if a.ProviderID, err = checkIdentifier("Idempotency-Key", key); err != nil {
			return a, err
		}
	}
	if a.Message.ChannelUserID, err = identifier(object, "channelUserId", f.channelUserID, true); err != nil {
		return a, err
	}
	if a.Chat, err = identifier(object, "chat", f.chat, false); err != nil {
		return a, err
	}
	if a.Chat == "" {
		a.Chat = a.Message.ChannelUserID
	}
	if a.Message.Text, err = text(object, f.text); err != nil {
		return a, err
	}
	a.Message.Metadata, err = metadata(object, f.metadata)
	return a, err
}

var utf8Mark = []byte("\uFEFF")

// decode reads exactly one JSON object. Numbers keep their text.
func decode(body []byte) (map[string]any, error) {
	body = bytes.TrimPrefix(body, utf8Mark)
	if !utf8.Valid(body) {
		return nil, refuse(http.StatusBadRequest, "the body must be UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, refuse(http.StatusBadRequest, "the body is not valid JSON")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, refuse(http.StatusBadRequest, "the body must be one JSON object and nothing more")
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, refuse(http.StatusBadRequest, "the body must be a JSON object")
	}
	return object, nil
}

// pick returns the value of a field, nil if it is absent or null.
func pick(object map[string]any, name string, path *jsonpath.Path) (any, error) {
	if path == nil {
		return object[name], nil
	}
	nodes := path.Select(object)
	switch len(nodes) {
	case 0:
		return nil, nil
	case 1:
		return nodes[0], nil
	}
	return nil, refuse(http.StatusBadRequest, name+" is found more than once by the hook's field mapping")
}

func identifier(object map[string]any, name string, path *jsonpath.Path, required bool) (string, error) {
	value, err := pick(object, name, path)
	if err != nil {
		return "", err
	}
	if value == nil && !required {
		return "", nil
	}
	id, ok := value.(string)
	if !ok {
		return "", refuse(http.StatusBadRequest, name+" must be a string")
	}
	return checkIdentifier(name, id)
}

// checkIdentifier keeps ids fit for headers, keys and logs.
func checkIdentifier(name, id string) (string, error) {
	if strings.TrimSpace(id) == "" || len(id) > maxID || !utf8.ValidString(id) || strings.ContainsFunc(id, unicode.IsControl) {
		return "", refuse(http.StatusBadRequest, name+" must have 1 to 200 bytes and no control characters")
	}
	return id, nil
}

func text(object map[string]any, path *jsonpath.Path) (string, error) {
	value, err := pick(object, "text", path)
	if err != nil {
		return "", err
	}
	s, ok := value.(string)
	if !ok {
		return "", refuse(http.StatusBadRequest, "text must be a string")
	}
	s = harness.CleanText(s)
	if strings.TrimSpace(s) == "" {
		return "", refuse(http.StatusBadRequest, "text must not be empty")
	}
	if len(s) > maxText {
		return "", refuse(http.StatusRequestEntityTooLarge, "text is over 64 KiB")
	}
	return s, nil
}

func metadata(object map[string]any, path *jsonpath.Path) (map[string]any, error) {
	value, err := pick(object, "metadata", path)
	if err != nil || value == nil {
		return nil, err
	}
	if _, ok := value.(map[string]any); !ok {
		return nil, refuse(http.StatusBadRequest, "metadata must be an object")
	}
	c := cleaner{}
	clean, err := c.clean(value, 0)
	if err != nil {
		return nil, err
	}
	return clean.(map[string]any), nil
}

// cleaner makes metadata storable and measures it.
type cleaner struct{ bytes int }

func (c *cleaner) add(n int) error {
	if c.bytes += n; c.bytes > maxMetadata {
		return refuse(http.StatusRequestEntityTooLarge, "metadata is over 16 KiB")
	}
	return nil
}

func (c *cleaner) clean(value any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, refuse(http.StatusBadRequest, "metadata is nested too deeply")
	}
	switch v := value.(type) {
	case string:
		s := harness.CleanText(v)
		return s, c.add(len(s) + 2)
	case json.Number:
		if _, exponent, ok := strings.Cut(strings.ToLower(v.String()), "e"); ok {
			if n, err := strconv.Atoi(exponent); err != nil || n > maxExponent || n < -maxExponent {
				return nil, refuse(http.StatusBadRequest, "metadata has a number out of range")
			}
		}
		return v, c.add(len(v))
	case []any:
		for i := range v {
			item, err := c.clean(v[i], depth+1)
			if err != nil {
				return nil, err
			}
			v[i] = item
		}
		return v, c.add(len(v) + 2)
	case map[string]any:
		clean := make(map[string]any, len(v))
		for name, item := range v {
			name = harness.CleanText(name)
			if _, twice := clean[name]; twice {
				return nil, refuse(http.StatusBadRequest, "metadata has two names that differ only in what cannot be stored")
			}
			item, err := c.clean(item, depth+1)
			if err != nil {
				return nil, err
			}
			clean[name] = item
			if err := c.add(len(name) + 4); err != nil {
				return nil, err
			}
		}
		return clean, c.add(2)
	default: // true, false, null
		return v, c.add(4)
	}
}
