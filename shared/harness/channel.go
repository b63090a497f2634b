package harness

// NoticeKind says why something that came on a channel started no turn.
type NoticeKind string

// The kinds of a Notice.
const (
	NoticeEdit         NoticeKind = "EDIT"          // a message was changed
	NoticeRevoke       NoticeKind = "REVOKE"        // a message was taken back
	NoticeReaction     NoticeKind = "REACTION"      // a mark on a message
	NoticeDelivery     NoticeKind = "DELIVERY"      // what became of something we sent, told once
	NoticeService      NoticeKind = "SERVICE"       // about a chat, its members or an account
	NoticeIdentity     NoticeKind = "IDENTITY"      // a person or chat has another id now
	NoticeBlocked      NoticeKind = "BLOCKED"       // a chat takes nothing from us any more
	NoticeEcho         NoticeKind = "ECHO"          // our own side said it
	NoticeNotAddressed NoticeKind = "NOT_ADDRESSED" // said in a group, not to the agent
	NoticeDenied       NoticeKind = "DENIED"        // the sender policy refuses the sender
	NoticeUnrouted     NoticeKind = "UNROUTED"      // no agent has the account
	NoticeEmpty        NoticeKind = "EMPTY"         // nothing an agent could answer
	NoticeUnsupported  NoticeKind = "UNSUPPORTED"   // of a kind that no turn is made of
	NoticeMalformed    NoticeKind = "MALFORMED"     // could not be read
)

// ReplyKind is what one Reply row sends.
type ReplyKind string

// The kinds of a Reply.
const (
	ReplyText     ReplyKind = "TEXT"     // a text, or one part of it
	ReplyChoices  ReplyKind = "CHOICES"  // a text with choices to tap
	ReplyFile     ReplyKind = "FILE"     // a file that a command made
	ReplyCard     ReplyKind = "CARD"     // a question to a human, with its decisions to tap
	ReplyDecision ReplyKind = "DECISION" // what became of such a question
)

// Tappable reports whether a Reply of kind k may have choices to tap.
func (k ReplyKind) Tappable() bool { return k == ReplyChoices || k == ReplyCard }

// ReplyFormat is the form a Reply is sent in next.
type ReplyFormat string

// The formats of a Reply.
const (
	FormatRich     ReplyFormat = "RICH"     // formatted for its channel
	FormatPlain    ReplyFormat = "PLAIN"    // the provider refused the formatted text: as it was written
	FormatTemplate ReplyFormat = "TEMPLATE" // the channel takes only an approved template now
)

// Choice is one thing a person may tap instead of writing.
type Choice struct {
	ID          string `json:"id"` // comes back with the tap
	Title       string `json:"title"`
	Description string `json:"description,omitempty"`
}

// GroupPolicy says what in a group an agent answers.
type GroupPolicy string

// The group policies.
const (
	GroupsMention GroupPolicy = "mention" // what is said to it: a mention, a command, a reply to it
	GroupsAll     GroupPolicy = "all"     // everything
	GroupsNone    GroupPolicy = "none"    // nothing
)

// ChannelTemplate is a message template that the provider has approved. Its
// body has one parameter: the text.
type ChannelTemplate struct {
	Name     string `json:"name"`
	Language string `json:"language"` // as the provider writes it, like en_US
}

// Transport is how updates come from a provider.
type Transport string

// The transports.
const (
	TransportWebhook Transport = "webhook" // the provider calls us
	TransportPoll    Transport = "poll"    // we ask the provider
)
