package glossary

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"tuluat.ai/harness/shared/postgres/postgrestest"
)

func TestDump(t *testing.T) {
	f := []string{"shared", "functions"}
	if _, err := os.Stat("../../tuluat"); err == nil {
		f = append(f, "scripts/tuluat")
	}
	n, err := Source(os.DirFS(filepath.Join("..", "..", "..")), f, foreign)
	if err != nil {
		t.Fatal(err)
	}
	d, s, m, err := Database(t.Context(), postgrestest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	n = append(n, d...)
	w := map[Form]map[string][]string{}
	for _, x := range n {
		if w[x.Form] == nil {
			w[x.Form] = map[string][]string{}
		}
		w[x.Form][x.Text] = append(w[x.Form][x.Text], x.Where)
	}
	for _, form := range []Form{Table, Column, Key, Value, Event} {
		var ks []string
		for k := range w[form] {
			ks = append(ks, k)
		}
		slices.Sort(ks)
		fmt.Println("##", form, len(ks))
		for _, k := range ks {
			l := w[form][k]
			if len(l) > 3 {
				l = l[:3]
			}
			fmt.Println("  ", k, l)
		}
	}
	for _, x := range s {
		fmt.Println(x)
	}
	fmt.Println(m)
}
