package whatsapp

import (
	"fmt"
	"net/http"
	"time"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// codeWindowClosed says that the person has been silent for 24 hours.
const codeWindowClosed = 131047

// verdict is what to do about an error.
type verdict int

const (
	give     verdict = iota // it will never arrive
	operator                // nor will any other until somebody mends the account
	slower                  // too fast for the number or the app: later
	pair                    // too fast for this person: later, others go on
	again                   // a trouble of the provider's: later
	template                // only an approved template reaches the person
)

// verdicts are the codes that the provider documents. It says to decide by them
// and not by titles, which change.
var verdicts = map[int]verdict{
	0: operator, 3: operator, 10: operator, 190: operator, // and 200 to 299: token and permissions
	368: operator, 131031: operator, // the account is restricted or locked
	131005: operator, 131042: operator, 131045: operator, 133010: operator, // access, payment, certificate, registration
	131048: operator,                                                                                                             // people report messages of the number
	132000: operator, 132001: operator, 132005: operator, 132007: operator, 132012: operator, 132015: operator, 132016: operator, // the template

	1: again, 2: again, 131000: again, 131016: again,
	4: slower, 80007: slower, 130429: slower, 131057: slower,
	131056: pair,

	codeWindowClosed: template,

	100: give, 131008: give, 131009: give, 131021: give, 131026: give, 131030: give, 131049: give, 131050: give, 131051: give, 131052: give, 131053: give, 131062: give,
}

// judge says what to do about a failed call: by the provider's code, else by
// HTTP's.
func judge(r reply, f fault) verdict {
	if v, ok := verdicts[f.code]; ok && f.known {
		return v
	}
	switch {
	case f.known && f.code >= 200 && f.code <= 299, r.status == http.StatusUnauthorized, r.status == http.StatusForbidden:
		return operator
	case r.status == http.StatusTooManyRequests:
		return slower
	case r.status >= 500, r.status == http.StatusRequestTimeout, r.status == http.StatusTooEarly, f.transient:
		return again
	}
	return give
}

const (
	maxPairExponent = 6                // 4^6 s: more than an hour
	hourly          = time.Minute      // at least, for limits that are counted by the hour
	evidenceTime    = 30 * time.Second // in which a status says that a message went out after all
	configTime      = 10 * time.Minute // for a person to mend the configuration
)

// pairBackoff is the provider's own rule: 4^n seconds.
func pairBackoff(attempts int) time.Duration {
	return time.Second << (2 * min(max(attempts, 1), maxPairExponent))
}

// outcome judges the answer to a message.
func (g *Graph) outcome(account *channel.Account, c *postgres.ReplyClaim, r reply) postgres.ReplyOutcome {
	switch {
	case r.err != nil && r.wrote:
		return unknown("the answer of WhatsApp was lost: the message may have been sent")
	case r.err != nil:
		return postgres.ReplyOutcome{State: harness.ReplyPlanned, Reason: "WhatsApp cannot be reached", Retry: channel.Backoff(c.Attempts)}
	case r.status/100 == 2:
		id := messageID(r.body)
		if id == "" {
			return unknown("WhatsApp took the message but did not name it")
		}
		return postgres.ReplyOutcome{State: harness.ReplySent, ProviderID: id}
	}
	f := r.fault()
	if !f.known && r.status >= 500 && r.status != http.StatusServiceUnavailable {
		// An edge says this, perhaps after the servers behind it took the message.
		return unknown(fmt.Sprintf("WhatsApp's edge answered %d: the message may have been sent", r.status))
	}
	o := g.refused(account, c, r, f)
	if !f.known && r.status == http.StatusServiceUnavailable {
		// Not taken, as far as HTTP goes. A status that comes before the next
		// attempt makes it SENT all the same.
		o.Retry = max(o.Retry, evidenceTime)
	}
	return o
}

// unknown is the outcome of a message that may have been sent. The provider
// cannot be asked, and a second one could double it: nobody sends it again, and
// the parts behind it go on. A status that comes later settles it by the reply's
// id, which every message carries.
func unknown(reason string) postgres.ReplyOutcome {
	return postgres.ReplyOutcome{State: harness.ReplyUnknown, Final: true, Reason: reason}
}

// refused judges an answer that says that nothing was sent.
func (g *Graph) refused(account *channel.Account, c *postgres.ReplyClaim, r reply, f fault) postgres.ReplyOutcome {
	o := postgres.ReplyOutcome{State: harness.ReplyPlanned, Reason: refusal(r, f), Code: f.code}
	switch judge(r, f) {
	case slower:
		o.Retry = channel.Backoff(c.Attempts)
		if f.code == 4 || f.code == 80007 { // counted by the hour
			o.Retry = max(o.Retry, hourly)
		}
	case again:
		o.Retry = channel.Backoff(c.Attempts)
	case pair:
		o.Retry = pairBackoff(c.Attempts)
		o.Hold = o.Retry
	case template:
		if account.Spec.Template == nil || c.Format == harness.FormatTemplate || c.Kind == harness.ReplyFile {
			return windowClosed(account, c)
		}
		o.Format = harness.FormatTemplate
	case operator:
		o.State = harness.ReplyFailed
		g.Log.Error("WhatsApp refuses a number until its account is mended", "account", account.Name, "agent", string(account.Agent), "reply", string(c.ID),
			"code", f.code, "subcode", f.subcode, "status", r.status, "do", advice(f))
	default:
		o.State = harness.ReplyFailed
	}
	return o
}

// advice says what mends the account.
func advice(f fault) string {
	switch {
	case f.code == 190 && f.subcode == 463:
		return "the access token has expired: put a new one into accessTokenSecretRef"
	case f.code == 190 || f.code == 0:
		return "put a valid access token into accessTokenSecretRef"
	case f.code == 3 || f.code == 10 || f.code >= 200 && f.code <= 299 || f.code == 131005:
		return "give the token's system user whatsapp_business_messaging for this number"
	case f.code == 131042:
		return "mend the payment method of the WhatsApp Business Account"
	case f.code >= 132000 && f.code <= 132999:
		return "make channels[].template name an approved template whose body has one parameter"
	case f.code == 133010:
		return "register the number for the Cloud API"
	case f.code == 131048 || f.code == 131031 || f.code == 368:
		return "look at the number's quality and restrictions in WhatsApp Manager"
	}
	return "check the access token and the number in WhatsApp Manager"
}

// refusal is an error in words for people.
func refusal(r reply, f fault) string {
	switch {
	case !f.known:
		return fmt.Sprintf("WhatsApp answered %d", r.status)
	case f.reason == "":
		return fmt.Sprintf("WhatsApp refuses it with code %d", f.code)
	}
	return fmt.Sprintf("WhatsApp refuses it with code %d: %s", f.code, f.reason)
}

func windowClosed(account *channel.Account, c *postgres.ReplyClaim) postgres.ReplyOutcome {
	reason := "the person has not written for 24 hours, and WhatsApp takes only an approved template then: "
	switch {
	case account.Spec.Template == nil:
		reason += "set channels[].template of the agent to the name and language of one whose body has one parameter"
	case c.Kind == harness.ReplyFile:
		reason += "a file cannot be sent in channels[].template, which holds text"
	default:
		reason += "it refuses channels[].template too"
	}
	return postgres.ReplyOutcome{State: harness.ReplyFailed, Code: codeWindowClosed, Reason: reason}
}

// messageID is the id that the provider gave the message.
func messageID(body []byte) string {
	if !valid(string(body)) {
		return ""
	}
	for message := range whole(body).get("messages").items {
		return identifier(message.get("id"), maxID)
	}
	return ""
}
