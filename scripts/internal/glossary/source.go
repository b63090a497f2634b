package glossary

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// Source returns the names that Go code below the folders gives to JSON keys (by
// struct tags, in JSON spelt out, or in SQL that builds it) and to the values of closed sets
// (constants of a named string type). Tests and testdata are left out, and so is
// what foreign names: folders, files and single names that are somebody else's
// to choose. A struct with tags on some exported fields only is an error, since the
// others would be keys that nobody named.
func Source(root fs.FS, folders []string, foreign map[string]string) ([]Name, error) {
	var names []Name
	for _, folder := range folders {
		err := fs.WalkDir(root, folder, func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			_, skip := foreign[name]
			if d.IsDir() {
				if skip || d.Name() == "testdata" {
					return fs.SkipDir
				}
				return nil
			}
			if skip {
				return nil
			}
			if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
				return nil
			}
			text, err := fs.ReadFile(root, name)
			if err != nil {
				return err
			}
			found, err := inFile(name, text)
			for _, n := range found {
				if _, skip := foreign[n.Text]; !skip {
					names = append(names, n)
				}
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return names, nil
}

func inFile(name string, text []byte) ([]Name, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	where := func(n ast.Node) string { return fmt.Sprintf("%s:%d", name, files.Position(n.Pos()).Line) }
	var names []Name
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.StructType:
			found, missing := keys(n, where)
			if len(found) > 0 && missing != "" && err == nil {
				err = fmt.Errorf("%s: field %s has no json tag, though others of its struct have", where(n), missing)
			}
			names = append(names, found...)
		case *ast.GenDecl:
			if n.Tok == token.CONST {
				names = append(names, values(n, where)...)
			}
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				names = append(names, written(n, where)...)
			}
		}
		return true
	})
	return names, err
}

// keys returns a struct's JSON keys and an exported field without a tag, if any.
func keys(s *ast.StructType, where func(ast.Node) string) (names []Name, missing string) {
	for _, field := range s.Fields.List {
		tag := ""
		if field.Tag != nil {
			text, _ := strconv.Unquote(field.Tag.Value) // the parser has checked it
			tag = reflect.StructTag(text).Get("json")
		}
		key, _, _ := strings.Cut(tag, ",")
		switch {
		case tag == "-" || len(field.Names) == 0 && key == "":
		case key != "":
			names = append(names, Name{Form: Key, Text: key, Where: where(field), Holds: plain(field.Type)})
		case field.Names[0].IsExported():
			missing = field.Names[0].Name
		}
	}
	return names, missing
}

// plain returns the name of a type without its package, or "" for one made of others.
func plain(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.StarExpr:
		return plain(e.X)
	}
	return ""
}

var (
	buildsJSON = regexp.MustCompile(`jsonb?_build_object\(([^()]*)`)
	sqlKey     = regexp.MustCompile(`'(\w+)'\s*,`)
	jsonKey    = regexp.MustCompile(`"(\w+)":`)
)

// written returns the keys of JSON that a string spells out itself, or makes a
// query build: the string constants there, as every value comes from a column
// or a parameter.
func written(literal *ast.BasicLit, where func(ast.Node) string) []Name {
	text, _ := strconv.Unquote(literal.Value) // the parser has checked it
	found := jsonKey.FindAllStringSubmatch(text, -1)
	for _, built := range buildsJSON.FindAllStringSubmatch(text, -1) {
		found = append(found, sqlKey.FindAllStringSubmatch(built[1], -1)...)
	}
	var names []Name
	for _, key := range found {
		names = append(names, Name{Form: Key, Text: key[1], Where: where(literal)})
	}
	return names
}

// values returns the constants of a named type that are strings.
func values(d *ast.GenDecl, where func(ast.Node) string) []Name {
	var names []Name
	for _, spec := range d.Specs {
		s, ok := spec.(*ast.ValueSpec)
		if !ok || s.Type == nil {
			continue
		}
		if of, ok := s.Type.(*ast.Ident); ok && of.Name == "string" {
			continue
		}
		for _, v := range s.Values {
			if literal, ok := v.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				text, _ := strconv.Unquote(literal.Value) // the parser has checked it
				names = append(names, classify(text, where(s)))
			}
		}
	}
	return names
}

// ourEvents is the start of every event type of ours; versioned is its end.
const ourEvents, versioned = "ai.tuluat.", ".v1"

func classify(text, where string) Name {
	if inner, ok := strings.CutPrefix(text, ourEvents); ok {
		return Name{Form: Event, Text: strings.TrimSuffix(inner, versioned), Where: where}
	}
	return Name{Form: Value, Text: text, Where: where}
}
