package harness

// BlockSkills is the block of an agent whose texts the model loads by ToolLoadSkill.
const BlockSkills = "skills"

// ToolLoadSkill is the tool by which a model reads a skill.
const ToolLoadSkill = "loadSkill"

// SkillManifest is the file of a skill that says what it is: YAML front matter
// with name and description, then the instructions.
const SkillManifest = "SKILL.md"

// What skills may hold, SKILL.md counted with the other files. Instructions go to
// the model whole; the rest is read only when a sandbox needs it.
const (
	MaxSkillFiles        = 64
	MaxSkillBytes        = 256 << 10 // of one skill
	MaxSkillInstructions = 64 << 10  // bytes of SKILL.md
	MaxAgentSkillBytes   = 1 << 20   // of all skills of an agent
)

// Skill is what a revision says of a skill: all that a model sees of it before it
// asks. What it holds is stored apart, by its digest.
type Skill struct {
	Name        string `json:"name"`
	Description string `json:"description"` // one line
	Digest      string `json:"digest"`      // of the SkillContent

	// Image is the image that it is from, with the digest its tag had; empty: none.
	Image string `json:"image,omitempty"`
}

// SkillContent is what a skill holds. It never changes: another content has
// another digest.
type SkillContent struct {
	Instructions string
	Files        []SkillFile // beside SKILL.md, by path
}

// SkillFile is one file of a skill.
type SkillFile struct {
	Path string // below the skill's folder, with slashes; safe to be joined
	Data []byte
}

// Digest names the content by its bytes.
func (c SkillContent) Digest() string { return digestOf(c) }

// SkillFolder is where the files of a skill are in a sandbox, below /workspace.
func SkillFolder(name string) string { return "skills/" + name }
