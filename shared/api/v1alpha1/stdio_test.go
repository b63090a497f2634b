package v1alpha1_test

import (
	"slices"
	"testing"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

// What the platform allows of registries holds for the images of skills.
func TestWhereSkillsImagesComeFrom(t *testing.T) {
	l := v1alpha1.DefaultLimits()
	l.Images = []string{"ghcr.io/acme"}
	for image, want := range map[string]string{
		"ghcr.io/acme/skills:1":    "",
		"ghcr.io/acme-other/x":     "document 1, line 9: spec.skills.items[0].imageRef.image is not from a registry that this platform allows: use an image below ghcr.io/acme",
		"registry.example/skills1": "document 1, line 9: spec.skills.items[0].imageRef.image is not from a registry that this platform allows: use an image below ghcr.io/acme",
	} {
		d := read(t, skillHead+"        imageRef: {image: "+image+"}\n")
		if got := d.Validate(l).Error(); got != want {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
}

// A revision says which image a skill is of, so that another digest is another one.
func TestTheImageOfASkillIsInTheRevision(t *testing.T) {
	d := read(t, skillHead+"        description: d\n        imageRef: {image: r/csv:1}\n")
	skills, _, problems := d.Skills(func(agent harness.AgentName, s v1alpha1.Skill) (map[string][]byte, string, *v1alpha1.Problem) {
		return map[string][]byte{harness.SkillManifest: []byte("Do it.")}, s.ImageRef.Image + "@sha256:1", nil
	})
	if len(problems) > 0 || len(skills) != 1 || skills[0].Image != "r/csv:1@sha256:1" {
		t.Errorf("%+v, %v", skills, problems)
	}
}

func TestServersThatArePrograms(t *testing.T) {
	const servers = "servers: [{name: p, command: [serve, \"it's\", \"\\u0007\"], env: [{name: A, value: \"x y\"}, {name: B}]}]}\n  harness: {type: CODE, enabled: false}\n"
	d := read(t, head+"spec:\n  mcpServers: {"+servers)
	if problems := d.Validate(v1alpha1.DefaultLimits()); len(problems) > 0 { // a harness may be switched off at any time
		t.Fatal(problems)
	}
	got := d.Agent.Agent().MCPServers[0]
	if !got.Stdio() || got.Program() != "A='x y' B='' serve 'it'\\''s' '\x07'" || got.Remote("t").Program != got.Program() || got.URL != "" {
		t.Errorf("%+v, %s", got, got.Program())
	}
	other := got
	if other.Env = slices.Clone(got.Env); other.Digest() != got.Digest() {
		t.Error("the same settings have two digests")
	}
	if other.Env[0].Value = "z"; other.Digest() == got.Digest() || other.Remote("t") == got.Remote("t") {
		t.Error("another variable changes nothing")
	}
	if off := read(t, head+"spec:\n  mcpServers: {enabled: false, "+servers); off.Agent.Agent().MCPServers != nil {
		t.Error("a block that is off leaves something")
	}
}
