package main

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	"tuluat.ai/harness/shared/harness"
)

// scramIterations is PostgreSQL's own default.
const scramIterations = 4096

// scramVerifier is what PostgreSQL stores of a password (RFC 5802, RFC 7677), as
// psql's \password makes it. The password is printable ASCII, which SASLprep
// leaves alone.
func scramVerifier(password harness.Secret) (string, error) {
	salt := make([]byte, 16)
	rand.Read(salt)
	return scramWith(password, salt)
}

func scramWith(password harness.Secret, salt []byte) (string, error) {
	salted, err := pbkdf2.Key(sha256.New, password.Reveal(), salt, scramIterations, sha256.Size)
	if err != nil {
		return "", err
	}
	sign := func(text string) []byte {
		mac := hmac.New(sha256.New, salted)
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	stored := sha256.Sum256(sign("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", scramIterations, encode(salt), encode(stored[:]), encode(sign("Server Key"))), nil
}
