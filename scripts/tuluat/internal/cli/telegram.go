package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/devstate"
	"tuluat.ai/harness/scripts/tuluat/internal/telegram"
	"tuluat.ai/harness/shared/harness"
)

func newTelegram(sys System) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "telegram",
		Short: "Set up a Telegram bot's webhook",
		Long: `Set up a Telegram bot's webhook.

The bot's token comes from the state of the running system, else from
TELEGRAM_BOT_TOKEN; the webhook's secret likewise, or from TELEGRAM_WEBHOOK_SECRET.
Neither is ever printed.`,
	}
	return group(cmd, newSetWebhook(sys), newWebhookInfo(sys), newDeleteWebhook(sys))
}

// bot is the bot that a command is about.
type bot struct {
	sys     System
	api     string
	output  string
	name    string
	state   *devstate.State
	channel devstate.Channel
	client  *telegram.Client
}

func (b *bot) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&b.api, "api", "", "base URL of the Bot API (default: the running system's, else TELEGRAM_API_URL, else "+telegram.DefaultURL+")")
	cmd.Flags().StringVarP(&b.output, "output", "o", "text", "text or json")
	cmd.Args = cobra.ExactArgs(1)
	cmd.PreRunE = func(*cobra.Command, []string) error { return checkOutput(b.output) }
}

func checkOutput(output string) error {
	if output != "text" && output != "json" {
		return errors.New("-o must be text or json")
	}
	return nil
}

// find looks the bot up and makes its client. A system that does not run here
// is no fault: the environment may say it all.
func (b *bot) find(name string) error {
	b.name = strings.TrimPrefix(name, "@")
	state, err := (&target{sys: b.sys}).find()
	if err != nil && !errors.Is(err, devstate.ErrNone) {
		return err
	}
	b.state = cmp.Or(state, &devstate.State{})
	known := false
	if b.channel, known = b.state.Bot(b.name); known {
		b.name = b.channel.Account
	}
	token, err := b.secret(devstate.BotToken, "TELEGRAM_BOT_TOKEN")
	if err != nil {
		return err
	}
	b.client, err = telegram.New(cmp.Or(b.api, b.state.APIs.Telegram, b.state.Fakes.Telegram, b.sys.Getenv("TELEGRAM_API_URL"), telegram.DefaultURL), token)
	return err
}

func (b *bot) secret(role devstate.Role, variable string) (harness.Secret, error) {
	secret, err := b.state.Secret(b.channel, role)
	if err == nil && secret == "" {
		secret = harness.Secret(strings.TrimSpace(b.sys.Getenv(variable)))
	}
	if err == nil && secret == "" {
		err = harness.Errorf(harness.Invalid, "the %s of bot %s is not known: set %s; bots known here: %s", strings.ToLower(strings.ReplaceAll(string(role), "_", " ")), b.name, variable, b.state.Bots())
	}
	return secret, err
}

