package sandboxtest

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
	"tuluat.ai/harness/shared/sandbox/outbound"
)

// filesIn: a file is there whole, replaces the one before, or is not there.
func filesIn(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	read := func(command, want string) {
		t.Helper()
		if _, out := Exec(t, b.Driver, sb, Command(command)); out.String("stdout") != want {
			t.Errorf("%s: %q, want %q", command, out.String("stdout"), want)
		}
	}
	for _, text := range []string{"", "first", strings.Repeat("0123456789", 300_000)} {
		digest, err := sandbox.Put(t.Context(), b.Driver, sb, "in/deep/x", strings.NewReader(text), int64(len(text)))
		if err != nil || len(digest) != 64 {
			t.Fatalf("%d bytes: %q, %v", len(text), digest, err)
		}
		read("cat in/deep/x | sha256sum | cut -c1-64", digest+"\n")
	}
	broken := errors.New("the source broke")
	for name, c := range map[string]struct {
		path string
		body io.Reader
		size int64
		want func(error) bool
	}{
		"outside":      {"../x", strings.NewReader("x"), 1, invalid},
		"absolute":     {"/tmp/x", strings.NewReader("x"), 1, invalid},
		"not clean":    {"in//x", strings.NewReader("x"), 1, invalid},
		"itself":       {".", strings.NewReader("x"), 1, invalid},
		"too short":    {"in/deep/x", strings.NewReader("x"), 2, invalid},
		"breaks":       {"in/deep/x", io.MultiReader(strings.NewReader("x"), breaks{broken}), 9, func(err error) bool { return errors.Is(err, broken) }},
		"no room":      {"in/deep/x", bytes.NewReader(make([]byte, 40<<20)), 40 << 20, invalid},
		"under a file": {"in/deep/x/y", strings.NewReader("x"), 1, invalid},
	} {
		if _, err := sandbox.Put(t.Context(), b.Driver, sb, c.path, c.body, c.size); !c.want(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	read("wc -c < in/deep/x; ls -A in/deep in", "3000000\nin:\ndeep\n\nin/deep:\nx\n")
	other := sb
	other.UID += "x"
	if _, err := sandbox.Put(t.Context(), b.Driver, other, "in/x", strings.NewReader("x"), 1); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("another identity: %v", err)
	}
}

func invalid(err error) bool { return harness.KindOf(err) == harness.Invalid }

type breaks struct{ err error }

func (b breaks) Read([]byte) (int, error) { return 0, b.err }

// filesOut: what is new or has changed comes out, once per execution that asks,
// and what the limits have left comes after the next.
func filesOut(t *testing.T, b Bench) {
	sb := Started(t, b.Driver, Spec())
	limits := sandbox.OutLimits{Files: 3, Bytes: 1 << 20, TotalBytes: 2 << 20}
	run := func(command string, outbound bool) harness.ExecutionID {
		t.Helper()
		req := Command(command)
		if res, _ := Exec(t, b.Driver, sb, req); res.Outbound != outbound {
			t.Fatalf("%s: %+v", command, res)
		}
		return req.ID
	}
	collect := func(id harness.ExecutionID, want map[string]string, left map[string]outbound.Reason) {
		t.Helper()
		for range 2 { // the same answer to the same question
			out, err := sandbox.Collect(t.Context(), b.Driver, sb, id, limits)
			if err != nil {
				t.Fatal(err)
			}
			got, stay := map[string]string{}, map[string]outbound.Reason{}
			for _, f := range out.Files {
				got[f.Path] = string(f.Data)
			}
			for _, f := range out.Left {
				stay[f.Path] = f.Reason
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(left, stay); diff != "" || out.More > 0 {
				t.Errorf("left (-want +got), and %d more:\n%s", out.More, diff)
			}
		}
	}
	none := map[string]outbound.Reason{}
	collect(run("true", false), map[string]string{}, none)
	collect(run("ln -s /etc out", false), map[string]string{}, none)
	collect(run("rm out; mkdir -p out/d; printf 1 > out/a; printf 2 > out/d/b", true), map[string]string{"a": "1", "d/b": "2"}, none)
	collect(run("cat out/a", true), map[string]string{}, none)
	collect(run("printf 3 > out/a; touch out/d/b", true), map[string]string{"a": "3", "d/b": "2"}, none)
	collect(run("rm out/a; printf 4 > out/w; printf 5 > out/x; printf 6 > out/y; printf 7 > out/z; truncate -s 2M out/large; ln out/d/b out/hard; ln -s a out/soft", true),
		map[string]string{"d/b": "2", "hard": "2", "w": "4"}, map[string]outbound.Reason{"large": outbound.TooLarge, "x": outbound.TooMany, "y": outbound.TooMany, "z": outbound.TooMany, "soft": outbound.NoFile}) // a hard link is a plain file of the sandbox's own
	collect(run("true", true), map[string]string{"x": "5", "y": "6", "z": "7"}, none) // their turn has come
	collect(run("true", true), map[string]string{}, none)
	collect(run("rm -r out/*; for f in a b c d e; do : > out/$f; done; for f in p q r s t; do printf $f > out/$f; done", true),
		map[string]string{"p": "p", "q": "q", "r": "r"}, map[string]outbound.Reason{
			"a": outbound.Empty, "b": outbound.Empty, "c": outbound.Empty, "d": outbound.Empty, "e": outbound.Empty, "s": outbound.TooMany, "t": outbound.TooMany,
		})
	collect(run("printf v > out/v; printf w > out/w", true), map[string]string{"v": "v", "w": "w", "s": "s"}, map[string]outbound.Reason{"t": outbound.TooMany}) // what is new goes first
	collect(run("printf u > out/t", true), map[string]string{"t": "u"}, none)
	collect(run("rm -r out/*; for f in m n o; do truncate -s 1M out/$f; done", true),
		map[string]string{"m": strings.Repeat("\x00", 1<<20), "n": strings.Repeat("\x00", 1<<20)}, map[string]outbound.Reason{"o": outbound.TooMuch})
	collect(run("true", true), map[string]string{"o": strings.Repeat("\x00", 1<<20)}, none)
	limits.Files = 0
	collect(run("printf 1 > out/1", true), map[string]string{}, map[string]outbound.Reason{"1": outbound.TooMany})
	collect(run("true", true), map[string]string{}, none)
	limits.Files = 3
	collect(run("rm -r out/*; truncate -s 2M out/large; truncate -s 1M out/m1; truncate -s 1M out/m2; printf x > out/m3", true),
		map[string]string{"m1": strings.Repeat("\x00", 1<<20), "m2": strings.Repeat("\x00", 1<<20)}, map[string]outbound.Reason{"large": outbound.TooLarge, "m3": outbound.TooMuch})
	other := sb
	other.UID += "x"
	if _, err := sandbox.Collect(t.Context(), b.Driver, other, "exe_x", limits); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("another identity: %v", err)
	}
}
