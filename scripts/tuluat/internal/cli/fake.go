package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/internal/fake/botapi"
	"tuluat.ai/harness/scripts/internal/fake/graph"
	"tuluat.ai/harness/scripts/tuluat/internal/phone"
	"tuluat.ai/harness/shared/harness"
)

func newFake(sys System) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fake",
		Short: "Run a stand-in for WhatsApp's or Telegram's API",
		Long: `Run a stand-in for WhatsApp's or Telegram's API on this machine: no account, no key.
It speaks the vendor's wire, limits and error codes included, and has an API below
/_fake/ to play the people: POST /_fake/people, POST /_fake/say, GET /_fake/chats/CHAT.`,
	}
	return group(cmd, newFakeWhatsApp(sys), newFakeTelegram(sys))
}

// stand is what both fakes are run with.
type stand struct {
	sys              System
	addr, hook, file string
	limits           bool
	verbose          bool
}

func (s *stand) flags(cmd *cobra.Command, addr string) {
	cmd.Flags().StringVar(&s.addr, "addr", addr, "where to listen: on this machine only")
	cmd.Flags().StringVar(&s.hook, "webhook", "", "URL that updates are posted to")
	cmd.Flags().StringVar(&s.file, "state", "", "file that keeps people, chats and what waits")
	cmd.Flags().BoolVar(&s.limits, "limits", false, "enforce the vendor's rate limits")
	cmd.Flags().BoolVarP(&s.verbose, "verbose", "v", false, "say on stderr what is refused and what fails")
	cmd.Args = cobra.NoArgs
}

func (s *stand) log() *slog.Logger {
	if s.verbose {
		return slog.New(slog.NewTextHandler(s.sys.Stderr, nil))
	}
	return slog.New(slog.DiscardHandler)
}

// secret is a variable's value, or a new one that is printed this once.
func (s *stand) secret(variable, prefix string) string {
	if value := strings.TrimSpace(s.sys.Getenv(variable)); value != "" {
		first, _, _ := strings.Cut(value, ",") // while it is rotated, the newest
		return first
	}
	value := prefix + rand.Text()
	fmt.Fprintf(s.sys.Stderr, "%s=%s\n", variable, value)
	return value
}

var (
	numberID = regexp.MustCompile(`^[0-9]{5,32}$`)
	botName  = regexp.MustCompile(`^@?[A-Za-z][A-Za-z0-9_]{2,31}$`)
)

// server is a fake.
type server interface {
	http.Handler
	Close() error
}

// serve runs a fake until ctx ends.
func (s *stand) serve(ctx context.Context, fake server, ready func(url string)) (err error) {
	defer func() { err = errors.Join(err, fake.Close()) }()
	host, _, err := net.SplitHostPort(s.addr)
	if ip := net.ParseIP(host); err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return harness.Errorf(harness.Invalid, "--addr must be on this machine, like 127.0.0.1:8090: whoever reaches a fake can play everybody")
	}
	listener, err := net.Listen("tcp", s.addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return harness.Errorf(harness.Conflict, "something listens at %s already: stop it, or give another --addr", s.addr)
	}
	if err != nil {
		return fmt.Errorf("--addr %s: %w", s.addr, err)
	}
	web := &http.Server{Handler: fake, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(s.log().Handler(), slog.LevelDebug)}
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	ready("http://" + listener.Addr().String())
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		err := web.Close()
		if end := <-served; !errors.Is(end, http.ErrServerClosed) {
			err = errors.Join(err, end)
		}
		return err
	}
}

