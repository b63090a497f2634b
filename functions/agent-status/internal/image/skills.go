package image

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
	"tuluat.ai/harness/shared/secret"
)

// Store keeps what images held: the function sleeps between two looks.
type Store interface {
	SkillImage(ctx context.Context, agent harness.AgentName, skill, settings string) (postgres.SkillImage, error)
	SkillImageIs(ctx context.Context, agent harness.AgentName, skill, settings string, is postgres.SkillImage) error
	SkillImageFailed(ctx context.Context, agent harness.AgentName, skill, settings, refused, reason string) error
}

// How often a registry is asked, and how long it may take. Every reconcile waits
// for all images, so they have one time together; who comes too late keeps what
// there is until the next tick.
const (
	every    = 50 * time.Second // at each sweep
	onePull  = 10 * time.Second
	allPulls = 20 * time.Second
)

// Skills reads the skills of agents out of images.
type Skills struct {
	Puller  *Puller
	Store   Store
	Secrets secret.Texts
}

// Pass is one look at all images.
type Pass struct {
	*Skills
	until    time.Time
	silent   map[string]bool // registries that did not answer in this pass
	warnings []string
}

// Begin begins a pass: one for each reconcile.
func (s *Skills) Begin() *Pass {
	return &Pass{Skills: s, until: time.Now().Add(allPulls), silent: map[string]bool{}}
}

// Warnings say which skills are of an older look, and why.
func (p *Pass) Warnings() []string { return p.warnings }

// Files returns the files of the agent's skill, and the image they are from with
// its digest. What a registry does not give now is what it gave last.
func (p *Pass) Files(ctx context.Context, agent harness.AgentName, skill v1alpha1.Skill) (map[string][]byte, string, *v1alpha1.Problem) {
	settings := settingsOf(*skill.ImageRef)
	has, err := p.Store.SkillImage(ctx, agent, string(skill.Name), settings)
	if err != nil {
		return nil, "", &v1alpha1.Problem{Path: "imageRef", What: "has a problem that is not the author's", Fix: harness.MessageOf(err)}
	}
	if has.Tried && has.Age < every || has.Digest != "" && strings.Contains(skill.ImageRef.Image, "@") {
		return p.give(skill, has)
	}
	look, looked := p.look(ctx, agent, skill, has)
	switch {
	case !looked && has.Tried:
		return p.give(skill, has)
	case !looked:
		return nil, "", problem("was not pulled yet: other registries took too long", "wait for the next look, a minute from now")
	case look.Reason != "":
		if look.Refused == "" && has.Refused != "" { // what is refused stays so while nobody answers
			look.Refused, look.Reason = has.Refused, has.Reason
		}
		err = p.Store.SkillImageFailed(ctx, agent, string(skill.Name), settings, look.Refused, look.Reason)
		look.Files, look.Digest, look.Confirmed = has.Files, has.Digest, has.Confirmed
	default:
		err = p.Store.SkillImageIs(ctx, agent, string(skill.Name), settings, look)
	}
	if err != nil {
		return nil, "", &v1alpha1.Problem{Path: "imageRef", What: "has a problem that is not the author's", Fix: harness.MessageOf(err)}
	}
	return p.give(skill, look)
}

// give is what is known of the skill.
func (p *Pass) give(skill v1alpha1.Skill, is postgres.SkillImage) (map[string][]byte, string, *v1alpha1.Problem) {
	switch {
	case is.Refused != "":
		return nil, "", problem(is.Reason, "build an image that has only the plain files of the skill there")
	case is.Digest == "":
		return nil, "", problem("cannot be pulled: "+is.Reason, "mend it, or wait: the registry is asked again every minute")
	case is.Reason != "":
		p.warnings = append(p.warnings, fmt.Sprintf("skill %s is of %s, last seen at %s: %s", skill.Name, skill.ImageRef.Image, is.Confirmed.UTC().Format(time.RFC3339), is.Reason))
	}
	return is.Files, pinned(skill.ImageRef.Image, is.Digest), nil
}

// settingsOf are those that decide what a skill is: of others, nothing kept says
// anything.
func settingsOf(ref v1alpha1.SkillImageRef) string {
	from := ""
	if ref.PullSecretRef != nil {
		from = ref.PullSecretRef.Name
	}
	return strings.Join([]string{ref.Image, ref.Path, from}, " ")
}

// pinned is image with the digest it was resolved to.
func pinned(image, digest string) string {
	named, _, _ := strings.Cut(image, "@")
	return named + "@" + digest
}

// look asks the registry. looked is false where there was no time, or its
// registry did not answer another skill just now.
func (p *Pass) look(ctx context.Context, agent harness.AgentName, skill v1alpha1.Skill, has postgres.SkillImage) (_ postgres.SkillImage, looked bool) {
	image := skill.ImageRef.Image
	ref, err := p.Puller.parse(image)
	if err != nil {
		return postgres.SkillImage{Refused: image, Reason: harness.MessageOf(err)}, true
	}
	host, left := ref.Context().RegistryStr(), time.Until(p.until)
	if p.silent[host] || left < time.Second {
		return has, false
	}
	ctx, cancel := context.WithTimeoutCause(ctx, min(onePull, left), fmt.Errorf("pull deadline of %s", onePull))
	defer cancel()
	is, err := p.pull(ctx, agent, skill, ref, has)
	p.silent[host] = ctx.Err() != nil
	switch {
	case harness.KindOf(err) == harness.Invalid:
		is.Refused, is.Reason = is.Digest, harness.MessageOf(err)
	case err != nil:
		is.Reason = harness.MessageOf(err)
	}
	return is, true
}

func (p *Pass) pull(ctx context.Context, agent harness.AgentName, skill v1alpha1.Skill, ref name.Reference, has postgres.SkillImage) (postgres.SkillImage, error) {
	var auth authn.Authenticator
	if secretRef := skill.ImageRef.PullSecretRef; secretRef != nil {
		config, err := p.Secrets.Text(ctx, agent, harness.SecretRef{Name: secretRef.Name, Key: dockerConfigKey})
		if err == nil && config == "" {
			err = harness.Errorf(harness.Unavailable, "its pullSecretRef names %s, and there is no such Secret of type kubernetes.io/dockerconfigjson with the label tuluat.ai/agent-access=%s", secretRef.Name, agent)
		}
		if err == nil {
			auth, err = credentials(config, ref.Context().Name())
		}
		if err != nil {
			return postgres.SkillImage{}, err
		}
	}
	found, err := p.Puller.open(ctx, skill.ImageRef.Image, auth)
	is := postgres.SkillImage{Digest: found.digest}
	switch {
	case err != nil:
		return is, err
	case found.digest == has.Refused:
		return is, harness.Errorf(harness.Invalid, "%s", has.Reason)
	case found.digest == has.Digest:
		is.Files = has.Files
		return is, nil
	}
	is.Files, err = found.files(ctx, skill.ImageRef.Path)
	return is, err
}

func problem(what, fix string) *v1alpha1.Problem {
	return &v1alpha1.Problem{Path: "imageRef", What: what, Fix: fix}
}
