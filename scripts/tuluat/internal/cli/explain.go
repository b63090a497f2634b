package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
)

// explainManaged says what the management API answered and what to do about it.
func explainManaged(err *managedError) string {
	if p, ok := errors.AsType[*api.Problem](err); ok {
		text := err.Error()
		for _, f := range p.Errors {
			text += "\n  " + field(f.Pointer) + ": " + f.Detail
		}
		if help := helpWith(p, err); help != "" {
			text += "\n" + help
		}
		if p.RequestID != "" && p.Status >= http.StatusInternalServerError {
			text += "\nThe system's logs have it as request " + p.RequestID + "."
		}
		return text
	}
	if _, ok := errors.AsType[*url.Error](err); !ok {
		return err.Error()
	}
	at := err.at.URL
	switch dns, isDNS := errors.AsType[*net.DNSError](err); {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("nothing listens at %s (from %s): start it, or log in elsewhere with `tuluat login URL`", at, err.at.Source)
	case isDNS && dns.IsNotFound:
		return fmt.Sprintf("there is no machine called %s (from %s)", dns.Name, err.at.Source)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("%s does not answer: try again", at)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return fmt.Sprintf("%s has cut the connection: try again", at)
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fmt.Sprintf("%s: %s\nIf its certificate is of an authority of your own, name that: `tuluat login %s --ca FILE`.", at, err.Error(), at)
	}
	return fmt.Sprintf("%s: %s", at, err.Error())
}

func helpWith(p *api.Problem, err *managedError) string {
	switch p.Status {
	case http.StatusUnauthorized:
		return fmt.Sprintf("%s does not know the token (from %s): it is missing, wrong or expired. Get a new one and run `tuluat login %s`.", err.at.URL, err.at.Source, err.at.URL)
	case http.StatusForbidden:
		return "`tuluat whoami` says who you are there. Whoever runs the system can give you a role that may: tuluat-viewer, -operator, -approver or -admin."
	case http.StatusPreconditionFailed:
		return "Somebody has changed it meanwhile. Look at it again and repeat the command: nothing was done."
	case http.StatusPreconditionRequired:
		return "The system wants more than this tuluat sends: use the tuluat of its version."
	case http.StatusRequestEntityTooLarge:
		return "The system takes requests of up to 1 MiB."
	case http.StatusTooManyRequests:
		if p.RetryAfter > 0 {
			return fmt.Sprintf("Try again in %s.", p.RetryAfter.Round(time.Second))
		}
		return "Try again later."
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return "Try again."
	case http.StatusConflict:
		if len(p.Approvals) > 0 {
			var lines []string
			for _, a := range p.Approvals {
				lines = append(lines, "  "+decided(a))
			}
			return strings.Join(lines, "\n")
		}
	}
	return ""
}

// field spells a pointer as people write the field: #/spec/harness/channels/0 is
// spec.harness.channels[0].
func field(pointer string) string {
	path, inBody := strings.CutPrefix(pointer, "#")
	if !inBody {
		return pointer
	}
	text := ""
	for segment := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		segment = strings.NewReplacer("~1", "/", "~0", "~").Replace(segment)
		switch {
		case segment != "" && strings.Trim(segment, "0123456789") == "":
			text += "[" + segment + "]"
		case strings.ContainsAny(segment, "./"):
			text += "[" + segment + "]"
		case text == "":
			text = segment
		default:
			text += "." + segment
		}
	}
	if text == "" {
		return "the whole"
	}
	return text
}
