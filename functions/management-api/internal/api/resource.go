package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	goyaml "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/harness/view"
	"tuluat.ai/harness/shared/resource"
)

// resources serves one kind of resource. What a resource may say is validated
// where it is kept, with field paths.
type resources struct {
	*api
	kind  string
	word  string // access.Agents or Workflows
	path  string // below prefix
	stand func(ctx context.Context, items []resource.Resource) error
}

type (
	// NameInput names a resource.
	NameInput struct {
		Name string `path:"name" maxLength:"63" pattern:"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" patternDescription:"a DNS label: small letters, digits and - in between"`
	}
	// MatchInput says which version is meant.
	MatchInput struct {
		Match string `header:"If-Match" maxLength:"256" doc:"the ETag of the version that is meant, or *"`
	}
	// DryRunInput says whether anything is to change.
	DryRunInput struct {
		DryRun bool `query:"dryRun" doc:"only check, and answer as if it had been done"`
	}
	// DocumentInput is a whole resource.
	DocumentInput struct {
		DryRunInput
		ContentType string `header:"Content-Type" hidden:"true"`
		RawBody     []byte `contentType:"application/json"`
	}
	getInput struct {
		NameInput
		Accept string `header:"Accept" hidden:"true"`
	}
	createInput struct {
		KeyInput
		DocumentInput
	}
	replaceInput struct {
		NameInput
		MatchInput
		DocumentInput
	}
	deleteInput struct {
		NameInput
		MatchInput
		DryRunInput
	}
	resourceOutput struct {
		ETag        string `header:"ETag" doc:"of this version, for If-Match"`
		ContentType string `header:"Content-Type" hidden:"true"`
		Body        any
	}
	createdOutput struct {
		Location string `header:"Location" doc:"of the resource"`
		ETag     string `header:"ETag" doc:"of this version, for If-Match"`
		Body     any
	}
	emptyOutput struct{}
)

const (
	typeJSON = "application/json"
	typeYAML = "application/yaml"
)

func etag(version string) string { return `"` + version + `"` }

// output answers with a resource.
func (s *resources) output(ctx context.Context, r resource.Resource) (*resourceOutput, error) {
	one := []resource.Resource{r}
	if err := s.stand(ctx, one); err != nil {
		return nil, err
	}
	return &resourceOutput{ETag: etag(r.Version), Body: one[0].Object}, nil
}

// match is which versions are meant.
type match struct {
	any      bool
	versions []string
	weak     bool // weak ETags are among what was sent: they match nothing
}

const matchPointer = "header/If-Match"

// read reads If-Match as RFC 9110 has it: *, or a list of ETags.
func (m MatchInput) read() (match, error) {
	rest := strings.Trim(m.Match, ", \t")
	switch rest {
	case "":
		return match{}, refuse(http.StatusPreconditionRequired, "the header If-Match is needed: the ETag of the version that is meant, or * for any",
			view.ProblemField{Pointer: matchPointer, Detail: "is missing"})
	case "*":
		return match{any: true}, nil
	}
	var read match
	for rest != "" {
		tag, weak := strings.CutPrefix(rest, "W/")
		opened, ok := strings.CutPrefix(tag, `"`)
		version, behind, closed := strings.Cut(opened, `"`)
		behind = strings.TrimLeft(behind, " \t")
		if !ok || !closed || behind != "" && behind[0] != ',' {
			return match{}, refuseField(matchPointer, `is neither an ETag nor several: write it like "123", with its quotes, or *`)
		}
		if rest = strings.TrimLeft(behind, ", \t"); weak {
			read.weak = true
		} else {
			read.versions = append(read.versions, version)
		}
	}
	return read, nil
}

// check refuses a resource that is of no version that is meant. ETags are compared
// strongly: a weak one does not say that it is this very version.
func (m match) check(r resource.Resource) error {
	switch {
	case m.any || slices.Contains(m.versions, r.Version):
		return nil
	case m.weak:
		return refuse(http.StatusPreconditionFailed, "a weak ETag, as W/\"123\", matches no version: send the ETag as it was answered",
			view.ProblemField{Pointer: matchPointer, Detail: "is weak"})
	}
	return harness.Errorf(harness.Stale, "it has been changed since: get it again")
}

