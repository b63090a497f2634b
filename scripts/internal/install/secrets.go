package install

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// The Secrets of an in-cluster Postgres.
const (
	databaseSecret = "database" // a connection string per function, and the owner's
	postgresSecret = "postgres" // the owner's password, for the server's first start
	ownerKey       = "migrate"
	owner          = "tuluat"
)

// need is a key of a Secret without which a Pod does not start.
type need struct{ namespace, secret, key string }

// needs collects the keys that workloads name and do not call optional.
func needs(objects []Object) []need {
	found := map[need]bool{}
	for _, o := range objects {
		walk(o.Content, func(m map[string]any) {
			if ref, ok := m["secretKeyRef"].(map[string]any); ok && ref["optional"] != true {
				found[need{o.Namespace, text(ref, "name"), text(ref, "key")}] = true
			}
			if volume, ok := m["secret"].(map[string]any); ok && volume["optional"] != true {
				items, _ := volume["items"].([]any)
				for _, item := range items {
					found[need{o.Namespace, text(volume, "secretName"), text(item, "key")}] = true
				}
			}
		})
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b need) int {
		return strings.Compare(a.namespace+a.secret+a.key, b.namespace+b.secret+b.key)
	})
}

func walk(value any, see func(map[string]any)) {
	switch v := value.(type) {
	case map[string]any:
		see(v)
		for _, child := range v {
			walk(child, see)
		}
	case []any:
		for _, child := range v {
			walk(child, see)
		}
	}
}

// keysOf returns the keys of a Secret in the cluster, none if there is no such
// Secret. It never reads a value.
func keysOf(ctx context.Context, namespace, name string) ([]string, error) {
	out, err := kubectl(ctx, nil, "-n", namespace, "get", "secret", name, "--ignore-not-found",
		"-o", `go-template={{range $key, $value := .data}}{{$key}}{{"\n"}}{{end}}`)
	return strings.Fields(string(out)), err
}

// missingSecrets says which keys are neither in the cluster nor in objects, and
// how to make the Secret.
func missingSecrets(ctx context.Context, objects []Object) error {
	there := map[need]bool{}
	for _, o := range objects {
		if !o.is("", "Secret") {
			continue
		}
		for _, part := range []string{"data", "stringData"} {
			m, _ := o.Content[part].(map[string]any)
			for key := range m {
				there[need{o.Namespace, o.Name, key}] = true
			}
		}
	}
	missing := map[[2]string][]string{}
	asked := map[[2]string][]string{}
	for _, n := range needs(objects) {
		if there[n] {
			continue
		}
		at := [2]string{n.namespace, n.secret}
		if _, known := asked[at]; !known {
			keys, err := keysOf(ctx, n.namespace, n.secret)
			if err != nil {
				return err
			}
			asked[at] = append(keys, "") // an empty key marks it as asked for
		}
		if !slices.Contains(asked[at], n.key) {
			missing[at] = append(missing[at], n.key)
		}
	}
	var problems []error
	for at, keys := range missing {
		problems = append(problems, fmt.Errorf("the Secret %s in %s lacks %s\n  %s", at[1], at[0], strings.Join(keys, ", "), howToMake(at[0], at[1], keys)))
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(problems...)
}

func howToMake(namespace, name string, keys []string) string {
	command := fmt.Sprintf("kubectl -n %s create secret generic %s", namespace, name)
	switch name {
	case "model":
		return command + " --from-literal=provider=openai --from-literal=name=MODEL --from-file=openai-api-key=FILE\n" +
			"  (FILE holds the key alone; provider openai also means any compatible server: add --from-literal=openai-base-url=URL; or anthropic and anthropic-api-key)"
	case databaseSecret:
		for _, key := range keys {
			command += fmt.Sprintf(" --from-file=%s=FILE", key)
		}
		return command + "\n  (each FILE holds postgres://…: a login and a password of your choice for each function: the Job makes them; " + ownerKey + " owns the database and may create roles)"
	}
	for _, key := range keys {
		command += fmt.Sprintf(" --from-file=%s=FILE", key)
	}
	return command
}

// ensureDatabase makes the Secrets of an in-cluster Postgres: once, with passwords
// made up here. What is there stays as it is, whoever made it; a function that is
// new since then gets its key added.
func ensureDatabase(ctx context.Context, objects []Object, say func(string, ...any)) error {
	server := slices.IndexFunc(objects, func(o Object) bool { return o.is("apps", "StatefulSet") && o.Name == postgresSecret })
	if server < 0 {
		return nil
	}
	namespace := objects[server].Namespace
	password, err := ensurePassword(ctx, namespace, say)
	if err != nil {
		return err
	}
	have, err := keysOf(ctx, namespace, databaseSecret)
	if err != nil {
		return err
	}
	fresh := map[string]string{}
	for _, n := range needs(objects) {
		if n.namespace != namespace || n.secret != databaseSecret || slices.Contains(have, n.key) {
			continue
		}
		user := url.UserPassword(owner, password)
		if n.key != ownerKey {
			user = url.UserPassword(strings.ReplaceAll(n.key, "-", "_"), rand.Text())
		}
		u := url.URL{Scheme: "postgres", User: user, Host: postgresSecret + "." + namespace + ".svc.cluster.local:5432", Path: "/" + owner, RawQuery: "sslmode=disable"}
		fresh[n.key] = u.String()
	}
	if len(fresh) == 0 {
		return nil
	}
	if len(have) == 0 {
		say("made up a login for every function: Secret %s", databaseSecret)
		return createSecret(ctx, namespace, databaseSecret, fresh)
	}
	say("added to the Secret %s: %s", databaseSecret, strings.Join(slices.Sorted(maps.Keys(fresh)), ", "))
	patch, err := json.Marshal(map[string]any{"stringData": fresh})
	if err != nil {
		return err
	}
	_, err = kubectl(ctx, patch, "-n", namespace, "patch", "secret", databaseSecret, "--type=merge", "--patch-file=/dev/stdin")
	return err
}

// ensurePassword returns the owner's password, made up if there is none.
func ensurePassword(ctx context.Context, namespace string, say func(string, ...any)) (string, error) {
	keys, err := keysOf(ctx, namespace, postgresSecret)
	if err != nil {
		return "", err
	}
	if !slices.Contains(keys, "password") {
		password := rand.Text()
		say("made up the password of the in-cluster Postgres: Secret %s", postgresSecret)
		return password, createSecret(ctx, namespace, postgresSecret, map[string]string{"password": password})
	}
	out, err := kubectl(ctx, nil, "-n", namespace, "get", "secret", postgresSecret, "-o", "go-template={{.data.password | base64decode}}")
	return string(out), err
}

// createSecret fails if there is one: nothing here replaces a value. The values
// go through stdin: arguments are everybody's to see.
func createSecret(ctx context.Context, namespace, name string, values map[string]string) error {
	object, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "stringData": values,
		"metadata": map[string]any{"name": name, "namespace": namespace, "labels": map[string]string{"app.kubernetes.io/part-of": "tuluat-harness"}},
	})
	if err != nil {
		return err
	}
	_, err = kubectl(ctx, object, "create", "-f", "-")
	return err
}
