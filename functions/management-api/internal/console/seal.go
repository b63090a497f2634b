package console

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// minKey is the shortest key, in bytes: as long as 128 random bits are in base64.
const minKey = 22

// sealer keeps texts in browsers that nobody there can read or change: AES-256-GCM,
// with a key of its own for each purpose.
type sealer struct {
	keys []harness.Secret
	now  func() time.Time
}

// Purposes of sealed texts: one of another purpose does not open.
const (
	purposeSession = "session"
	purposeOIDC    = "oidc"
)

func newSealer(keys []harness.Secret, now func() time.Time) (*sealer, error) {
	for i, k := range keys {
		if len(k.Reveal()) < minKey {
			return nil, harness.Errorf(harness.Invalid, "CONSOLE_KEY: key %d has fewer than %d characters: make up a random one", i+1, minKey)
		}
	}
	return &sealer{keys: keys, now: now}, nil
}

// sealed is what is inside.
type sealed struct {
	Ends int64           `json:"expiresAt"` // seconds since 1970
	Data json.RawMessage `json:"data"`
}

func (s *sealer) aead(key harness.Secret, purpose string) (cipher.AEAD, error) {
	derived, err := hkdf.Key(sha256.New, []byte(key.Reveal()), nil, "tuluat console "+purpose, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// put seals v by the first key until ends.
func (s *sealer) put(purpose string, ends time.Time, v any) (string, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(sealed{Ends: ends.Unix(), Data: data})
	if err != nil {
		return "", err
	}
	aead, err := s.aead(s.keys[0], purpose)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(aead.Seal(nil, nil, text, []byte(purpose))), nil
}

// errSealed says that a text is not one of ours, or not any more. Which of the two
// is nobody's to know.
var errSealed = errors.New("not sealed here, or its time is over")

// get opens a text that put sealed, by whichever key did.
func (s *sealer) get(purpose, text string, v any) error {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return errSealed
	}
	for _, key := range s.keys {
		aead, err := s.aead(key, purpose)
		if err != nil {
			return err
		}
		opened, err := aead.Open(nil, nil, raw, []byte(purpose))
		if err != nil {
			continue
		}
		var in sealed
		if json.Unmarshal(opened, &in) != nil || s.now().Unix() >= in.Ends || json.Unmarshal(in.Data, v) != nil {
			return errSealed
		}
		return nil
	}
	return errSealed
}

// random returns 128 random bits as text.
func random() string { return rand.Text() }