func newFakeWhatsApp(sys System) *cobra.Command {
	s := &stand{sys: sys}
	number := graph.Number{}
	cmd := &cobra.Command{
		Use:   "whatsapp",
		Short: "Run a stand-in for WhatsApp's Graph API",
		Long: `Run a stand-in for WhatsApp's Graph API.

Secrets come from WHATSAPP_APP_SECRET, WHATSAPP_ACCESS_TOKEN and WHATSAPP_VERIFY_TOKEN;
those that are not set are made and printed once, on stderr. The URL is printed on
stdout: give it to whatsapp-ingest as WHATSAPP_API_URL.`,
		Example: `  tuluat fake whatsapp --webhook http://127.0.0.1:8080/api/v1/channels/whatsapp/webhook
  curl -s 127.0.0.1:8090/_fake/people -d '{"phone":"15550001111","name":"Ada"}'
  curl -s 127.0.0.1:8090/_fake/say -d '{"from":"15550001111","text":"hello"}'
  curl -s '127.0.0.1:8090/_fake/chats/15550001111?wait=30s'`,
	}
	s.flags(cmd, "127.0.0.1:8090")
	cmd.Flags().StringVar(&number.PhoneNumberID, "number", "100000000000001", "id of the phone number")
	cmd.Flags().StringVar(&number.DisplayPhone, "phone", "15550009999", "the number as people dial it")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !numberID.MatchString(number.PhoneNumberID) {
			return fmt.Errorf("--number must be the id of a phone number, 5 to 32 digits, not %q", number.PhoneNumberID)
		}
		if !phone.Dialled(number.DisplayPhone) {
			return fmt.Errorf("--phone must be a phone number in digits, not %q", number.DisplayPhone)
		}
		return nil
	}
	cmd.RunE = running(func(cmd *cobra.Command, _ []string) error {
		number.AppSecret, number.AccessToken, number.VerifyToken = s.secret("WHATSAPP_APP_SECRET", ""), s.secret("WHATSAPP_ACCESS_TOKEN", "EAA"), s.secret("WHATSAPP_VERIFY_TOKEN", "")
		number.WebhookURL = s.hook
		fake, err := graph.New(graph.Options{Numbers: []graph.Number{number}, State: s.file, Limits: s.limits, Seed: rand.Text(), Log: s.log()})
		if err != nil {
			return err
		}
		return s.serve(cmd.Context(), fake, func(at string) {
			if s.hook != "" {
				if err := fake.Register(cmd.Context(), "", s.hook); err != nil {
					fmt.Fprintf(sys.Stderr, "The webhook is used, but %s: is its verify token the same?\n", visible(err.Error()))
				}
			}
			fmt.Fprintln(sys.Stdout, at)
		})
	})
	return cmd
}

func newFakeTelegram(sys System) *cobra.Command {
	s := &stand{sys: sys}
	b := botapi.Bot{}
	cmd := &cobra.Command{
		Use:   "telegram",
		Short: "Run a stand-in for Telegram's Bot API",
		Long: `Run a stand-in for Telegram's Bot API.

Secrets come from TELEGRAM_BOT_TOKEN and TELEGRAM_WEBHOOK_SECRET; those that are not set
are made and printed once, on stderr. The URL is printed on stdout: give it to
telegram-ingest as TELEGRAM_API_URL. Without --webhook updates wait for getUpdates, or
for ` + "`tuluat telegram set-webhook`" + ` with --api.`,
		Example: `  tuluat fake telegram --bot example_helper_bot
  curl -s 127.0.0.1:8091/_fake/people -d '{"id":5000000001,"firstName":"Ada"}'
  curl -s 127.0.0.1:8091/_fake/say -d '{"from":5000000001,"text":"hello"}'
  curl -s '127.0.0.1:8091/_fake/chats/5000000001?wait=30s'`,
	}
	s.flags(cmd, "127.0.0.1:8091")
	cmd.Flags().StringVar(&b.Username, "bot", "example_helper_bot", "username of the bot")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !botName.MatchString(b.Username) {
			return fmt.Errorf("--bot must be a username of 3 to 32 letters, digits and underscores, like example_helper_bot, not %q", b.Username)
		}
		return nil
	}
	cmd.Flags().BoolVar(&b.ReadsAll, "reads-all", false, "privacy mode is off: the bot hears all that is said in groups")
	cmd.RunE = running(func(cmd *cobra.Command, _ []string) error {
		b.Token = s.secret("TELEGRAM_BOT_TOKEN", "7000000001:")
		b.WebhookURL, b.Secret = s.hook, s.secret("TELEGRAM_WEBHOOK_SECRET", "")
		options := botapi.Options{Bots: []botapi.Bot{b}, State: s.file, Limits: s.limits, Seed: rand.Text(), Log: s.log()}
		fake, err := botapi.New(options)
		if err != nil {
			return err
		}
		return s.serve(cmd.Context(), fake, func(at string) { fmt.Fprintln(sys.Stdout, at) })
	})
	return cmd
}
