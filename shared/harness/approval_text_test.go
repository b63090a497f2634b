package harness_test

import (
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"tuluat.ai/harness/shared/harness"
)

// alphabet is what commands are made of, and what hides in them.
var alphabet = []string{
	"rm -rf ", "/", "a", "B", "7", " ", "  ", "\n", "\n\n", "\t", "\r", "`", "```", "````", "~~~", "\\", `\u{200b}`, `\u{`, "**", "_x_", "<b>", "&amp;", "> ", "- ", "# ", "[a](b)", "|",
	"\u200b", "\u202e", "\u2066", "\u2069", "\ufeff", "\u00ad", "\u00a0", "\u3000", "\u2028", "\u3164", "\u115f", "\u034f", "\ufe0f", "\u2800", "\u0301", "\u0336", "\x1b", "\x7f", "\U000e0041",
	"а", "е", "；", "－", "ˋ", "é", "漢", "א", "م", "🙂", "\ufffd",
}

func commandOf(t *testing.T, command string) harness.ApprovalSubject {
	t.Helper()
	arguments, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		t.Fatal(err)
	}
	return harness.ApprovalSubject{Agent: "coder", Tool: harness.ToolExecuteShell, Arguments: arguments, Sandbox: &harness.SandboxSpec{ImageRef: "python", Egress: harness.EgressNone}}
}

