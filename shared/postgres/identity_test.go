package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// ids are those of a person as an update tells them: a number, a lasting id, or both.
func ids(number, lasting string) func(*postgres.Arrival) {
	return func(a *postgres.Arrival) {
		a.Lasting = lasting
		switch {
		case lasting == "":
			a.Message.ChannelUserID, a.Aliases = number, []string{number}
		case number == "":
			a.Message.ChannelUserID, a.Aliases = lasting, []string{lasting}
		default:
			a.Message.ChannelUserID, a.OtherID, a.Aliases = number, lasting, []string{lasting, number}
		}
	}
}

func pairedBy(a *postgres.Arrival) { a.Paired = true }

// A phone number that an operator hands to another person without any system
// message: the new owner has another BSUID, and must not be in the old
// owner's conversation.
func TestReassignedNumberReadsOldConversation(t *testing.T) {
	s := people(t, "open")
	alice := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("1", "111", "my secret", ids("111", "US.alice"))}})
	bob := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("2", "111", "what did I say?", ids("111", "US.bob"))}})
	if bob[0].Session == alice[0].Session {
		t.Errorf("another user id on the same number is in the old owner's conversation %s", alice[0].Session)
	}
	if got := texts(t, s, `SELECT address FROM chats ORDER BY length(chat)`); !slices.Equal(got, []string{"US.alice", "111"}) {
		t.Errorf("replies go to %q", got)
	}
}

// After user_changed_number the paired person writes from the new number.
func TestPairingMovesWithTheNumber(t *testing.T) {
	s := people(t, "pairing")
	first := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("1", "111", "x", ids("111", "US.alice"), pairedBy)}})
	accept(t, s, postgres.Inbound{Renames: []postgres.Rename{{Account: "number", ProviderID: "r1", From: []string{"US.alice", "111"}, To: []string{"222", "US.alice2"}, Lasting: "US.alice2"}}})
	if after := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("2", "222", "x", ids("222", "US.alice2"))}}); after[0].Session != first[0].Session {
		t.Errorf("the paired person, with a new number: %+v", after)
	}
	if stranger := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("3", "111", "x", ids("111", "US.mallory"))}}); stranger[0].Outcome != postgres.ArrivalDenied {
		t.Errorf("the next owner of the paired person's old number is paired: %+v", stranger)
	}
}

// The provider leaves a known person's number out (username, 30 days silent).
func TestPairingSurvivesAHiddenNumber(t *testing.T) {
	s := people(t, "pairing")
	first := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("1", "111", "x", ids("111", "US.alice"), pairedBy)}})
	if after := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("2", "US.alice", "x", ids("", "US.alice"))}}); after[0].Session != first[0].Session {
		t.Errorf("a paired person whose number is hidden now: %+v", after)
	}
}

// A number with three owners in a row, each move told by the provider.
func TestThirdOwnerReadsSecondOwnersConversation(t *testing.T) {
	s := people(t, "open")
	say := func(id, phone, user string) postgres.Accepted {
		return accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person(id, phone, "x", ids(phone, user))}})[0]
	}
	move := func(user, phone, newPhone, newUser string) {
		accept(t, s, postgres.Inbound{Renames: []postgres.Rename{{Account: "number", ProviderID: user + newUser + "r2", From: []string{user, phone}, To: []string{newPhone, newUser}, Lasting: newUser}}})
	}
	say("1", "111", "US.alice")
	move("US.alice", "111", "222", "US.alice2")
	bob := say("2", "111", "US.bob")
	move("US.bob", "111", "333", "US.bob2")
	carol := say("3", "111", "US.carol")
	if carol.Session == bob.Session {
		t.Errorf("the third owner of the number is in the second one's conversation %s", bob.Session)
	}
	if after := say("4", "333", "US.bob2"); after.Session != bob.Session {
		t.Errorf("the second owner's conversation did not follow the second move: %s, was %s", after.Session, bob.Session)
	}
}

