package whatsapp

import (
	"bytes"
	"context"
	"io"
	"mime"
	"mime/multipart"
	"net/textproto"
	"strings"

	"tuluat.ai/harness/shared/channel"
	"tuluat.ai/harness/shared/channel/markup"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// The provider's limits, in bytes.
const (
	maxImage    = 5 << 20
	maxDocument = 100 << 20
)

// attach uploads the claim's file and makes a message of it. A failure here has
// sent nothing.
func (g *Graph) attach(ctx context.Context, m *outgoing, account *channel.Account, c *postgres.ReplyClaim) *postgres.ReplyOutcome {
	file := c.Attachment
	switch {
	case file == nil || file.ObjectKey == "":
		return failed("the file was not kept")
	case file.Bytes > maxDocument:
		return failed("the file is larger than the 100 MB that WhatsApp takes")
	case g.Objects == nil:
		return failed("files are not kept here: set S3_BUCKET")
	}
	content, size, err := g.Objects.Get(ctx, file.ObjectKey)
	if err != nil {
		if harness.KindOf(err) == harness.NotFound {
			return failed("the file is not kept any more")
		}
		return &postgres.ReplyOutcome{State: harness.ReplyPlanned, Reason: "the file cannot be read now", Retry: channel.Backoff(c.Attempts)}
	}
	defer content.Close()
	if size > maxDocument {
		return failed("the file is larger than the 100 MB that WhatsApp takes")
	}
	name, mimeType := harness.SafeFileName(file.FileName), uploadType(file.MimeType)
	id, stop := g.upload(ctx, account, c, content, size, name, mimeType)
	if stop != nil {
		return stop
	}
	media := &outMedia{ID: id, Caption: caption(c)}
	if (mimeType == "image/jpeg" || mimeType == "image/png") && size <= maxImage {
		m.Type, m.Image = "image", media
		return nil
	}
	media.FileName = name
	m.Type, m.Document = "document", media
	return nil
}

// caption is the claim's text, cut where it is longer than a caption may be.
func caption(c *postgres.ReplyClaim) string {
	text := body(c, c.Text)
	if blank(text) {
		return ""
	}
	if fits(text, maxCaption) {
		return text
	}
	runes := []rune(markup.Plain(c.Text))
	runes = runes[:min(len(runes), maxCaption-1)]
	for !fits(string(runes), maxCaption-1) {
		runes = runes[:len(runes)-1]
	}
	return string(runes) + "…"
}

// upload sends the file in one streamed request of known length.
func (g *Graph) upload(ctx context.Context, account *channel.Account, c *postgres.ReplyClaim, content io.Reader, size int64, name, mimeType string) (string, *postgres.ReplyOutcome) {
	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	_ = parts.WriteField("messaging_product", "whatsapp") // a Buffer takes everything
	_ = parts.WriteField("type", mimeType)
	_, _ = parts.CreatePart(textproto.MIMEHeader{
		"Content-Disposition": {mime.FormatMediaType("form-data", map[string]string{"name": "file", "filename": name})},
		"Content-Type":        {mimeType},
	})
	before := form.Len()
	_ = parts.Close()
	head, tail := form.Bytes()[:before], form.Bytes()[before:]
	body := io.MultiReader(bytes.NewReader(head), io.LimitReader(content, size), bytes.NewReader(tail))
	r := g.post(ctx, account, "media", parts.FormDataContentType(), body, int64(form.Len())+size, uploadTime)
	switch {
	case r.err != nil:
		return "", &postgres.ReplyOutcome{State: harness.ReplyPlanned, Reason: "the file could not be handed to WhatsApp", Retry: channel.Backoff(c.Attempts)}
	case r.status/100 == 2:
		if valid(string(r.body)) {
			if id := identifier(whole(r.body).get("id"), maxWord); id != "" {
				return id, nil
			}
		}
		return "", &postgres.ReplyOutcome{State: harness.ReplyPlanned, Reason: "WhatsApp took the file but did not name it", Retry: channel.Backoff(c.Attempts)}
	}
	o := g.refused(account, c, r, r.fault())
	return "", &o
}

// uploadType is the MIME type under which a file is handed over. The provider
// takes a short list: text of any kind passes as plain text, under its own name.
func uploadType(text string) string {
	t, _, err := mime.ParseMediaType(text)
	switch {
	case err != nil:
		return "application/octet-stream"
	case strings.HasPrefix(t, "text/"), strings.HasSuffix(t, "+json"), strings.HasSuffix(t, "+xml") && t != "image/svg+xml":
		return "text/plain"
	}
	switch t {
	case "application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml", "application/javascript",
		"application/x-sh", "application/sql", "application/x-ndjson":
		return "text/plain"
	}
	return t
}
