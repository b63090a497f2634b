package v1alpha1

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"tuluat.ai/harness/shared/harness"
)

// SkillFiles reads the files of an agent's skill that is kept elsewhere, by their
// paths below its folder, and the image they are from, where that is one, with its
// digest. What is wrong is a Problem, with a path below the skill.
type SkillFiles func(agent harness.AgentName, s Skill) (files map[string][]byte, image string, problem *Problem)

// Skills returns the skills of the agent, as its revision has them, and what they
// hold. A block that is off has none. d must have passed Validate.
func (d Document) Skills(read SkillFiles) ([]harness.Skill, []harness.SkillContent, Problems) {
	b := d.Agent.Spec.Skills
	if b == nil || !or(b.Enabled, true) {
		return nil, nil, nil
	}
	var skills []harness.Skill
	var contents []harness.SkillContent
	var problems Problems
	total := 0
	for i, s := range b.Items {
		at := fmt.Sprintf("spec.skills.items[%d]", i)
		skill, content, problem := s.content(harness.AgentName(d.Agent.Metadata.Name), read)
		for _, f := range content.Files {
			total += len(f.Data)
		}
		total += len(content.Instructions)
		if problem == nil && total > harness.MaxAgentSkillBytes {
			problem = &Problem{What: fmt.Sprintf("makes the agent's skills larger than %d bytes", harness.MaxAgentSkillBytes), Fix: "remove files or skills"}
		}
		if problem != nil {
			field := strings.TrimSuffix(at+"."+problem.Path, ".")
			problems.Add(Problem{Document: d.Number, Line: d.line(field), Path: field, What: problem.What, Fix: problem.Fix})
			if total > harness.MaxAgentSkillBytes {
				break
			}
			continue
		}
		skills, contents = append(skills, skill), append(contents, content)
	}
	if len(problems) > 0 {
		return nil, nil, problems
	}
	return skills, contents, nil
}

// content is what the skill holds, or what is wrong with it.
func (s Skill) content(agent harness.AgentName, read SkillFiles) (harness.Skill, harness.SkillContent, *Problem) {
	files, image, source := map[string][]byte{harness.SkillManifest: []byte(s.Text)}, "", "text"
	switch {
	case s.ConfigMapRef != nil:
		source = "configMapRef"
	case s.Folder != "":
		source = "folder"
	case s.ImageRef != nil:
		source = "imageRef"
	}
	if source != "text" {
		var problem *Problem
		if files, image, problem = read(agent, s); problem != nil {
			return harness.Skill{}, harness.SkillContent{}, problem
		}
	}
	wrong := func(what, fix string) (harness.Skill, harness.SkillContent, *Problem) {
		return harness.Skill{}, harness.SkillContent{}, &Problem{Path: source, What: what, Fix: fix}
	}
	manifest, written := files[harness.SkillManifest]
	if !written {
		return wrong("has no SKILL.md", "add it: front matter with name and description, then the instructions")
	}
	if what, fix := tooMuch(files); what != "" {
		return wrong(what, fix)
	}
	front, instructions, what := splitManifest(manifest)
	if what != "" {
		return wrong(what, "mend SKILL.md: it begins with front matter between two lines ---, or with the instructions")
	}
	if front.Name != "" && front.Name != string(s.Name) {
		return wrong(fmt.Sprintf("has a SKILL.md of the name %q", front.Name), "give the skill one name in both places")
	}
	skill := harness.Skill{Name: string(s.Name), Image: image, Description: strings.Join(strings.Fields(harness.CleanText(s.Description)), " ")}
	if skill.Description == "" {
		skill.Description = strings.Join(strings.Fields(harness.CleanText(front.Description)), " ")
	}
	switch {
	case skill.Description == "":
		return harness.Skill{}, harness.SkillContent{}, &Problem{Path: "description", What: "is missing", Fix: "say when to use the skill, here or in the front matter of SKILL.md"}
	case len(skill.Description) > maxSkillDescription:
		return wrong(fmt.Sprintf("has a description of over %d bytes", maxSkillDescription), "say only when to use it")
	}
	content := harness.SkillContent{Instructions: instructions}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if name != harness.SkillManifest {
			content.Files = append(content.Files, harness.SkillFile{Path: name, Data: files[name]})
		}
	}
	skill.Digest = content.Digest()
	return skill, content, nil
}

const (
	maxSkillDescription = 1024
	maxSkillPath        = 255 // bytes
	maxSkillDepth       = 6   // names of a path: a sandbox takes two more
)

// tooMuch says what of files a skill may not have.
func tooMuch(files map[string][]byte) (what, fix string) {
	if len(files) > harness.MaxSkillFiles {
		return fmt.Sprintf("has %d files", len(files)), fmt.Sprintf("keep at most %d", harness.MaxSkillFiles)
	}
	total := 0
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !fs.ValidPath(name) || name == "." || len(name) > maxSkillPath || strings.Count(name, "/") >= maxSkillDepth || strings.ContainsFunc(name, unsafe) {
			return fmt.Sprintf("has a file %q", name), fmt.Sprintf("use relative paths of at most %d bytes and %d names, without .. and control characters", maxSkillPath, maxSkillDepth)
		}
		for folder := path.Dir(name); folder != "."; folder = path.Dir(folder) {
			if _, taken := files[folder]; taken {
				return fmt.Sprintf("has %q as a file and as a folder", folder), "rename one of them"
			}
		}
		total += len(files[name])
	}
	if total > harness.MaxSkillBytes {
		return fmt.Sprintf("has %d bytes", total), fmt.Sprintf("keep at most %d", harness.MaxSkillBytes)
	}
	if len(files[harness.SkillManifest]) > harness.MaxSkillInstructions {
		return fmt.Sprintf("has a SKILL.md of over %d bytes", harness.MaxSkillInstructions), "move what is not always needed to other files"
	}
	return "", ""
}

// unsafe reports whether r is not for a file's name: it breaks lines, or separates
// folders elsewhere.
func unsafe(r rune) bool { return unicode.IsControl(r) || r == '\\' || r == utf8.RuneError }

// frontMatter is what is read of the head of a SKILL.md. It may say more.
type frontMatter struct {
	Name        string `yaml:"name"`
	Description string `yaml:"description"`
}

// splitManifest returns the two parts of a SKILL.md, or what is wrong with it.
func splitManifest(file []byte) (front frontMatter, instructions, wrong string) {
	file = bytes.ReplaceAll(bytes.TrimPrefix(file, []byte("\ufeff")), []byte("\r\n"), []byte("\n"))
	text := string(file)
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return front, "", "has a SKILL.md that is no text"
	}
	if head, begins := strings.CutPrefix(text, "---\n"); begins {
		head, rest, ends := strings.Cut("\n"+head+"\n", "\n---\n")
		if !ends {
			return front, "", "has a SKILL.md whose front matter does not end"
		}
		if yaml.Unmarshal([]byte(head), &front) != nil {
			return front, "", "has a SKILL.md whose front matter is not YAML with texts name and description"
		}
		text = rest
	}
	if instructions = strings.TrimSpace(text); instructions == "" {
		return front, "", "has a SKILL.md without instructions"
	}
	return front, instructions, ""
}