// Somebody moves away and back, then away again.
func TestAwayAndBack(t *testing.T) {
	s := people(t, "open")
	say := func(id, phone, user string) postgres.Accepted {
		return accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person(id, phone, "x", ids(phone, user))}})[0]
	}
	move := func(user, phone, newPhone, newUser string) {
		accept(t, s, postgres.Inbound{Renames: []postgres.Rename{{Account: "number", ProviderID: user + newUser + "r3", From: []string{user, phone}, To: []string{newPhone, newUser}, Lasting: newUser}}})
	}
	a := say("1", "111", "US.a")
	move("US.a", "111", "222", "US.b")
	move("US.b", "222", "111", "US.c")
	if b := say("2", "111", "US.c"); b.Session != a.Session {
		t.Errorf("back on the old number: %s, was %s", b.Session, a.Session)
	}
	move("US.c", "111", "222", "US.d")
	if b := say("3", "222", "US.d"); b.Session != a.Session {
		t.Errorf("away again: %s, was %s", b.Session, a.Session)
	}
}

// A repeat of an old rename that comes after the number was handed on.
func TestLateRepeatOfARename(t *testing.T) {
	s := people(t, "open")
	say := func(id, phone, user string) postgres.Accepted {
		return accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person(id, phone, "x", ids(phone, user))}})[0]
	}
	first := postgres.Inbound{Renames: []postgres.Rename{{Account: "number", ProviderID: "r4", From: []string{"US.a", "111"}, To: []string{"222", "US.b"}, Lasting: "US.b"}}}
	a := say("1", "111", "US.a")
	accept(t, s, first)
	accept(t, s, postgres.Inbound{Renames: []postgres.Rename{{Account: "number", ProviderID: "r5", From: []string{"US.b", "222"}, To: []string{"111", "US.c"}, Lasting: "US.c"}}})
	accept(t, s, first) // the provider sends it again: failed webhooks come for 7 days, in any order
	if b := say("2", "111", "US.c"); b.Session != a.Session {
		t.Errorf("after a late repeat: %s, was %s", b.Session, a.Session)
	}
}

// Statement-level: a new person whose first two messages share one statement,
// the first without a number.
func TestTwoMessagesOfANewPersonInOneStatement(t *testing.T) {
	s := people(t, "open")
	both := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{
		person("1", "US.a", "x", ids("", "US.a")),
		person("2", "111", "x", ids("111", "US.a")),
	}})
	if both[0].Session != both[1].Session {
		t.Errorf("one person, two conversations: %+v", both)
	}
	third := accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("3", "111", "x", ids("111", "US.a"))}})
	if third[0].Session != both[1].Session {
		t.Errorf("the third is in %s", third[0].Session)
	}
}

// Guesses in one request: 300 wrong codes and the right one.
func TestGuessesInOneStatement(t *testing.T) {
	s := people(t, "pairing")
	var in postgres.Inbound
	for i := range 250 {
		in.Arrivals = append(in.Arrivals, person("g"+string(rune('a'+i%26))+string(rune('a'+i/26)), "666", "0000"))
	}
	in.Arrivals = append(in.Arrivals, person("right", "666", "1234", pairedBy))
	got := accept(t, s, in)
	if got[250].Outcome != postgres.ArrivalDenied {
		t.Errorf("251 guesses of one person in one request: the last is %s", got[250].Outcome)
	}
}

// Requests that speak of the same chats in opposite order are stored all the same.
func TestDeadlocksAreTriedAgain(t *testing.T) {
	s := people(t, "open")
	accept(t, s, postgres.Inbound{Arrivals: []postgres.Arrival{person("1", "a", "x"), person("2", "b", "x")}})
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			one, two := "a", "b"
			if i%2 == 1 {
				one, two = two, one
			}
			for n := range 20 {
				_, _, err := s.Accept(context.Background(), harness.ChannelWhatsApp, postgres.Inbound{
					Blocks:   []postgres.Block{{Account: "number", Chat: one, Reason: "x"}},
					Arrivals: []postgres.Arrival{person(fmt.Sprint(i, "-", n), two, "x")},
				}, "")
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := texts(t, s, `SELECT count(*)::text FROM messages`); got[0] != "82" {
		t.Errorf("%s messages", got[0])
	}
}
