package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sound is a workspace with nothing wrong, as files by name.
func sound() map[string]string {
	return map[string]string{
		"go.work":                 "go 1.26.0\n\nuse (\n\t./functions/a\n\t./functions/b\n\t./scripts\n\t./shared\n)\n",
		"shared/go.mod":           "module tuluat.ai/harness/shared\n\ngo 1.26.0\n\nrequire example.com/x v1.2.0\n",
		"functions/a/go.mod":      function("a", "require example.com/x v1.2.0"),
		"functions/b/go.mod":      function("b", ""),
		"scripts/go.mod":          "module tuluat.ai/harness/scripts\n\ngo 1.26.0\n",
		"scripts/tools/go.mod":    "module tuluat.ai/harness/scripts/tools\n\ngo 1.25.0\n\nrequire example.com/x v1.9.0\n",
		"scripts/testdata/go.mod": "this is no module of ours\n",
		".tuluat/go.mod":          "nor is this\n",
	}
}

func function(name, more string) string {
	return "module tuluat.ai/harness/functions/" + name + "\n\ngo 1.26.0\n\nrequire tuluat.ai/harness/shared v0.0.0\n" + more +
		"\n\nreplace tuluat.ai/harness/shared => ../../shared\n"
}

// lay writes files below a new folder.
func lay(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestCheckAcceptsASoundWorkspace(t *testing.T) {
	problems, err := Check(lay(t, sound()))
	if err != nil {
		t.Fatal(err)
	}
	if len(problems) > 0 {
		t.Errorf("problems of a sound workspace:\n%s", strings.Join(problems, "\n"))
	}
}

func TestCheckFindsWhatIsBroken(t *testing.T) {
	replace := func(file, old, new string) func(map[string]string) {
		return func(files map[string]string) {
			changed := strings.Replace(files[file], old, new, 1)
			if changed == files[file] {
				panic(file + " does not have " + old)
			}
			files[file] = changed
		}
	}
	for name, c := range map[string]struct {
		breakIt func(files map[string]string)
		want    []string
	}{
		"go line differs": {
			replace("functions/a/go.mod", "go 1.26.0", "go 1.25.3"),
			[]string{"functions/a/go.mod: go 1.25.3, but go.work says 1.26.0: run `go mod edit -go=1.26.0` there"},
		},
		"toolchain line differs": {
			replace("shared/go.mod", "go 1.26.0\n", "go 1.26.0\n\ntoolchain go1.26.8\n"),
			[]string{"shared/go.mod: toolchain \"go1.26.8\", but go.work says \"\": run `go mod edit -toolchain=none` there"},
		},
		"two versions of a module": {
			replace("functions/a/go.mod", "x v1.2.0", "x v1.3.0"),
			[]string{"example.com/x: has 2 versions: v1.2.0 in shared/go.mod; v1.3.0 in functions/a/go.mod: run `make sync`"},
		},
		"a function requires a function": {
			replace("functions/a/go.mod", "require example.com/x v1.2.0", "require tuluat.ai/harness/functions/b v0.0.0"),
			[]string{"functions/a/go.mod: requires tuluat.ai/harness/functions/b: move what both need to shared, then run `go mod edit -droprequire=tuluat.ai/harness/functions/b` there"},
		},
		"shared requires scripts": {
			replace("shared/go.mod", "require example.com/x v1.2.0", "require tuluat.ai/harness/scripts v0.0.0"),
			[]string{"shared/go.mod: requires tuluat.ai/harness/scripts: move what both need to shared, then run `go mod edit -droprequire=tuluat.ai/harness/scripts` there"},
		},
		"shared with a version": {
			replace("functions/b/go.mod", "shared v0.0.0", "shared v0.1.0"),
			[]string{"functions/b/go.mod: requires shared v0.1.0, but it has no versions: run `go mod edit -require=tuluat.ai/harness/shared@v0.0.0` there"},
		},
		"no replace": {
			replace("functions/b/go.mod", "replace tuluat.ai/harness/shared => ../../shared\n", ""),
			[]string{"functions/b/go.mod: requires shared without replacing it, so it cannot be built alone: run `go mod edit -replace=tuluat.ai/harness/shared=../../shared` there"},
		},
		"replace with another folder": {
			replace("functions/b/go.mod", "=> ../../shared", "=> ../shared"),
			[]string{
				"functions/b/go.mod: replaces tuluat.ai/harness/shared => ../shared; only shared is replaced, by the module that requires it, with its folder: run `go mod edit -dropreplace=tuluat.ai/harness/shared` there",
				"functions/b/go.mod: requires shared without replacing it, so it cannot be built alone: run `go mod edit -replace=tuluat.ai/harness/shared=../../shared` there",
			},
		},
		"a second replace": {
			replace("functions/a/go.mod", "replace tuluat", "replace example.com/x => ../x\n\nreplace tuluat"),
			[]string{"functions/a/go.mod: replaces example.com/x => ../x; only shared is replaced, by the module that requires it, with its folder: run `go mod edit -dropreplace=example.com/x` there"},
		},
		"replace in go.work": {
			replace("go.work", "use (", "replace example.com/x => ./x\n\nuse ("),
			[]string{"go.work: replaces example.com/x; an image is built without go.work, so put nothing there: run `go work edit -dropreplace=example.com/x`"},
		},
		"exclude": {
			replace("functions/b/go.mod", "replace tuluat", "exclude example.com/x v1.1.0\n\nreplace tuluat"),
			[]string{"functions/b/go.mod: excludes example.com/x v1.1.0, which no other module knows of: require a newer version everywhere, then run `go mod edit -dropexclude=example.com/x@v1.1.0` there"},
		},
		"a module not in go.work": {
			replace("go.work", "\t./functions/b\n", ""),
			[]string{"go.work: does not use ./functions/b, which has a go.mod: run `go work use ./functions/b`"},
		},
		"go.work names a folder without a module": {
			replace("go.work", "use (\n", "use (\n\t./functions/gone\n"),
			[]string{"go.work: uses ./functions/gone, which has no go.mod: run `go work edit -dropuse=./functions/gone`"},
		},
		"tools in go.work": {
			replace("go.work", "use (\n", "use (\n\t./scripts/tools\n"),
			[]string{"go.work: uses ./scripts/tools, which must stay outside (linters): run `go work edit -dropuse=./scripts/tools`"},
		},
		"a function without a module": {
			func(files map[string]string) { files["functions/c/main.go"] = "package main\n" },
			[]string{"functions/c: a function is a module of its own: run `go mod init tuluat.ai/harness/functions/c` there"},
		},
		"a module named otherwise than its folder": {
			replace("functions/b/go.mod", "functions/b", "functions/bee"),
			[]string{"functions/b/go.mod: the module of this folder must be tuluat.ai/harness/functions/b: run `go mod edit -module=tuluat.ai/harness/functions/b` there"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			files := sound()
			c.breakIt(files)
			problems, err := Check(lay(t, files))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckNamesTheFileItCannotRead(t *testing.T) {
	files := sound()
	files["functions/a/go.mod"] = "modul x\n"
	_, err := Check(lay(t, files))
	if err == nil || !strings.Contains(err.Error(), "functions/a/go.mod:1") {
		t.Errorf("error is %v, want one that names functions/a/go.mod:1", err)
	}
	if _, err := Check(t.TempDir()); err == nil {
		t.Error("a folder without go.work is accepted")
	}
}
