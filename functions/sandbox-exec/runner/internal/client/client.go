// Package client is the runner's way to PID 1 from a process outside: exec'ed
// into a Pod, or started on the machine that holds a local sandbox's socket.
package client

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tuluat.ai/harness/functions/sandbox-exec/runner/internal/wire"
	"tuluat.ai/harness/shared/sandbox/trailer"
)

// dialTimeout bounds reaching PID 1, which is in the same machine.
const dialTimeout = 5 * time.Second

// input is the JSON document on stdin: what must not be seen in a process list.
type input struct {
	Nonce   string            `json:"nonce"`
	Command []string          `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
}

// Main sends one request and relays the answer: what the command printed to
// stdout and stderr, sealed statuses as lines on stderr. It returns an error
// when PID 1 could not be reached or broke off; the command does not care.
func Main(op string, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	// The nonce must not be readable by anything else that runs as our user.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid tracing: %w", err)
	}
	if err := untraced(); err != nil {
		return err
	}
	req, socket, err := parse(op, args, stdin)
	if err != nil {
		return err
	}
	conn, err := dial(socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	asked := wire.WriteRequest(conn, req)
	if req.Op == wire.Put && asked == nil {
		asked = send(conn, stdin)
	}
	if err := relay(conn, stdout, stderr); err != nil {
		return errors.Join(err, asked) // a refusal may have come before the question was out
	}
	return nil
}

func parse(op string, args []string, stdin io.Reader) (wire.Request, string, error) {
	req := wire.Request{Op: wire.Op(op), Env: map[string]string{}}
	var socket string
	flags := flag.NewFlagSet(op, flag.ContinueOnError)
	flags.StringVar(&socket, "socket", "", "PID 1's socket on the machine outside; default: the one inside")
	switch req.Op {
	case wire.Shutdown:
	case wire.Ping:
		flags.Func("wait", "for PID 1 to take commands, so long at most", func(s string) error {
			d, err := time.ParseDuration(s)
			req.WaitMS = d.Milliseconds()
			return err
		})
	case wire.Put:
		flags.StringVar(&req.Path, "path", "", "of the file, below the working directory")
		flags.Int64Var(&req.Size, "size", -1, "bytes on stdin, exactly")
	case wire.Out:
		flags.StringVar(&req.ID, "id", "", "the execution after which files are looked for")
		flags.IntVar(&req.MaxFiles, "max-files", 0, "files at most")
		flags.Int64Var(&req.MaxBytes, "max-bytes", 0, "bytes of one file at most")
		flags.Int64Var(&req.MaxTotal, "max-total", 0, "bytes of all files at most")
	case wire.Run:
		var timeout time.Duration
		flags.DurationVar(&timeout, "timeout", 0, "of the command")
		flags.Int64Var(&req.MaxOutput, "max-output", 0, "bytes kept of each stream")
		flags.Int64Var(&req.StdoutOffset, "stdout-offset", 0, "bytes of stdout not to send again")
		flags.Int64Var(&req.StderrOffset, "stderr-offset", 0, "bytes of stderr not to send again")
		flags.Func("env", "NAME=VALUE, added to the sandbox's own", func(s string) error {
			name, value, ok := strings.Cut(s, "=")
			if !ok || name == "" {
				return errors.New("want NAME=VALUE")
			}
			req.Env[name] = value
			return nil
		})
		flags.StringVar(&req.ID, "id", "", "the execution's id")
		if err := flags.Parse(args); err != nil {
			return req, "", err
		}
		req.TimeoutMS = timeout.Milliseconds()
		req.Command = flags.Args()
		return withInput(req, socket, stdin)
	case wire.Output:
		flags.StringVar(&req.ID, "id", "", "the execution's id")
		flags.StringVar(&req.Stream, "stream", "stdout", "stdout or stderr")
		flags.Int64Var(&req.StdoutOffset, "offset", 0, "first byte wanted")
		flags.Int64Var(&req.Limit, "limit", 0, "bytes at most; 0: all that is kept")
	case wire.Status, wire.Cancel:
		flags.StringVar(&req.ID, "id", "", "the execution's id")
	default:
		return req, "", fmt.Errorf("unknown command %q", op)
	}
	if err := flags.Parse(args); err != nil {
		return req, "", err
	}
	switch req.Op {
	case wire.Ping, wire.Shutdown, wire.Put, wire.Out:
		return req, socket, nil
	}
	return withInput(req, socket, stdin)
}

// send passes the file of a put on. When stdin breaks off there is no end to
// it, and PID 1 keeps nothing.
func send(conn io.Writer, stdin io.Reader) error {
	buf := make([]byte, 128<<10)
	for {
		n, err := stdin.Read(buf)
		if n > 0 {
			if err := wire.WriteFrame(conn, wire.Data, buf[:n]); err != nil {
				return fmt.Errorf("pass on the file: %w", err)
			}
		}
		if errors.Is(err, io.EOF) {
			return wire.WriteFrame(conn, wire.End, nil)
		}
		if err != nil {
			return fmt.Errorf("read stdin: %w", err)
		}
	}
}

// withInput adds what came on stdin. Arguments of the command line win.
func withInput(req wire.Request, socket string, stdin io.Reader) (wire.Request, string, error) {
	text, err := io.ReadAll(io.LimitReader(stdin, wire.MaxRequest+1))
	if err != nil {
		return req, "", fmt.Errorf("read stdin: %w", err)
	}
	if len(text) > wire.MaxRequest {
		return req, "", wire.ErrTooLarge
	}
	var in input
	if err := json.Unmarshal(text, &in); err != nil {
		return req, "", fmt.Errorf(`stdin must be {"nonce":…}: %w`, err)
	}
	if in.Nonce == "" {
		return req, "", errors.New("stdin has no nonce")
	}
	req.Nonce = in.Nonce
	if len(req.Command) == 0 {
		req.Command = in.Command
	}
	for name, value := range in.Env {
		if _, set := req.Env[name]; !set {
			req.Env[name] = value
		}
	}
	return req, socket, nil
}

// dial reaches PID 1. Inside, the socket's listener must be PID 1 itself.
func dial(socket string) (*net.UnixConn, error) {
	name, inside := socket, socket == ""
	if inside {
		name = wire.Abstract
	}
	plain, err := (&net.Dialer{Timeout: dialTimeout}).Dial("unix", name)
	if err != nil {
		return nil, fmt.Errorf("reach PID 1: %w", err)
	}
	conn := plain.(*net.UnixConn)
	if !inside {
		return conn, nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if credErr != nil || cred.Pid != 1 {
		return nil, errors.Join(errors.New("the socket is not PID 1's"), credErr, conn.Close())
	}
	return conn, nil
}

// relay copies frames until PID 1 closes. A sealed status that is final, or the
// answer to a ping, is the proper end.
func relay(conn io.Reader, stdout, stderr io.Writer) error {
	answered := false
	for {
		kind, payload, err := wire.ReadFrame(conn)
		if answered && (errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET)) { // a file that is refused is not read to its end
			return nil
		}
		if err != nil {
			return fmt.Errorf("PID 1 broke off: %w", err)
		}
		switch kind {
		case wire.Stdout:
			_, err = stdout.Write(payload)
		case wire.Stderr:
			_, err = stderr.Write(payload)
		case wire.Note, wire.Sealed:
			answered = kind == wire.Sealed
			_, err = fmt.Fprintf(stderr, "%s%s\n", trailer.Marker, payload)
		case wire.Ready:
			answered = true
		case wire.Refuse:
			return fmt.Errorf("PID 1 refuses: %s", payload)
		}
		if err != nil {
			return fmt.Errorf("pass on output: %w", err)
		}
	}
}

// untraced makes sure nobody attached before tracing was forbidden.
func untraced() error {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return fmt.Errorf("look for a tracer: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		if pid, ok := strings.CutPrefix(line, "TracerPid:"); ok && strings.TrimSpace(pid) != "0" {
			return errors.New("this process is being traced")
		}
	}
	return nil
}
