package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"tuluat.ai/harness/shared/harness/view"
)

// encoded refuses a body that is not as its Content-Type says it is.
func encoded(r *http.Request) error {
	if r.ContentLength == 0 {
		return nil
	}
	for coding := range strings.SplitSeq(strings.Join(r.Header.Values("Content-Encoding"), ","), ",") {
		if coding = strings.TrimSpace(coding); coding != "" && !strings.EqualFold(coding, "identity") {
			p := refuse(http.StatusUnsupportedMediaType, "the body must not be encoded: send it as it is",
				view.ProblemField{Pointer: "header/Content-Encoding", Detail: "is not identity"})
			p.header = http.Header{"Accept-Encoding": {"identity"}}
			return p
		}
	}
	return nil
}

const (
	maxDepth = 100  // of a body: more than anything that the API takes has
	maxKey   = 1024 // bytes: more than the longest key of an annotation has
)

// unmarshal reads a body that says each thing once: of two values of one key
// nobody knows which is meant.
func unmarshal(text []byte, v any) error {
	if err := checkKeys(text); err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// keyError is what is wrong with the shape of a body.
type keyError string

func (e keyError) Error() string { return string(e) }

// checkKeys refuses objects that have a key twice, keys that are too long and
// what is too deep. What is no JSON is left to whoever reads it.
func checkKeys(text []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	err := checkValue(decoder, 0)
	if _, ok := errors.AsType[keyError](err); ok {
		return err
	}
	return nil
}

func checkValue(decoder *json.Decoder, depth int) error {
	token, err := decoder.Token()
	if err != nil {
		return err
	}
	open, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	if depth == maxDepth {
		return keyError("is too deep")
	}
	seen := map[string]bool{}
	for decoder.More() {
		if open == '{' {
			token, err := decoder.Token()
			if err != nil {
				return err
			}
			key, _ := token.(string)
			switch {
			case len(key) > maxKey:
				return keyError("has a key that is too long")
			case seen[key]:
				return keyError("has the key " + clip(key) + " twice")
			}
			seen[key] = true
		}
		if err := checkValue(decoder, depth+1); err != nil {
			return err
		}
	}
	_, err = decoder.Token() // the end of it
	return err
}
