package status

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/postgres"
)

// Folder is a source of agents: every *.yaml, *.yml and *.json file directly in
// one folder, names that begin with a dot left out (editors and mounted
// ConfigMaps use them).
type Folder struct {
	Path   string
	Limits v1alpha1.Limits
	Images func() SkillImages // begins a look at the images of skills
}

// Found is what a source says now.
type Found struct {
	Texts     []postgres.AgentText
	Broken    []postgres.BrokenSource
	Resources []Resource // of a cluster: whose status is to be written
	Workflows []postgres.WorkflowText
	Unlisted  bool     // the workflows could not be read: those there were are kept
	Warnings  []string // for the log: what no agent's status can show
}

// Read returns what the folder says. A wrong document spoils only its own agent
// and a wrong file only the agents it defines. An error says that the folder
// itself cannot be read: then nothing is known, which is not "no agents".
func (f Folder) Read(ctx context.Context) (Found, error) {
	entries, err := os.ReadDir(f.Path)
	if err != nil {
		return Found{}, harness.Wrap(harness.Unavailable, err, "the folder of agents cannot be read")
	}
	var found Found
	images := f.Images()
	skills := f.skills(ctx, images)
	for _, entry := range entries {
		if name := entry.Name(); !strings.HasPrefix(name, ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			found.file(filepath.Join(f.Path, name), name, f.Limits, skills)
		}
	}
	found.Warnings = append(found.Warnings, images.Warnings()...)
	return found, nil
}

// file adds what one file says.
func (f *Found) file(path, name string, limits v1alpha1.Limits, skills v1alpha1.SkillFiles) {
	text, err := readFile(path)
	if err != nil { // perhaps it is just being replaced: its agents stay as they are
		f.broken(name, "", fmt.Sprintf("%s cannot be read: %v", name, err))
		return
	}
	if len(bytes.TrimSpace(text)) == 0 { // an editor empties a file before it writes it
		f.broken(name, "", name+" is empty")
		return
	}
	documents, err := v1alpha1.Read(text)
	if err != nil {
		f.broken(name, name+": "+harness.MessageOf(err), name+": "+harness.MessageOf(err))
	}
	for _, d := range documents {
		f.document(name, d, limits, skills)
	}
}

func (f *Found) document(file string, d v1alpha1.Document, limits v1alpha1.Limits, skills v1alpha1.SkillFiles) {
	problems := d.Validate(limits)
	if slices.ContainsFunc(problems, unnamed) {
		// No agent to put the blame on, so those the file defined before keep
		// their last good text and show why it is the last.
		f.broken(file, file+": "+problems.Error(), file+": "+problems.Error())
		return
	}
	if d.Kind == v1alpha1.KindWorkflow {
		f.Workflows = append(f.Workflows, WorkflowText(d, problems, file, file+": "))
		return
	}
	f.Texts = append(f.Texts, Text(d, problems, file, file+": ", limits, skills))
}

// WorkflowText is what a document that names its workflow says of it. prefix goes
// before what is wrong with it.
func WorkflowText(d v1alpha1.Document, problems v1alpha1.Problems, source, prefix string) postgres.WorkflowText {
	flow := d.Workflow.Workflow()
	text := postgres.WorkflowText{Name: flow.Name, Source: source}
	if len(problems) == 0 {
		text.Workflow = &flow
	} else {
		text.Reason = prefix + problems.Error()
	}
	return text
}

// Text is what a document that names its agent says of it, and what its skills
// hold, which read reads. prefix goes before what is wrong with it.
func Text(d v1alpha1.Document, problems v1alpha1.Problems, source, prefix string, limits v1alpha1.Limits, read v1alpha1.SkillFiles) postgres.AgentText {
	agent := d.Agent.Agent()
	var skills []harness.SkillContent
	if len(problems) == 0 {
		agent.Skills, skills, problems = d.Skills(read)
	}
	for i, c := range agent.Harness.Channels {
		if c.Type == harness.ChannelWhatsApp && c.Account == "" {
			agent.Harness.Channels[i].Account = limits.PhoneNumberID
		}
	}
	text := postgres.AgentText{Name: agent.Name, Source: source}
	if len(problems) == 0 {
		text.Agent, text.Skills = &agent, skills
		return text
	}
	text.Reason = prefix + problems.Error()
	if h := d.Agent.Spec.Harness; h != nil && h.Enabled != nil {
		text.Off = !*h.Enabled
	}
	if agent.Harness.CanChat() && !slices.ContainsFunc(problems, reaches) {
		text.Channels = agent.Harness.Channels
	}
	return text
}

// reaches reports whether p leaves it open how an agent is reached, or by whom.
func reaches(p v1alpha1.Problem) bool {
	return strings.HasPrefix(p.Path, "spec.harness.channels") || strings.HasPrefix(p.Path, "metadata") ||
		slices.Contains([]string{"spec", "spec.harness", "spec.harness.enabled", "spec.harness.type"}, p.Path)
}

// unnamed reports whether p leaves a document without an agent it is about.
func unnamed(p v1alpha1.Problem) bool {
	return slices.Contains([]string{"", "apiVersion", "kind", "metadata", "metadata.name"}, p.Path)
}

func (f *Found) broken(source, reason, warning string) {
	f.Broken = append(f.Broken, postgres.BrokenSource{Source: source, Reason: reason})
	f.Warnings = append(f.Warnings, warning)
}

// readFile reads at most a byte more than a file may have. Something that is
// not a regular file is never opened: a pipe would hold the request.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is not a regular file but %s", info.Mode().Type())
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, v1alpha1.MaxFileBytes+1))
}
