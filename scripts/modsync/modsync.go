package main

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// prefix is the path of every module here, before its folder.
const prefix = "tuluat.ai/harness/"

// shared is the only module of ours that another may require.
const shared = prefix + "shared"

// outside lists the folders whose module must not be in go.work, and why: what
// they require would lift the versions that functions are built with.
var outside = map[string]string{
	"scripts/tools":          "linters",
	"scripts/tools/generate": "generators",
	"scripts/temporal":       "a Temporal server, for tests",
	"scripts/promtool":       "Prometheus' own tool, for tests",
	"scripts/versitygw":      "the real S3 server, for tests",
}

// module is one go.mod below the root.
type module struct {
	folder string // slash-separated, relative to the root
	file   *modfile.File
}

func (m module) name() string { return path.Join(m.folder, "go.mod") }

// Check returns what is wrong with the workspace in folder root, sorted by
// file. An error means that the question could not be answered: a file that
// cannot be read or parsed.
func Check(root string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(root, "go.work"))
	if err != nil {
		return nil, err
	}
	work, err := modfile.ParseWork("go.work", text, nil)
	if err != nil {
		return nil, err
	}
	all, err := modules(root)
	if err != nil {
		return nil, err
	}
	problems := folders(root, work, all)
	members := slices.DeleteFunc(all, func(m module) bool { return outside[m.folder] != "" })
	problems = append(problems, toolchains(work, members)...)
	problems = append(problems, own(members)...)
	problems = append(problems, versions(members)...)
	slices.Sort(problems)
	return problems, nil
}

// modules parses every go.mod below root. Hidden folders and testdata are not ours to judge.
func modules(root string) ([]module, error) {
	var all []module
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if d.Name() != "go.mod" {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(relative)
		file, err := modfile.Parse(name, text, nil)
		if err != nil {
			return err
		}
		all = append(all, module{folder: path.Dir(name), file: file})
		return nil
	})
	return all, err
}

// folders compares go.work with the modules that exist, and each module's path with its folder.
func folders(root string, work *modfile.WorkFile, all []module) []string {
	var problems []string
	used := map[string]bool{}
	for _, u := range work.Use {
		used[path.Clean(u.Path)] = true
	}
	exists := map[string]bool{}
	for _, m := range all {
		exists[m.folder] = true
		why, out := outside[m.folder]
		if out && used[m.folder] {
			problems = append(problems, fmt.Sprintf("go.work: uses ./%s, which must stay outside (%s): run `go work edit -dropuse=./%s`", m.folder, why, m.folder))
		}
		if !out && !used[m.folder] {
			problems = append(problems, fmt.Sprintf("go.work: does not use ./%s, which has a go.mod: run `go work use ./%s`", m.folder, m.folder))
		}
		if want := prefix + m.folder; m.file.Module == nil || m.file.Module.Mod.Path != want {
			problems = append(problems, fmt.Sprintf("%s: the module of this folder must be %s: run `go mod edit -module=%s` there", m.name(), want, want))
		}
	}
	for folder := range used {
		if !exists[folder] {
			problems = append(problems, fmt.Sprintf("go.work: uses ./%s, which has no go.mod: run `go work edit -dropuse=./%s`", folder, folder))
		}
	}
	entries, _ := os.ReadDir(filepath.Join(root, "functions")) // absent: there are no functions
	for _, e := range entries {
		if folder := path.Join("functions", e.Name()); e.IsDir() && !exists[folder] {
			problems = append(problems, fmt.Sprintf("%s: a function is a module of its own: run `go mod init %s%s` there", folder, prefix, folder))
		}
	}
	for _, r := range work.Replace {
		problems = append(problems, fmt.Sprintf("go.work: replaces %s; an image is built without go.work, so put nothing there: run `go work edit -dropreplace=%s`", r.Old.Path, r.Old.Path))
	}
	return problems
}

