package v1alpha1_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

// kept is what skills keep elsewhere, for all of them the same.
func kept(files map[string]string) v1alpha1.SkillFiles {
	return func(harness.AgentName, v1alpha1.Skill) (map[string][]byte, string, *v1alpha1.Problem) {
		all := map[string][]byte{}
		for name, text := range files {
			all[name] = []byte(text)
		}
		return all, "", nil
	}
}

const skillHead = head + "spec:\n  skills:\n    items:\n      - name: csv\n"

func TestSkillsOfARevision(t *testing.T) {
	d := read(t, skillHead+"        text: |\n          ---\n          name: csv\n          description: >\n            For tables,\n            of any size.\n          license: none\n          ---\n          # Tables\n\n          Read them.\n      - name: all\n        description: More.\n        folder: f\n")
	if problems := d.Validate(v1alpha1.DefaultLimits()); len(problems) > 0 {
		t.Fatal(problems)
	}
	files := map[string]string{"SKILL.md": "\ufeff---\r\ndescription: unused\r\n---\r\nDo it.\r\n", "b/x.sh": "echo \xff\x00", "a.txt": ""}
	skills, contents, problems := d.Skills(kept(files))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	want := []harness.SkillContent{
		{Instructions: "# Tables\n\nRead them."},
		{Instructions: "Do it.", Files: []harness.SkillFile{{Path: "a.txt", Data: []byte{}}, {Path: "b/x.sh", Data: []byte("echo \xff\x00")}}},
	}
	if diff := cmp.Diff(want, contents); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]harness.Skill{{Name: "csv", Description: "For tables, of any size.", Digest: want[0].Digest()}, {Name: "all", Description: "More.", Digest: want[1].Digest()}}, skills); diff != "" {
		t.Error(diff)
	}
	files["a.txt"] = "x"
	if changed, _, _ := d.Skills(kept(files)); changed[1].Digest == skills[1].Digest || changed[0].Digest != skills[0].Digest {
		t.Errorf("a file changed: %v, then %v", skills, changed)
	}
	off := read(t, strings.Replace(skillHead, "items:", "enabled: false\n    items:", 1)+"        folder: f\n")
	if skills, contents, problems := off.Skills(nil); skills != nil || contents != nil || problems != nil {
		t.Errorf("a block that is off: %v, %v, %v", skills, contents, problems)
	}
}

func TestSkillsThatAreRefused(t *testing.T) {
	const good = "---\nname: csv\ndescription: d\n---\nDo it."
	many, large := map[string]string{"SKILL.md": good}, strings.Repeat("x", harness.MaxSkillBytes)
	for i := range harness.MaxSkillFiles {
		many[fmt.Sprint(i)] = ""
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"good":             {map[string]string{"SKILL.md": good, "a..b/c d": "", "ä/_": ""}, ""},
		"deep":             {map[string]string{"SKILL.md": good, "1/2/3/4/5/6": ""}, ""},
		"no SKILL.md":      {map[string]string{"skill.md": good}, "folder has no SKILL.md"},
		"nothing":          {nil, "folder has no SKILL.md"},
		"climbs":           {map[string]string{"SKILL.md": good, "../x": ""}, `folder has a file "../x"`},
		"absolute":         {map[string]string{"SKILL.md": good, "/x": ""}, `folder has a file "/x"`},
		"empty name":       {map[string]string{"SKILL.md": good, "a//x": ""}, `folder has a file "a//x"`},
		"line in a name":   {map[string]string{"SKILL.md": good, "a\nb": ""}, `folder has a file "a\nb"`},
		"no UTF-8":         {map[string]string{"SKILL.md": good, "a\xff": ""}, `folder has a file "a\xff"`},
		"backslash":        {map[string]string{"SKILL.md": good, `a\b`: ""}, `folder has a file "a\\b"`},
		"too deep":         {map[string]string{"SKILL.md": good, "1/2/3/4/5/6/7": ""}, `folder has a file "1/2/3/4/5/6/7"`},
		"file and folder":  {map[string]string{"SKILL.md": good, "a": "", "a/b/c": ""}, `folder has "a" as a file and as a folder`},
		"too many":         {many, "folder has 65 files: keep at most 64"},
		"too large":        {map[string]string{"SKILL.md": good, "x": large}, fmt.Sprintf("folder has %d bytes", len(good)+len(large))},
		"long SKILL.md":    {map[string]string{"SKILL.md": good + large[:harness.MaxSkillInstructions]}, "folder has a SKILL.md of over 65536 bytes"},
		"no end":           {map[string]string{"SKILL.md": "---\nname: csv\n"}, "folder has a SKILL.md whose front matter does not end"},
		"no YAML":          {map[string]string{"SKILL.md": "---\nname: [\n---\nx"}, "folder has a SKILL.md whose front matter is not YAML"},
		"no texts":         {map[string]string{"SKILL.md": "---\nname: {a: b}\n---\nx"}, "folder has a SKILL.md whose front matter is not YAML"},
		"another name":     {map[string]string{"SKILL.md": "---\nname: tsv\ndescription: d\n---\nx"}, `folder has a SKILL.md of the name "tsv"`},
		"no instructions":  {map[string]string{"SKILL.md": "---\nname: csv\ndescription: d\n---\n \n"}, "folder has a SKILL.md without instructions"},
		"binary":           {map[string]string{"SKILL.md": "x\x00"}, "folder has a SKILL.md that is no text"},
		"no description":   {map[string]string{"SKILL.md": "Do it."}, "description is missing: say when to use the skill"},
		"long description": {map[string]string{"SKILL.md": "---\ndescription: " + large[:1025] + "\n---\nx"}, "folder has a description of over 1024 bytes"},
	} {
		_, _, problems := read(t, skillHead+"        folder: f\n").Skills(kept(c.files))
		if got := problems.Error(); (c.want == "") != (got == "") || !strings.Contains(got, "spec.skills.items[0]."+c.want) && got != "" {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	var five strings.Builder
	for i := range 5 {
		fmt.Fprintf(&five, "      - {name: s%d, description: d, folder: f}\n", i)
	}
	_, _, problems := read(t, head+"spec:\n  skills:\n    items:\n"+five.String()).Skills(kept(map[string]string{"SKILL.md": "x", "x": large[1:]}))
	if len(problems) != 1 || problems[0].String() != "document 1, line 12: spec.skills.items[4] makes the agent's skills larger than 1048576 bytes: remove files or skills" {
		t.Errorf("five large ones: %v", problems)
	}
}