func newSetWebhook(sys System) *cobra.Command {
	b := &bot{sys: sys}
	var base string
	var drop bool
	var connections int
	cmd := &cobra.Command{
		Use:   "set-webhook BOT",
		Short: "Tell Telegram where this bot's updates go",
		Long: `Tell Telegram where this bot's updates go: to the public address of telegram-ingest.
Updates that wait are kept and come to the new address. The system is told of it, if
its API is known here: so one is found that stays when no agent has the bot any more.`,
		Example: "  tuluat telegram set-webhook example_helper_bot --url https://agents.example.com",
	}
	b.flags(cmd)
	cmd.Flags().StringVar(&base, "url", "", "public base URL of the system (default: the one that runs here)")
	cmd.Flags().BoolVar(&drop, "drop-pending", false, "throw away the updates that wait")
	cmd.Flags().IntVar(&connections, "max-connections", 0, "updates at once, 1 to 100 (default: Telegram's)")
	cmd.RunE = running(func(cmd *cobra.Command, args []string) error {
		if err := b.find(args[0]); err != nil {
			return err
		}
		base = cmp.Or(base, b.state.URL)
		u, err := url.Parse(base)
		if err != nil || u.Host == "" {
			return harness.Errorf(harness.Invalid, "--url must be the system's public base URL, like https://agents.example.com")
		}
		if u.RawQuery != "" || u.Fragment != "" {
			return harness.Errorf(harness.Invalid, "--url must end before ? and #, like https://agents.example.com")
		}
		base = strings.TrimRight(base, "/")
		if short := telegram.Base(base, b.name); short != base {
			fmt.Fprintf(sys.Stderr, "The path of the function is added to --url, so it is read as %s.\n", visible(short))
			base = short
		} else if strings.HasSuffix(base, "/api") {
			fmt.Fprintf(sys.Stderr, "The path of the function begins with /api and is added to --url: without /api at its end, if nothing strips that on the way.\n")
		}
		secret, err := b.secret(devstate.WebhookSecret, "TELEGRAM_WEBHOOK_SECRET")
		if err != nil {
			return err
		}
		me, err := b.client.Me(cmd.Context())
		if err != nil {
			return err
		}
		if !strings.EqualFold(me, b.name) {
			return harness.Errorf(harness.Invalid, "the token is of bot %s, not of %s", me, b.name)
		}
		recordWebhook(cmd.Context(), sys, strings.ToLower(b.name), base+telegram.Path(b.name)) // before it is so
		said, err := b.client.SetWebhook(cmd.Context(), base+telegram.Path(b.name), secret, connections, drop)
		if err != nil {
			return err
		}
		return b.print(cmd.Context(), said)
	})
	return cmd
}

func newWebhookInfo(sys System) *cobra.Command {
	b := &bot{sys: sys}
	cmd := &cobra.Command{Use: "info BOT", Short: "Show how a bot's webhook stands", Example: "  tuluat telegram info example_helper_bot"}
	b.flags(cmd)
	cmd.RunE = running(func(cmd *cobra.Command, args []string) error {
		if err := b.find(args[0]); err != nil {
			return err
		}
		return b.print(cmd.Context(), "")
	})
	return cmd
}

func newDeleteWebhook(sys System) *cobra.Command {
	b := &bot{sys: sys}
	var drop bool
	cmd := &cobra.Command{
		Use: "delete-webhook BOT", Aliases: []string{"delete"}, Short: "Take a bot's webhook away, so that its updates can be polled",
		Example: "  tuluat telegram delete-webhook example_helper_bot",
	}
	b.flags(cmd)
	cmd.Flags().BoolVar(&drop, "drop-pending", false, "throw away the updates that wait")
	cmd.RunE = running(func(cmd *cobra.Command, args []string) error {
		if err := b.find(args[0]); err != nil {
			return err
		}
		said, err := b.client.DeleteWebhook(cmd.Context(), drop)
		if err != nil {
			return err
		}
		recordWebhook(cmd.Context(), sys, strings.ToLower(b.name), "")
		return b.print(cmd.Context(), said)
	})
	return cmd
}

// print shows how the webhook stands now.
func (b *bot) print(ctx context.Context, said string) error {
	info, err := b.client.Webhook(ctx)
	if err != nil {
		return err
	}
	if b.output == "json" {
		return json.NewEncoder(b.sys.Stdout).Encode(info)
	}
	var out strings.Builder
	line := func(name, value string) { fmt.Fprintf(&out, "%-12s %s\n", name, visible(value)) }
	if said != "" {
		fmt.Fprintln(&out, visible(said)+".")
	}
	line("webhook", cmp.Or(info.URL, "none: updates are polled"))
	line("pending", fmt.Sprint(info.Pending))
	if info.LastError != "" {
		line("last error", fmt.Sprintf("%s (%s)", info.LastError, time.Unix(info.LastErrorAt, 0).UTC().Format(time.RFC3339)))
	}
	if info.URL != "" {
		line("updates", cmp.Or(strings.Join(info.Allowed, " "), "the default kinds"))
		if missing := telegram.Missing(info.Allowed); len(missing) > 0 {
			line("", "not asked for: "+strings.Join(missing, " ")+"; set the webhook again")
		}
	}
	_, err = fmt.Fprint(b.sys.Stdout, out.String())
	return err
}
