package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/scripts/tuluat/internal/login"
)

func newLogin(sys System) *cobra.Command {
	l := &login.Login{}
	var file, ca string
	cmd := &cobra.Command{
		Use: "login URL", Short: "Keep the URL of a system and a token for it", Args: cobra.ExactArgs(1),
		Long: `Keep the URL of a system and a token for it, in a file that only you can read. The
token is tried first; one that is not known is not kept.

The token comes from --token-file, from the kubeconfig with --kubeconfig, from
TULUAT_TOKEN, else from standard input; on a terminal you are asked. There is no
flag for the token itself: others could read it in the list of processes.

A file is read again for every request, so it may hold a token that is renewed; -
keeps what standard input says. Of a kubeconfig the token or token file of the
current user is taken; programs that get tokens and client certificates are not.`,
		Example:           "  tuluat login https://agents.example.com\n  kubectl create token ann -n tuluat-system | tuluat login https://agents.example.com --token-file -\n  tuluat login https://agents.example.com --kubeconfig",
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&file, "token-file", "", "a file with the token; -: standard input")
	cmd.Flags().BoolVar(&l.Kubeconfig, "kubeconfig", false, "take the token of the current user of KUBECONFIG (default: ~/.kube/config)")
	cmd.Flags().StringVar(&ca, "ca", "", "a file with certificates to trust beside the machine's")
	cmd.Flags().BoolVar(&l.PlainHTTP, "plain-http", false, "allow http to another machine: whoever is between reads the token")
	cmd.MarkFlagsMutuallyExclusive("token-file", "kubeconfig")
	cmd.RunE = running(func(cmd *cobra.Command, args []string) (err error) {
		l.URL = strings.TrimSuffix(strings.TrimSuffix(args[0], "/"), "/api/v1")
		l.Source = "this command"
		if ca != "" {
			if l.CAFile, err = filepath.Abs(ca); err != nil {
				return err
			}
		}
		*l = *login.New(*l, sys.Getenv)
		// The URL is looked at before anybody is asked for a token.
		if _, err := dial(l); err != nil {
			return plainHelp(err)
		}
		if err := takeToken(cmd.Context(), sys, l, file); err != nil {
			return err
		}
		c, err := dial(l)
		if err != nil {
			return err
		}
		defer c.Close()
		who, err := c.WhoAmI(cmd.Context())
		if err != nil {
			return &managedError{err, l}
		}
		name, err := login.Save(sys.Getenv, l)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(sys.Stdout, "Logged in to %s as %s. The login is kept in %s.\n", visible(l.URL), visible(who.View.Name), visible(name))
		return err
	})
	return cmd
}

func plainHelp(err error) error {
	if errors.Is(err, api.ErrPlainHTTP) {
		return fmt.Errorf("%w; in a network where nobody listens, --plain-http allows it", err)
	}
	return err
}

// takeToken finds the token of a login.
func takeToken(ctx context.Context, sys System, l *login.Login, file string) (err error) {
	switch {
	case l.Kubeconfig:
	case file != "" && file != "-":
		l.TokenFile, err = filepath.Abs(file)
	case file == "" && sys.Getenv("TULUAT_TOKEN") != "":
		l.Token = sys.Getenv("TULUAT_TOKEN")
	case file == "" && terminal(sys.Stdin):
		l.Token, err = ask(ctx, sys)
	default:
		var text []byte
		text, err = io.ReadAll(io.LimitReader(sys.Stdin, 1<<20))
		l.Token = strings.TrimSpace(string(text))
	}
	if err != nil {
		return err
	}
	token, err := l.Secret()
	if err == nil && token == "" {
		err = errNoTerminal
	}
	return err
}

// ask reads a token from the terminal, which does not show it.
func ask(ctx context.Context, sys System) (string, error) {
	in, ok := sys.Stdin.(*os.File)
	if !ok {
		return "", errNoTerminal
	}
	before, err := term.GetState(int(in.Fd()))
	if err != nil {
		return "", err
	}
	fmt.Fprint(sys.Stderr, "Token: ")
	type answer struct {
		text []byte
		err  error
	}
	answers := make(chan answer, 1)
	go func() { // a terminal cannot be read with a deadline; the process ends soon after
		text, err := term.ReadPassword(int(in.Fd()))
		answers <- answer{text, err}
	}()
	select {
	case a := <-answers:
		fmt.Fprintln(sys.Stderr)
		return strings.TrimSpace(string(a.text)), a.err
	case <-ctx.Done():
		fmt.Fprintln(sys.Stderr)
		return "", errors.Join(ctx.Err(), term.Restore(int(in.Fd()), before))
	}
}

func newLogout(sys System) *cobra.Command {
	return &cobra.Command{
		Use: "logout", Short: "Forget the login", Args: cobra.NoArgs,
		Long: "Forget the login. The token itself stays valid until it expires or is taken back.",
		RunE: running(func(*cobra.Command, []string) error {
			l, err := login.Remove(sys.Getenv)
			if err != nil {
				return err
			}
			if l == nil {
				_, err = fmt.Fprintln(sys.Stderr, "There is no login.")
				return err
			}
			_, err = fmt.Fprintf(sys.Stdout, "Forgot the login to %s.\n", visible(l.URL))
			return err
		}),
	}
}

func newWhoAmI(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var f format
	cmd := &cobra.Command{Use: "whoami", Short: "Say which system commands manage, and as whom", Args: cobra.NoArgs}
	f.flag(cmd)
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error {
		item, err := m.client.WhoAmI(ctx)
		if err != nil {
			return err
		}
		if f != asTable {
			return f.write(sys.Stdout, item)
		}
		return facts(sys.Stdout, "System", m.client.URL(), "From", m.login.Source, "Name", item.View.Name, "Groups", strings.Join(item.View.Groups, ", "))
	})
	return cmd
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

func newVersion(sys System) *cobra.Command {
	m := &manager{sys: sys}
	var server bool
	cmd := &cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs}
	cmd.Flags().BoolVar(&server, "server", false, "also that of the system that is managed")
	cmd.RunE = running(func(cmd *cobra.Command, args []string) error {
		if _, err := fmt.Fprintf(sys.Stdout, "tuluat %s %s %s/%s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH); err != nil || !server {
			return err
		}
		return m.run(func(ctx context.Context, _ []string) error {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			text, err := m.client.Version(ctx)
			if err != nil {
				return err
			}
			var line strings.Builder
			if err := json.NewEncoder(&line).Encode(text); err != nil {
				return err
			}
			_, err = fmt.Fprintf(sys.Stdout, "%s %s", visible(m.client.URL()), escapeJSON(line.String()))
			return err
		})(cmd, args)
	})
	return cmd
}
