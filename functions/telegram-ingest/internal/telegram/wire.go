package telegram

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"unicode/utf16"

	"tuluat.ai/harness/shared/harness"
)

// object is a JSON object as it came. Its keys are exact, which those of structs
// are not (encoding/json matches them in any case), of a key given twice the
// last value counts, and numbers keep their digits. Its readers give zero for
// what is missing or of another type: one field that has changed its shape costs
// no more than itself.
type object map[string]any

// decode reads exactly one JSON value.
func decode(body []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, harness.Wrap(harness.Invalid, err, "the body is not JSON")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, harness.Errorf(harness.Invalid, "the body is not one JSON value")
	}
	return value, nil
}

func asObject(value any) object {
	o, _ := value.(map[string]any)
	return o
}

func (o object) has(key string) bool { return o[key] != nil }

// object returns the object under key, nil if there is none. A nil one can be read.
func (o object) object(key string) object { return asObject(o[key]) }

func (o object) list(key string) []any {
	l, _ := o[key].([]any)
	return l
}

func (o object) flag(key string) bool {
	b, _ := o[key].(bool)
	return b
}

// raw returns the string under key as it came: offsets of entities count in it.
func (o object) raw(key string) string {
	s, _ := o[key].(string)
	return s
}

// text returns the string under key, fit to be stored.
func (o object) text(key string) string { return harness.CleanText(o.raw(key)) }

// id returns the integer under key. Ids have up to 52 bits.
func (o object) id(key string) (int64, bool) {
	n, ok := o[key].(json.Number)
	if !ok {
		return 0, false
	}
	id, err := strconv.ParseInt(n.String(), 10, 64)
	return id, err == nil
}

// int returns the integer under key, 0 if there is none.
func (o object) int(key string) int64 {
	n, _ := o.id(key)
	return n
}

// number returns the digits of the number under key, empty if there is none or
// it is longer than a number has reason to be.
func (o object) number(key string) string {
	n, _ := o[key].(json.Number)
	if len(n) > 32 {
		return ""
	}
	return n.String()
}

func decimal(id int64) string { return strconv.FormatInt(id, 10) }

// cut returns the part of text that an entity covers: offset and length count
// UTF-16 code units. Empty when it is not within text.
func cut(units []uint16, entity object) string {
	offset, ok := entity.id("offset")
	if !ok {
		return ""
	}
	length, ok := entity.id("length")
	size := int64(len(units))
	if !ok || offset < 0 || length <= 0 || offset > size || length > size-offset {
		return ""
	}
	return string(utf16.Decode(units[offset : offset+length]))
}

// shorten cuts s to at most limit bytes between two runes.
func shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && s[limit]&0xC0 == 0x80 {
		limit--
	}
	return s[:limit]
}
