package harness

import (
	"path"
	"strings"
	"unicode"
)

// AttachmentKind is what a file is to the channel it travels on.
type AttachmentKind string

// The kinds of an Attachment.
const (
	AttachmentImage    AttachmentKind = "IMAGE"
	AttachmentAudio    AttachmentKind = "AUDIO"
	AttachmentVideo    AttachmentKind = "VIDEO"
	AttachmentDocument AttachmentKind = "DOCUMENT"
	AttachmentSticker  AttachmentKind = "STICKER"
)

// AttachmentState is where the bytes of an Attachment are.
type AttachmentState string

// The states of an Attachment. An inbound one is fetched when a command first
// needs it; an outbound one is STORED from the start.
const (
	AttachmentOffered   AttachmentState = "OFFERED"   // the provider has it; nobody has needed it
	AttachmentRequested AttachmentState = "REQUESTED" // a command waits for it
	AttachmentStored    AttachmentState = "STORED"    // in the object store, under its key
	AttachmentFailed    AttachmentState = "FAILED"    // it cannot be had; the reason says why
)

var attachmentTransitions = transitions[AttachmentState]{
	AttachmentOffered:   {AttachmentRequested},
	AttachmentRequested: {AttachmentStored, AttachmentFailed},
	AttachmentStored:    {},
	AttachmentFailed:    {},
}

// May reports whether an attachment in state s may go to state to.
func (s AttachmentState) May(to AttachmentState) bool { return attachmentTransitions.may(s, to) }

// Known reports whether s is one of the states above.
func (s AttachmentState) Known() bool { return attachmentTransitions.known(s) }

// Attachment is a file that came with a Message, as its channel describes it.
// Every field but Kind is the sender's or the provider's to choose: data only.
type Attachment struct {
	Kind       AttachmentKind
	ProviderID string // by which the provider hands it out
	FileName   string // empty: the channel gives none
	MimeType   string
	Bytes      int64 // 0: not said
}

// SafeFileName makes a name from a chat or a command fit for a path, a header
// and a terminal: its last element, without control characters and what shells
// and paths give a meaning, at most 100 bytes. A name without anything left is
// "file".
func SafeFileName(name string) string {
	name = path.Base(strings.ReplaceAll(CleanText(name), `\`, "/"))
	name = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || strings.ContainsRune(`/:*?"'<>|&;$`+"`", r) || unicode.Is(unicode.Cf, r) {
			return '_'
		}
		if unicode.IsSpace(r) {
			return '_'
		}
		return r
	}, name)
	name = strings.TrimLeft(name, ".-_ ")
	for len(name) > 100 {
		extension := path.Ext(name)
		if len(extension) > 12 {
			extension = ""
		}
		runes := []rune(strings.TrimSuffix(name, extension))
		name = string(runes[:len(runes)-1]) + extension
	}
	if name == "" {
		return "file"
	}
	return name
}
