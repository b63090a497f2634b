package install

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// SampleSecrets makes up the values that the kustomization of a folder of agents
// reads for its secretGenerators: a line KEY=VALUE for every key that an agent, or
// a patch of one, names. A line that is there stays.
func SampleSecrets(folder string, log io.Writer) error {
	text, err := os.ReadFile(filepath.Join(folder, "Kustomization"))
	if err != nil {
		return err
	}
	var k struct {
		Resources       []string
		Patches         []struct{ Patch string }
		SecretGenerator []struct {
			Name string
			Envs []string
		} `yaml:"secretGenerator"`
	}
	if err := yaml.Unmarshal(text, &k); err != nil {
		return err
	}
	keys := map[string][]string{}
	for _, file := range k.Resources {
		if text, err = os.ReadFile(filepath.Join(folder, file)); err != nil {
			return err
		}
		if err := collectRefs(text, keys); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	for _, p := range k.Patches {
		if err := collectRefs([]byte(p.Patch), keys); err != nil {
			return fmt.Errorf("a patch: %w", err)
		}
	}
	for _, g := range k.SecretGenerator {
		if len(g.Envs) != 1 {
			return fmt.Errorf("the generator of %s: one file is needed", g.Name)
		}
		added, err := complete(filepath.Join(folder, g.Envs[0]), keys[g.Name])
		if err != nil {
			return err
		}
		if len(added) > 0 {
			fmt.Fprintf(log, "made up %s in %s\n", strings.Join(added, ", "), filepath.Join(folder, g.Envs[0]))
		}
	}
	return nil
}

// collectRefs adds the keys of every Secret that the YAML names.
func collectRefs(text []byte, keys map[string][]string) error {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var content any
		err := decoder.Decode(&content)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		walk(content, func(m map[string]any) {
			for field, value := range m {
				ref, ok := value.(map[string]any)
				if !ok || !strings.HasSuffix(strings.ToLower(field), "secretref") {
					continue
				}
				name, _ := ref["name"].(string)
				if key, _ := ref["key"].(string); key != "" && !slices.Contains(keys[name], key) {
					keys[name] = append(keys[name], key)
				}
			}
		})
	}
}

// complete adds a made-up line for every key that the file lacks.
func complete(file string, keys []string) (added []string, err error) {
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return l == "" })
	slices.Sort(keys)
	for _, key := range keys {
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, key+"=") }) {
			lines = append(lines, key+"="+rand.Text())
			added = append(added, key)
		}
	}
	if len(added) == 0 {
		return nil, nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	return added, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}