// toolchains wants go.work's go and toolchain lines in every module.
func toolchains(work *modfile.WorkFile, members []module) []string {
	var problems []string
	want, wantToolchain := "", ""
	if work.Go != nil {
		want = work.Go.Version
	}
	if work.Toolchain != nil {
		wantToolchain = work.Toolchain.Name
	}
	if want == "" {
		return []string{"go.work: has no go line: run `go work edit -go=VERSION`"}
	}
	for _, m := range members {
		got, gotToolchain := "", ""
		if m.file.Go != nil {
			got = m.file.Go.Version
		}
		if m.file.Toolchain != nil {
			gotToolchain = m.file.Toolchain.Name
		}
		if got != want {
			problems = append(problems, fmt.Sprintf("%s: go %s, but go.work says %s: run `go mod edit -go=%s` there", m.name(), got, want, want))
		}
		if gotToolchain != wantToolchain {
			problems = append(problems, fmt.Sprintf("%s: toolchain %q, but go.work says %q: run `go mod edit -toolchain=%s` there",
				m.name(), gotToolchain, wantToolchain, cmp.Or(wantToolchain, "none")))
		}
	}
	return problems
}

// own checks what modules of ours say of each other: everybody may require
// shared, nobody anything else, by the one replace that points at its folder.
func own(members []module) []string {
	var problems []string
	for _, m := range members {
		needsShared := false
		for _, r := range m.file.Require {
			switch {
			case !strings.HasPrefix(r.Mod.Path, prefix):
			case r.Mod.Path != shared || m.folder == "shared":
				problems = append(problems, fmt.Sprintf("%s: requires %s: move what both need to shared, then run `go mod edit -droprequire=%s` there",
					m.name(), r.Mod.Path, r.Mod.Path))
			default:
				needsShared = true
				if r.Mod.Version != "v0.0.0" {
					problems = append(problems, fmt.Sprintf("%s: requires shared %s, but it has no versions: run `go mod edit -require=%s@v0.0.0` there",
						m.name(), r.Mod.Version, shared))
				}
			}
		}
		found := false
		for _, r := range m.file.Replace {
			if needsShared && r.Old.Path == shared && r.Old.Version == "" && r.New.Path == toShared(m.folder) && !found {
				found = true
				continue
			}
			problems = append(problems, fmt.Sprintf("%s: replaces %s => %s; only shared is replaced, by the module that requires it, with its folder: run `go mod edit -dropreplace=%s` there",
				m.name(), r.Old.Path, r.New.Path, r.Old.Path))
		}
		if needsShared && !found {
			problems = append(problems, fmt.Sprintf("%s: requires shared without replacing it, so it cannot be built alone: run `go mod edit -replace=%s=%s` there",
				m.name(), shared, toShared(m.folder)))
		}
		for _, e := range m.file.Exclude {
			problems = append(problems, fmt.Sprintf("%s: excludes %s %s, which no other module knows of: require a newer version everywhere, then run `go mod edit -dropexclude=%s@%s` there",
				m.name(), e.Mod.Path, e.Mod.Version, e.Mod.Path, e.Mod.Version))
		}
	}
	return problems
}

// toShared is the relative path from a module's folder to shared.
func toShared(folder string) string {
	return strings.Repeat("../", strings.Count(folder, "/")+1) + "shared"
}

// versions wants one version of every external module: a workspace links the
// newest of them, an image the module's own, so tests would try another program.
func versions(members []module) []string {
	required := map[string]map[string][]string{} // module -> version -> the go.mod files that say so
	for _, m := range members {
		for _, r := range m.file.Require {
			if strings.HasPrefix(r.Mod.Path, prefix) {
				continue
			}
			if required[r.Mod.Path] == nil {
				required[r.Mod.Path] = map[string][]string{}
			}
			required[r.Mod.Path][r.Mod.Version] = append(required[r.Mod.Path][r.Mod.Version], m.name())
		}
	}
	var problems []string
	for name, byVersion := range required {
		if len(byVersion) == 1 {
			continue
		}
		var where []string
		for _, version := range slices.Sorted(maps.Keys(byVersion)) {
			where = append(where, fmt.Sprintf("%s in %s", version, strings.Join(byVersion[version], ", ")))
		}
		problems = append(problems, fmt.Sprintf("%s: has %d versions: %s: run `make sync`", name, len(byVersion), strings.Join(where, "; ")))
	}
	return problems
}
