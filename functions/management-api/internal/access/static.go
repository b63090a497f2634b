package access

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"tuluat.ai/harness/shared/harness"
)

// Static knows callers by the tokens of a file, for one machine without a
// cluster.
type Static struct{ known []known }

type known struct {
	token  [sha256.Size]byte
	caller Caller
}

// minToken is the shortest token that a file may hold, in bytes: as long as 128
// random bits are in base64.
const minToken = 22

// NewStatic reads tokens, one a line: TOKEN, or TOKEN NAME, or TOKEN NAME ROLE.
// A token without a role has every right, one without a name is called local.
// Empty lines and those that begin with # are skipped. Errors name lines, never
// what is in them.
func NewStatic(text harness.Secret) (*Static, error) {
	s := &Static{}
	names, tokens := map[string]bool{}, map[[sha256.Size]byte]bool{}
	number := 0
	for line := range bytes.Lines([]byte(text.Reveal())) {
		number++
		fields := strings.Fields(string(line))
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		k := known{token: sha256.Sum256([]byte(fields[0])), caller: Caller{Name: "local", Static: true, role: RoleAdmin}}
		if len(fields) > 1 {
			k.caller.Name = fields[1]
		}
		if len(fields) > 2 {
			k.caller.role = fields[2]
		}
		switch _, ok := bearer([]string{"Bearer " + fields[0]}); {
		case !ok || len(fields[0]) < minToken:
			return nil, harness.Errorf(harness.Invalid, "line %d of the tokens: a token has %d or more of the characters that a header may have", number, minToken)
		case len(fields) > 3 || roleRights(k.caller.role) == nil:
			return nil, harness.Errorf(harness.Invalid, "line %d of the tokens: a token, a name and one of %s are all there may be", number, strings.Join(Roles(), ", "))
		case len(fields) == 2 && slices.ContainsFunc(Roles(), func(role string) bool { return strings.EqualFold(role, fields[1]) }):
			return nil, harness.Errorf(harness.Invalid, "line %d of the tokens: a role comes after a name: write TOKEN NAME %s", number, strings.ToLower(fields[1]))
		case !printable(k.caller.Name):
			return nil, harness.Errorf(harness.Invalid, "line %d of the tokens: a name has printable characters only and does not begin with #", number)
		case tokens[k.token]:
			return nil, harness.Errorf(harness.Invalid, "line %d of the tokens: its token is already in a line above", number)
		case names[k.caller.Name]:
			return nil, harness.Errorf(harness.Invalid, "line %d of the tokens: its name is already in a line above", number)
		}
		names[k.caller.Name], tokens[k.token] = true, true
		k.caller.Groups = []string{fmt.Sprintf("tuluat:%s", k.caller.role)}
		s.known = append(s.known, k)
	}
	if len(s.known) == 0 {
		return nil, harness.Errorf(harness.Invalid, "there is no token")
	}
	return s, nil
}

func printable(name string) bool {
	return utf8.ValidString(name) && name[0] != '#' && !strings.ContainsFunc(name, func(c rune) bool { return !unicode.IsPrint(c) })
}

// Identify implements Access. Its time does not depend on the token.
func (s *Static) Identify(_ context.Context, token string) (Caller, error) {
	digest := sha256.Sum256([]byte(token))
	found := -1
	for i, k := range s.known {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(digest[:], k.token[:]), i, found)
	}
	if found < 0 {
		return Caller{}, errUnknownToken()
	}
	return s.known[found].caller, nil
}

// Allow implements Access.
func (s *Static) Allow(_ context.Context, c Caller, r Right) (bool, error) {
	return c.Static && allows(roleRights(c.role), r), nil
}

func errUnknownToken() error {
	return harness.Errorf(harness.Denied, "the token is not valid, or no longer")
}
