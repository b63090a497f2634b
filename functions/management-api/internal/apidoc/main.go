// Command apidoc writes what is generated from the code of the API and the
// CustomResourceDefinitions, or says whether it is written. It runs in the
// function's folder:
//
//	apidoc schemas    internal/api/schema/KIND.json from ../../config/crd
//	apidoc document   openapi.json
//	apidoc check      changes nothing, and fails where one of them is not as it would be written
package main

import (
	"bytes"
	"fmt"
	"os"

	"tuluat.ai/harness/functions/management-api/internal/api"
	"tuluat.ai/harness/functions/management-api/internal/apidoc/crd"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "apidoc:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("say schemas, document or check")
	}
	files := map[string][]byte{}
	switch args[0] {
	case "schemas":
		return write(files, schemas)
	case "document":
		return write(files, document)
	case "check":
		for _, generate := range []func(map[string][]byte) error{schemas, document} {
			if err := generate(files); err != nil {
				return err
			}
		}
		return check(files)
	}
	return fmt.Errorf("%q is none of schemas, document and check", args[0])
}

func schemas(files map[string][]byte) error {
	kinds, err := crd.Schemas(os.DirFS("../../config/crd"))
	for kind, text := range kinds {
		files["internal/api/schema/"+kind+".json"] = text
	}
	return err
}

func document(files map[string][]byte) (err error) {
	files["openapi.json"], err = api.Document()
	return err
}

func write(files map[string][]byte, generate func(map[string][]byte) error) error {
	if err := generate(files); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func check(files map[string][]byte) error {
	for name, want := range files {
		got, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%s is not what the code and config/crd say", name)
		}
	}
	return nil
}
