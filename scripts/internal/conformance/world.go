package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"tuluat.ai/harness/scripts/internal/localpg"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// What the cases take for granted (README of their folder).
const (
	firstNumber = "100000000000001"
	botID       = "7000000001"
	botName     = "example_helper_bot"
	hookName    = "conformance"

	appSecret   = "test-app-secret"
	verifyToken = "test-verify-token"
	botSecret   = "test-telegram-secret"

	accessToken = "conformance-whatsapp-access-token"
	botToken    = botID + ":conformance-telegram-bot-token"
	hookSecret  = "conformance-webhook-signing-secret"

	agentName = harness.AgentName("conformance")
)

// environment is what the functions under test need of secrets, as NAME=value.
// The route of the agent names these variables.
func environment() []string {
	var env []string
	for _, s := range secrets {
		env = append(env, s.ref.Variable()+"="+s.value)
	}
	return env
}

type namedSecret struct {
	ref   harness.SecretRef
	value string
}

var secrets = []namedSecret{
	{harness.SecretRef{Name: "conformance-whatsapp", Key: "app-secret"}, appSecret},
	{harness.SecretRef{Name: "conformance-whatsapp", Key: "verify-token"}, verifyToken},
	{harness.SecretRef{Name: "conformance-whatsapp", Key: "access-token"}, accessToken},
	{harness.SecretRef{Name: "conformance-telegram", Key: "bot-token"}, botToken},
	{harness.SecretRef{Name: "conformance-telegram", Key: "webhook-secret"}, botSecret},
	{harness.SecretRef{Name: "conformance-webhook", Key: "secret"}, hookSecret},
}

// World is the functions under test and all that is around them.
type World struct {
	options  Options
	folder   string // of programs; empty with a target
	database string // scratch, to be dropped
	server   *localpg.Server
	adminDSN string

	store     *postgres.Store
	dsn       string
	recorder  *recorder // nil with a target
	provider  *provider // nil with a target and no address for it
	processes []*process
	logs      []functionLog
	public    map[string]string // base URL by kind of case
	events    map[string]string // URL that takes events, by channel
	client    *http.Client
	numbers   []string
	transport harness.Transport
}

// function is one of the functions under test.
type function struct{ kind, channel, program string }

var functions = []function{
	{kindWhatsApp, "WHATSAPP", "whatsapp-ingest"},
	{kindTelegram, "TELEGRAM", "telegram-ingest"},
	{kindWebhook, "WEBHOOK", "webhook-ingest"},
}

// neededBy reports whether one of the cases is about f.
func (f function) neededBy(cases []Case) bool {
	return slices.ContainsFunc(cases, func(c Case) bool {
		if c.Kind() != kindOut {
			return c.Kind() == f.kind
		}
		sending, err := c.sending()
		return err == nil && sending.Channel == f.channel
	})
}

