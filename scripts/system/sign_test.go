//go:build system

package system_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// The caller's side of the signature, written out again from the description of
// the API: whoever breaks the one in the function breaks every caller.
const (
	headerTimestamp = "X-Tuluat-Timestamp"
	headerSignature = "X-Tuluat-Signature"
)

func signature(key harness.Secret, timestamp, content string) string {
	mac := hmac.New(sha256.New, []byte(key.Reveal()))
	mac.Write([]byte(timestamp + "." + content))
	return "v1=" + hex.EncodeToString(mac.Sum(nil))
}

func sign(h http.Header, key harness.Secret, content string) {
	now := strconv.FormatInt(time.Now().Unix(), 10)
	h.Set(headerTimestamp, now)
	h.Set(headerSignature, signature(key, now, content))
}

// signed reports whether content was signed with key within the last minutes.
func signed(h http.Header, key harness.Secret, content string) bool {
	timestamp := h.Get(headerTimestamp)
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return false
	}
	return hmac.Equal([]byte(h.Get(headerSignature)), []byte(signature(key, timestamp, content)))
}
