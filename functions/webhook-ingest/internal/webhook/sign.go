package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// The headers of a signed request. The signature is v1=HEX, HEX the HMAC-SHA256
// of "TIMESTAMP.CONTENT", where CONTENT is
//
//	BODY          of a message that comes in: the raw body
//	key=KEY.BODY  the same with the header Idempotency-Key: KEY
//	reply.BODY    of a reply that goes out: it can never be taken for a message
//	URI           of a GET, either way: path and query
const (
	headerTimestamp = "X-Tuluat-Timestamp"
	headerSignature = "X-Tuluat-Signature"
	signaturePrefix = "v1="
)

// maxSkew is how far a timestamp may be from our clock: a captured request is
// worthless after it.
const maxSkew = 5 * time.Minute

// messageContent is what is signed of a message that comes in. The key is part
// of it: a captured request must not become another message by another key.
func messageContent(key string, body []byte) []byte {
	if key == "" {
		return body
	}
	return append([]byte("key="+key+"."), body...)
}

// replyContent is what is signed of a reply that goes out.
func replyContent(body []byte) []byte { return append([]byte("reply."), body...) }

// stamp is the signed part of a request's header.
type stamp struct {
	timestamp string
	signature [sha256.Size]byte
}

// readStamp checks what can be checked without the content: both headers, once
// each and well formed, and a timestamp near now.
func readStamp(h http.Header, now time.Time) (stamp, error) {
	var s stamp
	timestamps, signatures := h[headerTimestamp], h[headerSignature]
	if len(timestamps) != 1 || len(signatures) != 1 {
		return s, refuse(http.StatusUnauthorized, "the request is not signed")
	}
	s.timestamp = timestamps[0]
	seconds, err := strconv.ParseInt(s.timestamp, 10, 64)
	if err != nil || len(s.timestamp) > 12 {
		return s, refuse(http.StatusUnauthorized, "the timestamp must be a number of seconds since 1970")
	}
	if skew := now.Sub(time.Unix(seconds, 0)); skew > maxSkew || skew < -maxSkew {
		return s, refuse(http.StatusUnauthorized, "the timestamp is not within 5 minutes of now")
	}
	digits, ok := strings.CutPrefix(signatures[0], signaturePrefix)
	if !ok || len(digits) != hex.EncodedLen(sha256.Size) {
		return s, refuse(http.StatusUnauthorized, "the signature must be v1= and 64 hexadecimal digits")
	}
	if _, err := hex.Decode(s.signature[:], []byte(digits)); err != nil {
		return s, refuse(http.StatusUnauthorized, "the signature must be v1= and 64 hexadecimal digits")
	}
	return s, nil
}

// fits reports whether one of keys signed content. Comparing takes the same
// time whatever differs.
func (s stamp) fits(keys []harness.Secret, content []byte) bool {
	fits := false
	for _, key := range keys {
		sum := digest(key, s.timestamp, content)
		fits = hmac.Equal(sum[:], s.signature[:]) || fits
	}
	return fits
}

func digest(key harness.Secret, timestamp string, content []byte) (sum [sha256.Size]byte) {
	mac := hmac.New(sha256.New, []byte(key.Reveal()))
	mac.Write([]byte(timestamp))
	mac.Write([]byte{'.'})
	mac.Write(content)
	mac.Sum(sum[:0])
	return sum
}

// sign sets the headers that let the receiver check content.
func sign(h http.Header, key harness.Secret, now time.Time, content []byte) {
	timestamp := strconv.FormatInt(now.Unix(), 10)
	sum := digest(key, timestamp, content)
	h.Set(headerTimestamp, timestamp)
	h.Set(headerSignature, signaturePrefix+hex.EncodeToString(sum[:]))
}
