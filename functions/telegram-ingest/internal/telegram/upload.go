package telegram

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime/multipart"
	"strings"
	"sync/atomic"

	"tuluat.ai/harness/shared/channel/markup"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// The largest files that bots may send.
const (
	maxPhoto    = 10 << 20
	maxDocument = 50 << 20
)

// upload is a file that goes out with a call.
type upload struct {
	field string // photo or document
	name  string
	size  int64
	body  io.ReadCloser
	torn  atomic.Bool // reading body failed; the connection may still read when its call has ended
}

// Read notes what went wrong on our side: Telegram cannot have acted then.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		u.torn.Store(true)
	}
	return n, err
}

// close gives the object back. It was only read: what closing says is nothing to us.
func (u *upload) close() { _ = u.body.Close() }

// prepareFile opens the file of the claim. Pictures that Telegram shows go as
// photos, or as documents when it did not take them as such.
func (t *Transport) prepareFile(ctx context.Context, c *postgres.ReplyClaim, to address) (call, *postgres.ReplyOutcome) {
	stop := func(o postgres.ReplyOutcome) (call, *postgres.ReplyOutcome) { return call{}, &o }
	f := c.Attachment
	switch {
	case f == nil || f.ObjectKey == "":
		return stop(failed("the file was not kept"))
	case t.objects == nil:
		return stop(failed("no object store is configured: files cannot be sent"))
	case to.guest != "":
		return stop(failed("Telegram takes one message in answer to a guest's question, and no file"))
	case f.Bytes > maxDocument:
		return stop(failed("the file is over 50 MB, the most that Telegram takes from a bot"))
	}
	body, size, err := t.objects.Get(ctx, f.ObjectKey)
	if harness.KindOf(err) == harness.Unavailable {
		return stop(postgres.ReplyOutcome{State: harness.ReplyPlanned, Reason: "the object store does not answer"})
	}
	if err != nil {
		return stop(failed("the file cannot be read: " + harness.MessageOf(err)))
	}
	u := &upload{field: "document", name: harness.SafeFileName(f.FileName), size: size, body: body}
	if size > maxDocument || size == 0 {
		u.close()
		return stop(failed("the file is empty or over 50 MB, the most that Telegram takes from a bot"))
	}
	rich := c.Format != harness.FormatPlain
	if shown := f.MimeType == "image/jpeg" || f.MimeType == "image/png"; shown && size <= maxPhoto && rich {
		u.field = "photo"
	}
	said := map[string]any{}
	if caption := markup.Plain(c.Text); caption != "" {
		said["caption"] = cutUnits(caption, maxCaption)
		if formatted := markup.Telegram(c.Text); rich && strings.TrimSpace(visible(formatted)) != "" && markup.UTF16Len(visible(formatted)) <= maxCaption {
			said["caption"], said["parse_mode"] = formatted, "HTML"
		}
	}
	addressTo(said, c, to)
	method := "sendDocument"
	if u.field == "photo" {
		method = "sendPhoto"
	}
	return call{method: method, parameters: said, file: u}, nil
}

// cutUnits cuts s to at most limit UTF-16 code units, with a mark where it was cut.
func cutUnits(s string, limit int) string {
	if markup.UTF16Len(s) <= limit {
		return s
	}
	units := 1 // the mark
	for at, r := range s {
		if units += markup.UTF16Len(string(r)); units > limit {
			return s[:at] + "…"
		}
	}
	return s
}

// post streams the form: its length is known beforehand, and nothing of the file
// is held in memory.
func (u *upload) post(ctx context.Context, c *Client, token harness.Secret, send call) (answer, error) {
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	if err := u.fields(w, send.parameters); err != nil {
		return answer{}, &lostError{err: err}
	}
	head := bytes.Clone(form.Bytes())
	form.Reset()
	if err := w.Close(); err != nil {
		return answer{}, &lostError{err: err}
	}
	body := io.MultiReader(bytes.NewReader(head), io.LimitReader(u, u.size), bytes.NewReader(form.Bytes()))
	a, err := c.post(ctx, token, send.method, body, w.FormDataContentType(), int64(len(head))+u.size+int64(form.Len()))
	if err != nil && u.torn.Load() {
		return a, &lostError{err: errors.New("the file could not be read to its end")}
	}
	return a, err
}

// fields writes everything up to the bytes of the file.
func (u *upload) fields(w *multipart.Writer, parameters map[string]any) error {
	for name, value := range parameters {
		text, err := formValue(value)
		if err != nil {
			return err
		}
		if err := w.WriteField(name, text); err != nil {
			return err
		}
	}
	_, err := w.CreateFormFile(u.field, u.name)
	return err
}

// formValue writes a parameter as a form has it: objects as JSON.
func formValue(value any) (string, error) {
	if s, ok := value.(string); ok {
		return s, nil
	}
	text, err := json.Marshal(value)
	return string(text), err
}
