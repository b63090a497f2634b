package execute

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/outbound"
)

// What one command may send out.
var outLimits = sandbox.OutLimits{Files: 10, Bytes: 20 << 20, TotalBytes: 40 << 20}

const (
	filesAtOnce  = 4       // collections in memory, each at most outLimits.TotalBytes
	maxImage     = 5 << 20 // a larger picture goes out as a document: WhatsApp takes no larger image
	fileAttempts = 3       // claims that may fail for want of the object store; then commands go on without files
	namedFiles   = 5       // in a note
)

// wait is how long a command waits for files of its conversation.
var wait = postgres.MediaWait{Look: 20 * time.Second, Patience: 90 * time.Second}

// delivery is what became of files that were to be brought in, for the words
// about those that were not.
type delivery struct {
	to     harness.SandboxID // done
	why    map[harness.AttachmentID]string
	skills list // files of skills
}

// await asks for files of the conversation that nobody has needed yet, and
// reports whether the execution waits for them, in its row.
func (x *Executor) await(ctx context.Context, claim *postgres.ExecutionClaim) (waits bool, err error) {
	if x.Objects == nil {
		return false, nil
	}
	waits, events, err := x.Store.AwaitMedia(ctx, claim, wait)
	if err != nil {
		return false, err
	}
	x.Publish(ctx, events...)
	return waits, nil
}

// bring puts the files of the conversation and of its skills that the sandbox lacks
// into it. What cannot be brought is no reason not to run the command: it is told
// with the result. ErrGone: the sandbox is. Any other error: try again.
func (x *Executor) bring(ctx context.Context, claim *postgres.ExecutionClaim, sb sandbox.Sandbox, in *delivery) error {
	if in.to == sb.ID {
		return nil
	}
	if err := x.bringSkills(ctx, claim, sb, in); err != nil {
		return err
	}
	if x.Objects == nil {
		in.to = sb.ID
		return nil
	}
	files, err := x.Store.LackingFiles(ctx, claim, sb.ID)
	if err != nil {
		return err
	}
	room := sb.Spec.VolumeBytes / 2 // the rest is for the commands
	for _, f := range files {
		switch {
		case f.State != harness.AttachmentStored:
			continue
		case f.Bytes > room:
			in.why[f.ID] = "the workspace has no room for it"
			continue
		}
		err := x.putFile(ctx, sb, f)
		if err == nil {
			room -= f.Bytes
			if err := x.Store.PlaceFile(ctx, sb.ID, f.ID); err != nil {
				return err
			}
			continue
		}
		x.Log.Warn("file not brought in", "attachment", string(f.ID), "sandbox", string(sb.ID), "execution", string(claim.ID), "attempt", claim.Attempts, "err", err)
		if errors.Is(err, sandbox.ErrGone) || ctx.Err() != nil || again(claim, err) {
			return err
		}
		in.why[f.ID] = harness.MessageOf(err)
	}
	in.to = sb.ID
	return nil
}

// again reports whether an execution is worth another claim because of err.
func again(claim *postgres.ExecutionClaim, err error) bool {
	return harness.KindOf(err) == harness.Unavailable && claim.Attempts < fileAttempts
}

// errReplaced says that what is stored now is not what was stored.
var errReplaced = harness.Errorf(harness.Internal, "the object store has another file in its place")

func (x *Executor) putFile(ctx context.Context, sb sandbox.Sandbox, f postgres.LackingFile) error {
	body, size, err := x.Objects.Get(ctx, f.ObjectKey)
	if err != nil {
		return err
	}
	defer body.Close()
	if size != f.Bytes || size == 0 && f.Digest != digestOf(nil) {
		return errReplaced
	}
	_, err = sandbox.Put(ctx, x.Driver, sb, f.Path, &intact{r: body, left: size, sum: sha256.New(), digest: f.Digest}, size)
	return err
}

// intact reads a file of left bytes, at least one, and gives the last of them
// only if all together have the digest: whoever takes a file whole or not at all
// never takes another one.
type intact struct {
	r      io.Reader
	left   int64
	sum    hash.Hash
	digest string // SHA-256, in hex
}

func (i *intact) Read(p []byte) (int, error) {
	if i.left == 0 {
		return 0, io.EOF
	}
	n, err := i.r.Read(p[:min(int64(len(p)), max(i.left-1, 1))])
	i.sum.Write(p[:n])
	if i.left -= int64(n); i.left == 0 && n > 0 && hex.EncodeToString(i.sum.Sum(nil)) != i.digest {
		return 0, errReplaced
	}
	return n, err
}

// files is what is to be said of files once a command has ended: those it made
// are kept, and those it did not find are named. An error: try again.
func (x *Executor) files(ctx context.Context, claim *postgres.ExecutionClaim, sb sandbox.Sandbox, result sandbox.Result, ends bool, in *delivery) (notes []string, err error) {
	if result.Outbound && !ends {
		if notes, err = x.collect(ctx, claim, sb); err != nil {
			return nil, err
		}
	}
	lacking, err := x.Store.LackingFiles(ctx, claim, sb.ID)
	if err != nil {
		return nil, err
	}
	notes = append(notes, x.missing(lacking, in)...)
	if in != nil && in.skills.named > 0 {
		notes = append(notes, "files of skills are not in the workspace: "+in.skills.text())
	}
	return notes, nil
}