// read is what a reader takes from a card: the command, letter by letter.
func read(t *testing.T, text string) string {
	t.Helper()
	fence, _, _ := strings.Cut(text, "\n")
	if strings.Trim(fence, "`") != "" || len(fence) < 3 {
		t.Fatalf("no fence: %.80q", text)
	}
	var shown strings.Builder
	for rest := text; ; {
		body, after, ok := strings.Cut(strings.TrimPrefix(rest, fence+"\n"), "\n"+fence+"\n")
		if !ok {
			t.Fatalf("a fence that does not end: %.80q", rest)
		}
		shown.WriteString(body)
		if next, found := strings.CutPrefix(after, "and on the next line:\n"); found {
			shown.WriteByte('\n')
			rest = next
		} else if next, found := strings.CutPrefix(after, "and without a break:\n"); found {
			rest = next
		} else {
			break
		}
	}
	for _, r := range shown.String() {
		if r != '\n' && (unicode.In(r, unicode.C, unicode.Mn, unicode.Me, unicode.Zl, unicode.Zp, unicode.Bidi_Control, unicode.Hebrew, unicode.Arabic) || r != ' ' && unicode.IsSpace(r)) {
			t.Fatalf("%U hides in %.200q", r, shown.String())
		}
	}
	for _, line := range strings.Split(shown.String(), "\n") {
		if strings.HasSuffix(line, " ") {
			t.Fatalf("nobody sees the space at the end of %.200q", line)
		}
	}
	return regexp.MustCompile(`\\u\{[0-9a-f]+\}`).ReplaceAllStringFunc(shown.String(), func(point string) string {
		n, err := strconv.ParseInt(point[3:len(point)-1], 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		return string(rune(n))
	})
}

// A card shows exactly the command: from what is seen, the command can be written
// down again, whatever it is made of and however long it is.
func TestACardShowsExactlyTheCommand(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	commands := []string{
		"echo `id`", "x", strings.Repeat("a", 5000), strings.Repeat("word ", 1200) + "end", strings.Repeat("line\n", 1500) + "end", "x" + strings.Repeat(" ", 5000) + "; rm -rf /",
		strings.Repeat("`", 100) + "\n" + strings.Repeat("b", 4000), strings.Repeat("\u202e", 3000), "cat <<E\n\tindented\nE\n", strings.Repeat("🙂", 3000),
	}
	for range 1000 {
		var command strings.Builder
		for range 1 + random.IntN(40) {
			command.WriteString(alphabet[random.IntN(len(alphabet))])
		}
		if random.IntN(20) == 0 {
			command.WriteString(strings.Repeat(alphabet[random.IntN(len(alphabet))], 3000))
		}
		commands = append(commands, command.String())
	}
	shown := map[string]string{}
	for _, command := range commands {
		if strings.TrimSpace(command) == "" {
			continue
		}
		text := commandOf(t, command).Text()
		if got := read(t, text); got != command {
			t.Fatalf("a card shows %.300q\nof       %.300q\nas %.600q", got, command, text)
		}
		if !utf8.ValidString(text) {
			t.Fatalf("%q is not UTF-8", text)
		}
		if before, ok := shown[text]; ok && before != command {
			t.Fatalf("%q and %q look the same", before, command)
		}
		shown[text] = command
	}
}

func TestLookAlikesAreNamed(t *testing.T) {
	for _, command := range []string{"cаt x", "rm ‐rf x", "a；b", "echo ˋidˋ", "cat ／etc"} {
		text := commandOf(t, command).Text()
		_, named, found := strings.Cut(text, "It has characters beyond ASCII: ")
		if !found || !strings.Contains(named, "(U+") {
			t.Errorf("%q is shown as %q", command, text)
		}
	}
	if text := commandOf(t, "ls -la").Text(); strings.Contains(text, "beyond ASCII") {
		t.Errorf("a plain command is shown as %q", text)
	}
	if text := commandOf(t, strings.Repeat("漢字仮名交文電話", 1)+string([]rune{0x4e00, 0x4e01, 0x4e02, 0x4e03, 0x4e04, 0x4e05, 0x4e06, 0x4e07, 0x4e08, 0x4e09, 0x4e0a, 0x4e0b, 0x4e0c, 0x4e0d, 0x4e0e, 0x4e0f, 0x4e10, 0x4e11, 0x4e12, 0x4e13, 0x4e14, 0x4e15, 0x4e16, 0x4e17, 0x4e18, 0x4e19, 0x4e1a, 0x4e1b, 0x4e1c, 0x4e1d, 0x4e1e, 0x4e1f, 0x4e20, 0x4e21})).Text(); !strings.Contains(text, ", and 2 more") {
		t.Errorf("the rest is not counted: %q", text)
	}
}

func TestDigest(t *testing.T) {
	of := func(arguments string) string {
		return harness.ApprovalSubject{Agent: "coder", Tool: "deploy", Arguments: json.RawMessage(arguments)}.Digest()
	}
	base := of(`{"a":"rm x","b":[1,{"c":null}]}`)
	for name, same := range map[string]string{
		"keys in another order": `{"b":[1,{"c":null}],"a":"rm x"}`,
		"white space":           " {\n\t\"a\" : \"rm x\" , \"b\" : [ 1 , { \"c\" : null } ] } ",
		"escapes":               `{"\u0061":"rm\u0020x","b":[1,{"c":null}]}`,
	} {
		if of(same) != base {
			t.Errorf("%s: another digest", name)
		}
	}
	for name, other := range map[string]string{
		"a look-alike":          `{"a":"rm х","b":[1,{"c":null}]}`,
		"a space more":          `{"a":"rm  x","b":[1,{"c":null}]}`,
		"a space at the end":    `{"a":"rm x ","b":[1,{"c":null}]}`,
		"a tab":                 `{"a":"rm\tx","b":[1,{"c":null}]}`,
		"a no-break space":      `{"a":"rm\u00a0x","b":[1,{"c":null}]}`,
		"no width":              `{"a":"rm\u200b x","b":[1,{"c":null}]}`,
		"a composed letter":     `{"a":"rm x\u0301","b":[1,{"c":null}]}`,
		"another case":          `{"A":"rm x","b":[1,{"c":null}]}`,
		"a list in other order": `{"a":"rm x","b":[{"c":null},1]}`,
		"a text for a number":   `{"a":"rm x","b":["1",{"c":null}]}`,
		"something behind":      `{"a":"rm x","b":[1,{"c":null}]}}`,
		"a second value":        `{"a":"rm x","b":[1,{"c":null}]} {}`,
	} {
		if of(other) == base {
			t.Errorf("%s: the same digest", name)
		}
	}
	s := commandOf(t, "ls")
	for name, change := range map[string]func(*harness.ApprovalSubject){
		"agent": func(s *harness.ApprovalSubject) { s.Agent = "other" }, "tool": func(s *harness.ApprovalSubject) { s.Tool = "other" },
		"image": func(s *harness.ApprovalSubject) { s.Sandbox.Image = "x" }, "network": func(s *harness.ApprovalSubject) { s.Sandbox.Egress = harness.EgressDefault },
	} {
		changed := s
		sandbox := *s.Sandbox
		changed.Sandbox = &sandbox
		if change(&changed); changed.Digest() == s.Digest() {
			t.Errorf("another %s: the same digest", name)
		}
	}
}