// NewWorld starts everything that the cases need. Close it also after an error.
func NewWorld(ctx context.Context, o Options, cases []Case) (*World, error) {
	w := &World{
		options: o, public: map[string]string{}, events: map[string]string{},
		client:  &http.Client{Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		numbers: []string{firstNumber}, transport: harness.TransportWebhook,
	}
	if o.Target != "" {
		return w, w.join(ctx)
	}
	return w, w.make(ctx, cases)
}

// join uses functions that run already, and their database.
func (w *World) join(ctx context.Context) error {
	if w.options.DatabaseURL == "" {
		return errors.New("with a target, DATABASE_URL must name the database that its functions use")
	}
	w.dsn = w.options.DatabaseURL
	var err error
	if w.store, err = postgres.Open(harness.Secret(w.dsn), postgres.Options{}); err != nil {
		return err
	}
	var others int
	if err := w.store.Pool().QueryRow(ctx, `SELECT count(*) FROM agents WHERE agent_name <> $1`, agentName).Scan(&others); err != nil {
		return err
	}
	if others > 0 {
		return fmt.Errorf("the database has %d agents of its own, and a run empties it between cases: use one that is made for it", others)
	}
	for _, f := range functions {
		w.public[f.kind] = strings.TrimRight(w.options.Target, "/")
		if w.options.EventsURL != "" {
			w.events[f.channel] = w.options.EventsURL
		}
	}
	for _, path := range w.options.LogFiles {
		if _, err := os.Stat(path); err != nil {
			return err
		}
		w.logs = append(w.logs, functionLog{path, logFile(path), func() bool { return false }})
	}
	if w.options.ProviderAddress != "" {
		if w.provider, err = startProvider(w.options.ProviderAddress); err != nil {
			return err
		}
	}
	if err := w.routes(ctx); err != nil {
		return err
	}
	return w.options.awaitRoutes(ctx)
}

// routesKnown is how long functions may go on with routes that they have read.
const routesKnown = 6 * time.Second

// make builds and starts the functions on a scratch database.
func (w *World) make(ctx context.Context, cases []Case) error {
	var err error
	if w.folder, err = os.MkdirTemp("", "conformance"); err != nil {
		return err
	}
	w.options.say("building the functions")
	packages := []string{"./scripts/migrate"}
	needed := slices.DeleteFunc(slices.Clone(functions), func(f function) bool { return !f.neededBy(cases) })
	for _, f := range needed {
		packages = append(packages, "./functions/"+f.program)
	}
	if err := build(ctx, w.options.Root, w.folder, packages...); err != nil {
		return err
	}
	if err := w.makeDatabase(ctx); err != nil {
		return err
	}
	if err := w.routes(ctx); err != nil {
		return err
	}
	if w.recorder, err = startRecorder(); err != nil {
		return err
	}
	if w.provider, err = startProvider("127.0.0.1:0"); err != nil {
		return err
	}
	w.options.say("starting the functions")
	for _, f := range needed {
		public, err := w.start(ctx, f.program, "public")
		if err != nil {
			return err
		}
		events, err := w.start(ctx, f.program, "events")
		if err != nil {
			return err
		}
		w.public[f.kind], w.events[f.channel] = public.url, events.url+"/events"
	}
	return nil
}

// start starts one side of a function.
func (w *World) start(ctx context.Context, program, serve string) (*process, error) {
	env := append(environment(),
		"HOME="+w.folder, "DATABASE_URL="+w.dsn, "BROKER_URL="+w.recorder.URL, "SERVE="+serve, "SECRETS=environment",
		"WHATSAPP_API_URL="+w.provider.URL, "TELEGRAM_API_URL="+w.provider.URL, "CALLBACK_ALLOW_PRIVATE=true")
	p, err := start(ctx, program+" ("+serve+")", filepath.Join(w.folder, program), env)
	if err != nil {
		return nil, err
	}
	w.processes = append(w.processes, p)
	w.logs = append(w.logs, functionLog{p.name, &p.log, p.ended})
	return p, nil
}

// makeDatabase makes a migrated database that Close drops.
func (w *World) makeDatabase(ctx context.Context) error {
	w.adminDSN = w.options.DatabaseURL
	if w.adminDSN == "" {
		var err error
		w.options.say("starting PostgreSQL")
		w.server, err = localpg.Start(ctx, localpg.Options{Dir: filepath.Join(w.folder, "postgres"), Throwaway: true, Log: filepath.Join(w.folder, "postgres.log")})
		if err != nil {
			return err
		}
		w.adminDSN = w.server.DSN("postgres")
	}
	server, err := url.Parse(w.adminDSN)
	if err != nil || server.Host == "" {
		return errors.New("DATABASE_URL is no URL of a PostgreSQL server")
	}
	name := strings.ReplaceAll(harness.NewID("conformance", time.Now()), "-", "_")
	if err := w.admin(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
		return err
	}
	w.database = name
	server.Path = "/" + name
	w.dsn = server.String()
	migrate := exec.CommandContext(ctx, filepath.Join(w.folder, "migrate"))
	migrate.Env = []string{"DATABASE_URL=" + w.dsn}
	if out, err := migrate.CombinedOutput(); err != nil {
		return fmt.Errorf("migrate: %w\n%s", err, out)
	}
	w.store, err = postgres.Open(harness.Secret(w.dsn), postgres.Options{})
	return err
}

func (w *World) admin(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, w.adminDSN)
	if err != nil {
		return fmt.Errorf("the PostgreSQL server of DATABASE_URL: %w", err)
	}
	_, err = conn.Exec(ctx, statement)
	return errors.Join(err, conn.Close(ctx))
}