// missing names the files that came with the message being answered and that the
// command did not find, and counts older ones.
func (x *Executor) missing(lacking []postgres.LackingFile, in *delivery) []string {
	var current list
	older := 0
	for _, f := range lacking {
		reason := f.Reason
		switch {
		case x.Objects == nil:
			reason = "this system keeps no files"
		case f.State == harness.AttachmentOffered, f.State == harness.AttachmentRequested:
			reason = "it has not arrived yet"
		case f.State == harness.AttachmentStored && in != nil && in.why[f.ID] != "":
			reason = in.why[f.ID]
		case f.State == harness.AttachmentStored:
			reason = "it could not be brought in"
		}
		if f.Current {
			current.add(f.Path, reason)
		} else if f.State == harness.AttachmentStored && x.Objects != nil {
			older++
		}
	}
	var notes []string
	if text := current.text(); text != "" {
		notes = append(notes, "not in the workspace: "+text)
	}
	if older > 0 {
		notes = append(notes, fmt.Sprintf("%d older files of this conversation are not in this workspace", older))
	}
	return notes
}

// collect keeps what the command left in the folder out, to go with the turn's
// answer. An error: try again.
func (x *Executor) collect(ctx context.Context, claim *postgres.ExecutionClaim, sb sandbox.Sandbox) (notes []string, err error) {
	select {
	case x.room <- struct{}{}:
		defer func() { <-x.room }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	limits := outLimits
	if x.Objects == nil {
		limits.Files = 0
	}
	out, err := sandbox.Collect(ctx, x.Driver, sb, claim.ID, limits)
	switch {
	case errors.Is(err, sandbox.ErrGone):
		return []string{"the sandbox ended before files in /workspace/out could be taken"}, nil
	case err != nil && (ctx.Err() != nil || again(claim, err)):
		return nil, err
	case err != nil:
		return []string{"files in /workspace/out could not be taken: " + harness.MessageOf(err)}, nil
	case x.Objects == nil && len(out.Left)+out.More > 0:
		return []string{"files in /workspace/out cannot be sent: this system keeps no files"}, nil
	}
	var left list
	var made, planned []postgres.MadeFile
	var keys []string
	bytesOf := map[string][]byte{}
	for _, f := range out.Files {
		file := describe(claim, f)
		if len(f.Data) == 0 {
			left.add(file.Path, outbound.Empty.String())
			continue
		}
		planned, keys, bytesOf[file.ObjectKey] = append(planned, file), append(keys, file.ObjectKey), f.Data
	}
	if len(planned) > 0 {
		if err := x.Store.PlanFiles(ctx, claim, keys); err != nil {
			return nil, err
		}
	}
	for _, file := range planned {
		if err := x.Objects.Put(ctx, file.ObjectKey, bytes.NewReader(bytesOf[file.ObjectKey]), file.Bytes, file.MimeType); err != nil {
			if ctx.Err() != nil || again(claim, err) {
				return nil, err
			}
			left.add(file.Path, harness.MessageOf(err))
			continue
		}
		made = append(made, file)
	}
	if len(made) > 0 {
		if err := x.Store.StoreMadeFiles(ctx, claim, made); err != nil {
			return nil, err
		}
	}
	limited, waiting := false, false
	for _, f := range out.Left {
		left.add(outbound.Folder+"/"+f.Path, f.Reason.String())
		waiting = waiting || f.Reason == outbound.TooMany || f.Reason == outbound.TooMuch
		limited = limited || waiting || f.Reason == outbound.TooLarge
	}
	left.more += out.More
	if text := left.text(); text != "" {
		notes = append(notes, "not sent: "+text)
	}
	if limited || out.More > 0 {
		notes = append(notes, fmt.Sprintf("of one command at most %d files are sent, each of at most %d MB, all together of at most %d MB",
			limits.Files, limits.Bytes>>20, limits.TotalBytes>>20))
	}
	if waiting {
		notes = append(notes, "files that were too many or too much go with your next command; remove those that the person shall not get")
	}
	return notes, nil
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// describe says what a file is to a channel. Its bytes decide what is a picture,
// not its name.
func describe(claim *postgres.ExecutionClaim, f sandbox.OutFile) postgres.MadeFile {
	digest := digestOf(f.Data)
	kind, found := harness.AttachmentDocument, http.DetectContentType(f.Data)
	if (found == "image/jpeg" || found == "image/png") && len(f.Data) <= maxImage {
		kind = harness.AttachmentImage
	} else if named := mime.TypeByExtension(path.Ext(f.Path)); named != "" {
		found = named
	}
	return postgres.MadeFile{
		Attachment: harness.Attachment{Kind: kind, FileName: harness.SafeFileName(path.Base(f.Path)), MimeType: found, Bytes: int64(len(f.Data))},
		Path:       outbound.Folder + "/" + f.Path, Digest: digest,
		// The same bytes have the same key: a repeat overwrites itself.
		ObjectKey: "media/" + string(claim.Session) + "/out/" + digest,
	}
}

// list is a few files with a reason each, and how many more there are. Names are
// whatever a command or a person chose: quoted, they are data.
type list struct {
	words string
	named int
	more  int
}

func (l *list) add(name, reason string) {
	if l.named == namedFiles {
		l.more++
		return
	}
	l.named++
	if l.words != "" {
		l.words += ", "
	}
	if runes := []rune(harness.CleanText(name)); len(runes) > 120 {
		name = string(runes[:119]) + "…"
	}
	l.words += strconv.Quote(harness.CleanText(name)) + " (" + reason + ")"
}

func (l *list) text() string {
	switch {
	case l.more == 0:
		return l.words
	case l.words == "":
		return fmt.Sprintf("%d files", l.more)
	}
	return fmt.Sprintf("%s and %d more", l.words, l.more)
}

// words is a text as the beginning of a list, none when it is empty.
func words(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}
