package whatsapp

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"unicode/utf8"

	"tuluat.ai/harness/shared/harness"
)

// tree reads v into what encoding/json would give, all through the reader.
func tree(v value) any {
	switch v.kind() {
	case '{':
		object := map[string]any{}
		for key, item := range v.fields {
			object[harness.CleanText(string(key))] = tree(item)
		}
		return object
	case '[':
		list := []any{}
		for item := range v.items {
			list = append(list, tree(item))
		}
		return list
	case '"':
		return v.text()
	case '0':
		return json.Number(v)
	case 't':
		return v.isTrue()
	}
	return nil
}

// clean makes what encoding/json gives storable.
func clean(v any) any {
	switch v := v.(type) {
	case string:
		return harness.CleanText(v)
	case []any:
		for i := range v {
			v[i] = clean(v[i])
		}
		return v
	case map[string]any:
		out := map[string]any{}
		names := []string{}
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			out[harness.CleanText(name)] = clean(v[name])
		}
		return out
	}
	return v
}

// TestReaderAgreesWithEncodingJSON reads damaged bodies in both ways.
func TestReaderAgreesWithEncodingJSON(t *testing.T) {
	random, seeds, read := rand.New(rand.NewPCG(5, 11)), bodies(t), 0
	seeds = append(seeds, []byte(` {"a" : [ 1 , -2.5e+3 , true , false , null , "\"\\\/\b\f\n\r\t\u00fc\ud83d\ude00\ud83d\ud83d\ude00\ude00\uD83Dx" ] , "\u0061\\" : { } , "" : [ ] , "k\"" : "x\\" } `))
	for range 1000 {
		body := mutate(random, seeds)
		// Left out: names that differ only in NUL, and bytes that are no UTF-8, of
		// which encoding/json makes more marks.
		if !json.Valid(body) || bytes.Contains(body, []byte(`\u0000`)) || !utf8.Valid(body) {
			continue
		}
		decoder := json.NewDecoder(bytes.NewReader(body))
		decoder.UseNumber()
		var want any
		if err := decoder.Decode(&want); err != nil {
			continue
		}
		read++
		if got := tree(whole(body)); !reflect.DeepEqual(clean(want), got) {
			t.Fatalf("read as %v\n%s", got, body)
		}
	}
	if read < 400 {
		t.Errorf("only %d bodies were compared", read)
	}
}

func TestReader(t *testing.T) {
	v := whole([]byte(`{"text":"real","TEXT":"forged","Text":1,"two":1,"two":{"x":["y"]}}`))
	if got := v.get("text").text(); got != "real" {
		t.Errorf("keys are not exact: %s", got)
	}
	if got := v.get("two"); string(got) != `{"x":["y"]}` {
		t.Errorf("the last of two keys counts: %s", got)
	}
	if got := v.get("text", "deeper", "still"); !got.absent() || got.text() != "" || got.scalar() != "" {
		t.Errorf("below a string is nothing: %s", got)
	}
	data := whole([]byte(`{"n": 9007199254740993, "big": 1e400, "deep": [[[[[[[[[[1]]]]]]]]]], "t": true, "z": null}`)).data(0)
	text, err := json.Marshal(data)
	if want := `{"big":"1e400","deep":[[[[[[["…"]]]]]]],"n":9007199254740993,"t":true,"z":null}`; string(text) != want || err != nil {
		t.Errorf("%s, %v", text, err)
	}
}