// routes stores the agent with the accounts of the cases.
func (w *World) routes(ctx context.Context) error {
	open := harness.ChannelSenders{Policy: harness.SendersOpen}
	var channels []harness.ChannelSpec
	for _, number := range w.numbers {
		channels = append(channels, harness.ChannelSpec{
			Type: harness.ChannelWhatsApp, Account: number, AppSecret: secrets[0].ref, VerifyToken: secrets[1].ref, AccessToken: secrets[2].ref,
			Senders: open, Groups: harness.GroupsMention,
		})
	}
	channels = append(channels,
		harness.ChannelSpec{
			Type: harness.ChannelTelegram, Account: botName, BotToken: secrets[3].ref, WebhookSecret: secrets[4].ref,
			Senders: open, Groups: harness.GroupsMention, Transport: w.transport,
		},
		harness.ChannelSpec{Type: harness.ChannelWebhook, Account: hookName, Secret: secrets[5].ref, Senders: open})
	agent := &harness.Agent{
		Name: agentName, Model: harness.ModelSpec{MaxTokens: 1000}, Budget: harness.DefaultBudget(),
		Harness: harness.HarnessSpec{Enabled: true, Type: harness.HarnessChannel, Channels: channels},
	}
	statuses, _, err := w.store.PutAgents(ctx, []postgres.AgentText{{Name: agentName, Source: "conformance", Agent: agent}}, nil)
	if err != nil {
		return err
	}
	for _, s := range statuses {
		if s.Name == agentName && s.Phase != harness.AgentReady {
			return fmt.Errorf("the agent of the cases is %s: %s", s.Phase, s.Reason)
		}
	}
	return nil
}

// What a case may leave, those that refer to others first. To delete the few rows
// of a case takes a hundredth of what TRUNCATE takes.
var tables = []string{
	"outbox", "dead_letters", "drafts", "session_events", "tool_calls", "steps", "attachment_placements", "skill_placements", "session_skills", "replies", "attachments",
	"execution_output", "executions", "sandboxes", "messages", "inbox", "notices", "chats", "chat_aliases", "pairings", "polls", "sessions",
}

// reset empties everything but the agent.
func (w *World) reset(ctx context.Context) error {
	b := &pgx.Batch{}
	for _, table := range tables {
		b.Queue("DELETE FROM " + table)
	}
	err := w.store.Pool().SendBatch(ctx, b).Close()
	if w.recorder != nil {
		w.recorder.take()
	}
	if w.provider != nil {
		w.provider.reset()
	}
	return err
}

// Close ends all that NewWorld started and removes what it made.
func (w *World) Close() error {
	for _, p := range slices.Backward(w.processes) {
		p.stop()
	}
	if w.recorder != nil {
		w.recorder.close()
	}
	if w.provider != nil {
		w.provider.close()
	}
	w.client.CloseIdleConnections()
	if w.store != nil {
		w.store.Close()
	}
	var errs []error
	ctx, cancel := context.WithTimeout(context.Background(), stopTime) // also after an interrupt
	defer cancel()
	if w.database != "" && w.server == nil {
		errs = append(errs, w.admin(ctx, "DROP DATABASE "+pgx.Identifier{w.database}.Sanitize()+" WITH (FORCE)"))
	}
	if w.server != nil {
		errs = append(errs, w.server.Stop())
	}
	if w.folder != "" {
		errs = append(errs, os.RemoveAll(w.folder))
	}
	return errors.Join(errs...)
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
