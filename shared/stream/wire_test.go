package stream

import "testing"

func TestWholeRunes(t *testing.T) {
	for text, want := range map[string]int{"": 0, "abc": 3, "é": 2, "a\xc3": 1, "\xe2\x82": 0, "\xf0\x9f\x98": 0, "\xf0\x9f\x98\x80": 4, "\x80\x80\x80\x80": 4, "a\xff": 2, "\xe2\x82\xac\xe2": 3} {
		if got := wholeRunes([]byte(text)); got != want {
			t.Errorf("wholeRunes(%q) = %d, want %d", text, got, want)
		}
	}
}
