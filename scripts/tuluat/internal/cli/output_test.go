package cli

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// What is printed says what it was made of, whatever is in it, and nothing that
// a terminal would obey.
func TestWriteLosesNothing(t *testing.T) {
	texts := []string{
		"", "yes", "null", "~", "1", "1.0", "0x1f", "2026-01-02", "- a", "a: b", "# no comment", " leading", "trailing ", "\ttab", "a\nb", "a\nb\n", "\n\na", "  a\n b\n", "a\n\n\n", "%x", "@x", "`x", "!x", "&x", "*x", "|", ">",
		"'", `"`, `\`, "a\r\nb", "\x00", "\x1b[31m", "\u202egnp", "\u2028", "\u0085", "\u009b", "\ufeff", "\U000e0041", "\u00e9\u65e5\U0001f600", strings.Repeat("long ", 100) + "\x1b end", "{", "}", "[]", ": ", "? ", "---", "...", "<<", "=", "a\x1b\nb",
	}
	random := rand.New(rand.NewPCG(1, 2))
	pick := func() string {
		text := texts[random.IntN(len(texts))]
		if random.IntN(2) == 0 {
			text += texts[random.IntN(len(texts))]
		}
		return text
	}
	var value func(depth int) any
	value = func(depth int) any {
		switch n := random.IntN(9); {
		case n == 0:
			return nil
		case n == 1:
			return random.IntN(2) == 0
		case n == 2:
			return json.Number(fmt.Sprint(random.Int64N(1 << 62)))
		case n == 3:
			return json.Number(fmt.Sprint(random.NormFloat64()))
		case n == 4 && depth > 0:
			list := make([]any, random.IntN(4))
			for i := range list {
				list[i] = value(depth - 1)
			}
			return list
		case n == 5 && depth > 0:
			object := map[string]any{}
			for range random.IntN(4) {
				object[pick()] = value(depth - 1)
			}
			return object
		}
		return pick()
	}
	for range 3000 {
		want := map[string]any{"value": value(3)}
		plain, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var asWritten any
		if err := json.Unmarshal(plain, &asWritten); err != nil {
			t.Fatal(err)
		}
		for _, f := range []format{asJSON, asYAML} {
			var out strings.Builder
			if err := f.write(&out, want); err != nil {
				t.Fatalf("%s: %v", plain, err)
			}
			if i := strings.IndexFunc(out.String(), hidden); i >= 0 {
				t.Fatalf("%s of %s has a hidden character: %q", f, plain, out.String()[i:])
			}
			var got any
			if f == asJSON {
				err = json.Unmarshal([]byte(out.String()), &got)
			} else if err = yaml.Unmarshal([]byte(out.String()), &got); err == nil {
				var again []byte
				if again, err = json.Marshal(got); err == nil {
					got = nil
					err = json.Unmarshal(again, &got)
				}
			}
			if err != nil || !reflect.DeepEqual(got, asWritten) {
				t.Fatalf("%v: %s\nis written as\n%s", err, plain, out.String())
			}
		}
	}
}
