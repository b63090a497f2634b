// Package conventions checks what this repository asks of its source and no
// linter knows: how long a file may be, what a package may not be called, and
// that no code asks an error a question by its text.
package conventions

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Lines a file may have. A longer one holds two subjects, or a main that does
// more than wire.
const (
	maxLines     = 500
	maxTestLines = 800
	maxMainLines = 60
)

// vague lists package names that say nothing of what is inside, so that
// everything ends up there.
var vague = []string{"util", "utils", "common", "helper", "helpers", "misc", "types", "models", "base"}

// Breaches returns one line per breach in the Go files of source, a tree that
// starts at the repository's root. Generated files and testdata are left alone.
func Breaches(source fs.FS) ([]string, error) {
	var breaches []string
	err := fs.WalkDir(source, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || name == "bin" || name == "build") {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		text, err := fs.ReadFile(source, name)
		if err != nil {
			return err
		}
		found, err := inFile(name, text)
		breaches = append(breaches, found...)
		return err
	})
	return breaches, err
}

func inFile(name string, text []byte) ([]string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(file) {
		return nil, nil
	}
	var breaches []string
	if lines, most := bytes.Count(text, []byte("\n")), longest(name); lines > most {
		breaches = append(breaches, fmt.Sprintf("%s:%d: the file has %d lines, at most %d are allowed: split it by subject", name, most, lines, most))
	}
	if slices.Contains(vague, strings.TrimSuffix(file.Name.Name, "_test")) {
		breaches = append(breaches, fmt.Sprintf("%s:1: package %s: name it after the thing or the technology", name, file.Name.Name))
	}
	if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(file.Name.Name, "test") {
		return breaches, nil // a test, and a package that tests share, may look at a message: it is what people see
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if asksText(n) {
			breaches = append(breaches, fmt.Sprintf("%s:%d: asks an error by its text: use errors.Is, errors.AsType or a kind", name, files.Position(n.Pos()).Line))
		}
		return true
	})
	return breaches, nil
}

func longest(name string) int {
	switch {
	case strings.HasSuffix(name, "_test.go"):
		return maxTestLines
	case path.Base(name) == "main.go" && path.Dir(path.Dir(name)) == "functions":
		return maxMainLines
	}
	return maxLines
}

// asksText reports whether n compares an error's text, or hands it to a
// function of strings or regexp that answers a question.
func asksText(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		return (n.Op == token.EQL || n.Op == token.NEQ) && (isErrorText(n.X) || isErrorText(n.Y))
	case *ast.SwitchStmt:
		return n.Tag != nil && isErrorText(n.Tag)
	case *ast.CallExpr:
		called, ok := n.Fun.(*ast.SelectorExpr)
		if !ok || !slices.ContainsFunc(n.Args, isErrorText) {
			return false
		}
		name := called.Sel.Name
		if pkg, ok := called.X.(*ast.Ident); ok && pkg.Name == "strings" {
			return slices.Contains([]string{"Contains", "ContainsAny", "HasPrefix", "HasSuffix", "EqualFold", "Index", "Cut", "CutPrefix", "CutSuffix"}, name)
		}
		return strings.HasPrefix(name, "Match") || strings.HasPrefix(name, "Find")
	}
	return false
}

// isErrorText reports whether e is X.Error(), perhaps in lower case.
func isErrorText(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	called, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if pkg, ok := called.X.(*ast.Ident); ok && pkg.Name == "strings" && len(call.Args) == 1 {
		return isErrorText(call.Args[0])
	}
	return called.Sel.Name == "Error" && len(call.Args) == 0
}
