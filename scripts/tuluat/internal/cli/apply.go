package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tuluat.ai/harness/scripts/tuluat/internal/api"
	"tuluat.ai/harness/scripts/tuluat/internal/manifest"
)

func newApply(sys System) *cobra.Command {
	m := &manager{sys: sys}
	a := &applying{m: m}
	w := waiting{sys: sys}
	var f format
	cmd := &cobra.Command{
		Use:   "apply -f FILE|FOLDER|-",
		Short: "Create or replace agents and workflows from YAML",
		Long: `Create or replace agents and workflows from YAML: files of one or several
documents, folders of files, or standard input.

Everything is checked by the system before anything is written: if one document
is refused, none is applied. What is the same already is left alone. Labels and
annotations of other tools (those with a prefix that is not tuluat.ai) stay.`,
		Example: "  tuluat apply -f agents/\n  tuluat apply -f python-coder.yaml --wait\n  tuluat get agent a -o yaml | sed s/512Mi/1Gi/ | tuluat apply -f - --dry-run",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringSliceVarP(&a.files, "filename", "f", nil, "a file, a folder, or - for standard input; may be repeated")
	cmd.Flags().BoolVar(&a.dryRun, "dry-run", false, "only have the system check it, and say what would be done")
	f.flag(cmd)
	w.flags(cmd, "wait until everything is READY")
	before(cmd, func() error {
		if len(a.files) == 0 {
			return errors.New("say what to apply with -f")
		}
		if a.dryRun && w.wait {
			return errors.New("--wait has no meaning with --dry-run")
		}
		return nil
	})
	cmd.RunE = m.run(func(ctx context.Context, _ []string) error {
		all, err := a.run(ctx, f == asTable)
		if err != nil {
			return err
		}
		if err := w.until(ctx, m.client, all); err != nil {
			return err
		}
		if f == asTable {
			return nil
		}
		results := make([]api.Item[api.Object], len(all))
		for i, one := range all {
			if results[i], err = one.result, error(nil); w.wait {
				results[i], err = m.client.Object(ctx, one.kind, one.name)
			}
			if err != nil {
				return err
			}
		}
		return f.write(sys.Stdout, results)
	})
	return cmd
}

// applying is one apply.
type applying struct {
	m      *manager
	files  []string
	dryRun bool
}

// applied is one document and what becomes of it.
type applied struct {
	kind     api.Kind
	name     string
	document manifest.Document
	send     api.Document
	there    api.Object
	version  string // of what is there; empty: nothing is
	same     bool
	result   api.Item[api.Object]
	old      *api.Object // what was there and was replaced
	wrote    time.Time
}

// refusals are documents that the system does not take.
type refusals struct{ texts []string }

func (e *refusals) Error() string { return strings.Join(e.texts, "\n") }

func (a *applying) run(ctx context.Context, say bool) ([]applied, error) {
	read, err := manifest.Read(a.files, a.m.sys.Stdin, api.Agents.Name, api.Workflows.Name)
	if err != nil {
		return nil, err
	}
	for _, s := range read.Skipped {
		fmt.Fprintln(a.m.sys.Stderr, "Skipped "+visible(s)+".")
	}
	all := make([]applied, len(read.Documents))
	refused := &refusals{}
	for i, d := range read.Documents {
		all[i] = applied{kind: api.Agents, name: d.Name, document: d}
		if d.Kind == api.Workflows.Name {
			all[i].kind = api.Workflows
		}
		if err := a.check(ctx, &all[i]); err != nil {
			p, ok := errors.AsType[*api.Problem](err)
			if !ok || p.Status != http.StatusUnprocessableEntity && p.Status != http.StatusBadRequest {
				return nil, &aboutError{d.File + ": " + all[i].kind.Noun + " " + d.Name, err}
			}
			refused.add(d, p)
		}
	}
	if len(refused.texts) > 0 {
		refused.texts = append(refused.texts, "Nothing was applied.")
		return nil, refused
	}
	for i := range all {
		did, err := a.write(ctx, &all[i])
		if err != nil {
			return nil, &aboutError{all[i].document.File + ": " + all[i].kind.Noun + " " + all[i].name, err}
		}
		if a.dryRun {
			did += " (dry run)"
		}
		if say {
			fmt.Fprintf(a.m.sys.Stdout, "%s/%s %s\n", all[i].kind.Noun, visible(all[i].name), did)
		}
	}
	return all, nil
}

// add notes what is wrong with a document, field by field, with the lines.
func (e *refusals) add(d manifest.Document, p *api.Problem) {
	if len(p.Errors) == 0 {
		e.texts = append(e.texts, fmt.Sprintf("%s:%d: %s", d.File, d.Line, p.Detail))
	}
	for _, f := range p.Errors {
		e.texts = append(e.texts, fmt.Sprintf("%s: %s: %s", d.Where(f.Pointer), field(f.Pointer), f.Detail))
	}
}

// check has the system look at a document, and finds whether it changes anything.
func (a *applying) check(ctx context.Context, one *applied) error {
	one.send = api.Document{Type: "application/yaml", Text: one.document.Text}
	there, err := a.m.client.Object(ctx, one.kind, one.name)
	if p, ok := errors.AsType[*api.Problem](err); ok && p.Status == http.StatusNotFound {
		one.result, err = a.m.client.Create(ctx, one.kind, one.send, true)
		return err
	}
	if err != nil {
		return err
	}
	one.there, one.version = there.View, there.View.Version()
	if err := one.keep(there.View.Metadata); err != nil {
		return err
	}
	one.result, err = a.m.client.Update(ctx, one.kind, one.name, one.version, one.send, true)
	if err != nil {
		return err
	}
	one.same, err = same(there.View, one.result.View)
	return err
}

// write does what check found.
func (a *applying) write(ctx context.Context, one *applied) (did string, err error) {
	switch {
	case one.same:
		return "unchanged", nil
	case one.version == "":
		did = "created"
		if !a.dryRun {
			one.result, err = a.m.client.Create(ctx, one.kind, one.send, false)
		}
	default:
		did = "configured"
		if !a.dryRun {
			one.result, err = a.m.client.Update(ctx, one.kind, one.name, one.version, one.send, false)
			one.old, one.wrote = &one.there, time.Now()
		}
	}
	return did, err
}

// keep adds the labels and annotations that other tools have given the object
// that is there. A document with nothing to keep is sent as it was written.
func (one *applied) keep(there api.Metadata) error {
	labels, annotations := foreign(there.Labels, one.document.Labels), foreign(there.Annotations, one.document.Annotations)
	if len(labels)+len(annotations) == 0 {
		return nil
	}
	object, err := one.document.JSON()
	if err != nil {
		return err
	}
	metadata, _ := object["metadata"].(map[string]any) // it has a name
	for name, kept := range map[string]map[string]string{"labels": labels, "annotations": annotations} {
		all, ok := metadata[name].(map[string]any)
		if !ok {
			all = map[string]any{}
		}
		for key, value := range kept {
			all[key] = value
		}
		if len(all) > 0 {
			metadata[name] = all
		}
	}
	one.send.Type = "application/json"
	one.send.Text, err = json.Marshal(object)
	return err
}

// foreign are those of other tools that the document does not speak of.
func foreign(there, document map[string]string) map[string]string {
	kept := map[string]string{}
	for key, value := range there {
		owner, _, prefixed := strings.Cut(key, "/")
		if _, said := document[key]; prefixed && !said && owner != "tuluat.ai" && !strings.HasSuffix(owner, ".tuluat.ai") {
			kept[key] = value
		}
	}
	return kept
}

// same reports whether two objects say the same.
func same(a, b api.Object) (bool, error) {
	var specs [2]any
	for i, spec := range []json.RawMessage{a.Spec, b.Spec} {
		if len(spec) == 0 {
			continue
		}
		if err := json.Unmarshal(spec, &specs[i]); err != nil {
			return false, err
		}
	}
	return reflect.DeepEqual(specs[0], specs[1]) && alike(a.Metadata.Labels, b.Metadata.Labels) && alike(a.Metadata.Annotations, b.Metadata.Annotations), nil
}

func alike(a, b map[string]string) bool {
	return len(a) == 0 && len(b) == 0 || reflect.DeepEqual(a, b)
}
