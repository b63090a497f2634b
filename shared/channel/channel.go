// Package channel is what every channel with people on it has in common: the way
// in (verify, parse, store with one statement, wake, 200), the way out (claim a
// reply, send it once, write down what came of it), files and presence. What a
// provider does in its own way is behind the small interfaces of this file; no
// vendor's word is in this package.
package channel

import (
	"context"
	"io"
	"net/http"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Adapter is what one provider needs of its own on the way in.
type Adapter interface {
	// Verify says which accounts the request may speak for: a signature proves
	// only its own. An error of kind harness.Denied is answered 401 with an
	// empty body, whatever else is wrong.
	Verify(ctx context.Context, r *http.Request, body []byte) (Proof, error)
	// Parse makes rows of body. It never fails for one element: what cannot be
	// used becomes a Notice. harness.Invalid, answered 400, says that body is no
	// JSON at all. Updates for accounts that proof does not hold become notices
	// of kind UNROUTED.
	Parse(body []byte, proof Proof) (postgres.Inbound, error)
}

// Admitter is an Adapter that can refuse a request by its header alone, before
// its body is read: what a stranger sends then costs nothing.
type Admitter interface {
	// Admit fails as Verify would, whatever the body. Success promises nothing.
	Admit(ctx context.Context, r *http.Request) error
}

// Proof is what a request's credential proves.
type Proof struct {
	Accounts map[string]*Account // by name
}

// Transport is what one provider needs of its own on the way out.
type Transport interface {
	// Split cuts a text into parts that each fit one message of the provider
	// once they are formatted. It depends on nothing but text; an empty text
	// gives no part.
	Split(text string) []string
	// Send prepares the part, calls begin, makes one call that sends, and says
	// what came of it. begin commits that from now on the part may have been
	// sent: whatever can be done before it is done before it. An error of begin
	// is returned as it is, and nothing is sent then. Send is not called for
	// parts that may have been sent already.
	Send(ctx context.Context, account *Account, c *postgres.ReplyClaim, begin func(context.Context) error) (postgres.ReplyOutcome, error)
	// Settle judges a part that may have been sent, when no evidence has come in
	// time.
	Settle(ctx context.Context, account *Account, c *postgres.ReplyClaim) postgres.ReplyOutcome
}

// Presence shows people that they were heard: a read receipt, "is typing".
// Everything it does is best effort.
type Presence interface {
	// Show is called when a message's turn has begun, and then every Every until
	// the turn is over or Longest has passed. first is true for the first call.
	Show(ctx context.Context, account *Account, m *postgres.Received, first bool) error
	Every() time.Duration
	Longest() time.Duration
}

// Downloader hands out the files of a provider.
type Downloader interface {
	// Download opens the file. The Attachment says what the provider knows of it
	// by now. An error of kind harness.Unavailable is tried again; every other
	// is final, and its message is told to the agent.
	Download(ctx context.Context, account *Account, a postgres.Attachment) (io.ReadCloser, harness.Attachment, error)
}

// Objects keeps files. *archive.Store is one.
type Objects interface {
	// Put stores size bytes under key. Storing the same bytes again is success.
	Put(ctx context.Context, key string, body io.Reader, size int64, mimeType string) error
	// Get opens what is stored under key and says how long it is.
	Get(ctx context.Context, key string) (io.ReadCloser, int64, error)
}

// Role is what a secret of an account is for.
type Role string

// The roles.
const (
	RoleVerifyToken   Role = "VERIFY_TOKEN"
	RoleAppSecret     Role = "APP_SECRET"
	RoleAccessToken   Role = "ACCESS_TOKEN"
	RoleBotToken      Role = "BOT_TOKEN"
	RoleWebhookSecret Role = "WEBHOOK_SECRET"
	RolePairingCode   Role = "PAIRING_CODE"
	RoleSigning       Role = "SIGNING"
)

// Account is our side of a channel, with its secrets.
type Account struct {
	Name  string // as providers and routes know it
	Agent harness.AgentName
	Spec  harness.ChannelSpec
	Keys  map[Role][]harness.Secret // newest first; several while one is rotated
}

// Key returns the newest secret of a role, empty if there is none.
func (a *Account) Key(role Role) harness.Secret {
	if keys := a.Keys[role]; len(keys) > 0 {
		return keys[0]
	}
	return ""
}