// read returns the body as a resource of kind, and named name unless that is
// empty.
func (d DocumentInput) read(kind, name string) (resource.Resource, error) {
	r := resource.Resource{Kind: kind, Object: d.RawBody}
	media, _, err := mime.ParseMediaType(cmp.Or(d.ContentType, typeJSON))
	switch {
	case err == nil && media == typeJSON:
	case err == nil && media == typeYAML:
		r.YAML = bytes.Clone(d.RawBody)
		if r.Object, err = yaml.YAMLToJSONStrict(d.RawBody); err == nil {
			err = oneDocument(d.RawBody)
		}
		if errors.Is(err, errDocuments) {
			return r, refuseField("#", "has more than one document: send each by itself")
		} else if err != nil {
			return r, refuse(http.StatusBadRequest, "the body is not YAML of one resource", view.ProblemField{Pointer: "#", Detail: "is not YAML, or has a key twice"})
		}
	default:
		return r, refuse(http.StatusUnsupportedMediaType, "the body must be "+typeJSON+" or "+typeYAML)
	}
	if err := checkKeys(r.Object); err != nil {
		return r, refuse(http.StatusBadRequest, "the body is not JSON of one resource", view.ProblemField{Pointer: "#", Detail: err.Error()})
	}
	var head map[string]json.RawMessage // a struct would take any case
	if err := json.Unmarshal(r.Object, &head); err != nil {
		if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return r, refuseField("#", "is not an object")
		}
		return r, refuse(http.StatusBadRequest, "the body is not JSON", view.ProblemField{Pointer: "#", Detail: "is not JSON"})
	}
	var metadata struct {
		Name string `json:"name"`
	}
	// What has another type is found by whoever validates the whole of it.
	_ = json.Unmarshal(head["metadata"], &metadata)
	var said string
	if json.Unmarshal(head["kind"], &said) == nil && said != "" && said != kind {
		return r, refuseField("#/kind", "is not "+kind+", which this path is of")
	}
	if name != "" && metadata.Name != name {
		return r, refuseField("#/metadata/name", "is not the name in the path")
	}
	r.Name, r.Object = metadata.Name, bytes.Clone(r.Object)
	return r, nil
}

var errDocuments = errors.New("more than one document")

// oneDocument looks behind the first, where a reader of one stops.
func oneDocument(text []byte) error {
	decoder := goyaml.NewDecoder(bytes.NewReader(text))
	var document goyaml.Node
	if err := decoder.Decode(&document); err != nil {
		return err
	}
	if err := decoder.Decode(&document); !errors.Is(err, io.EOF) {
		return cmp.Or(err, errDocuments)
	}
	return nil
}

func (s *resources) get(ctx context.Context, in *getInput) (*resourceOutput, error) {
	r, err := s.Resources.Get(ctx, s.kind, in.Name)
	if err != nil {
		return nil, err
	}
	if strings.Contains(in.Accept, typeYAML) && len(r.YAML) > 0 {
		return &resourceOutput{ETag: etag(r.Version), ContentType: typeYAML, Body: r.YAML}, nil
	}
	return s.output(ctx, r)
}

func (s *resources) create(ctx context.Context, in *createInput) (*createdOutput, error) {
	r, err := in.read(s.kind, "")
	switch {
	case err != nil:
	case in.DryRun:
		r, err = s.Resources.Create(ctx, r, true)
	case in.Key == "":
		r, err = s.add(ctx, r, "", "")
	default:
		r, err = s.add(ctx, r, s.identity(ctx, in.Key), digest(s.kind+"\x00"+string(in.RawBody)))
	}
	if err != nil {
		return nil, err
	}
	out, err := s.output(ctx, r)
	if err != nil {
		return nil, err
	}
	return &createdOutput{Location: location(s.path, r.Name), ETag: out.ETag, Body: out.Body}, nil
}

func (s *resources) replace(ctx context.Context, in *replaceInput) (*resourceOutput, error) {
	m, err := in.MatchInput.read()
	if err != nil {
		return nil, err
	}
	sent, err := in.DocumentInput.read(s.kind, in.Name)
	if err != nil {
		return nil, err
	}
	r, err := s.change(ctx, by(ctx, access.Update, s.word), in.Name, m, in.DryRun, func(is resource.Resource, dryRun bool) (resource.Resource, error) {
		sent.Version = is.Version
		return s.Resources.Update(ctx, sent, dryRun)
	})
	if err != nil {
		return nil, err
	}
	return s.output(ctx, r)
}

func (s *resources) delete(ctx context.Context, in *deleteInput) (*emptyOutput, error) {
	m, err := in.read()
	if err != nil {
		return nil, err
	}
	_, err = s.change(ctx, by(ctx, access.Delete, s.word), in.Name, m, in.DryRun, func(is resource.Resource, dryRun bool) (resource.Resource, error) {
		if dryRun {
			return resource.Resource{}, nil
		}
		return resource.Resource{}, s.Resources.Delete(ctx, s.kind, in.Name, is.Version)
	})
	return nil, err
}

// fieldsOf are the fields that err is about.
func fieldsOf(err error) []view.ProblemField {
	invalid, ok := errors.AsType[*resource.Invalid](err)
	if !ok {
		return nil
	}
	var fields []view.ProblemField
	for _, p := range invalid.Problems {
		detail := p.What
		if p.Fix != "" {
			detail += ": " + p.Fix
		}
		fields = append(fields, view.ProblemField{Pointer: fieldPointer(p.Path), Detail: detail})
	}
	return fields
}
