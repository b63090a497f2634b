package status

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

// SkillImages reads skills out of images, at one reconcile.
type SkillImages interface {
	Files(ctx context.Context, agent harness.AgentName, s v1alpha1.Skill) (files map[string][]byte, image string, problem *v1alpha1.Problem)
	Warnings() []string // what is used although it is older than this look
}

// skills implements v1alpha1.SkillFiles, with images for those of images.
func (f Folder) skills(ctx context.Context, images SkillImages) v1alpha1.SkillFiles {
	return func(agent harness.AgentName, s v1alpha1.Skill) (map[string][]byte, string, *v1alpha1.Problem) {
		if s.ImageRef != nil {
			return images.Files(ctx, agent, s)
		}
		files, problem := f.skill(s)
		return files, "", problem
	}
}

// skill reads the files of a folder below that of the agents. Nothing outside of
// that is read, wherever a link leads.
func (f Folder) skill(s v1alpha1.Skill) (map[string][]byte, *v1alpha1.Problem) {
	if s.Folder == "" {
		return nil, &v1alpha1.Problem{Path: "configMapRef", What: "is of agents in a cluster", Fix: "use folder, or text"}
	}
	root, err := os.OpenRoot(f.Path)
	if err != nil {
		return nil, &v1alpha1.Problem{Path: "folder", What: "cannot be read", Fix: "let the function read the folder of the agents"}
	}
	defer root.Close()
	files := map[string][]byte{}
	left := int64(harness.MaxSkillBytes)
	err = fs.WalkDir(root.FS(), s.Folder, func(path string, entry fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, s.Folder+"/")
		switch {
		case err != nil:
			return err
		case path == s.Folder && !entry.IsDir():
			return wrong("is not a folder")
		case path == s.Folder:
			return nil
		case strings.HasPrefix(entry.Name(), ".") && entry.IsDir():
			return fs.SkipDir
		case strings.HasPrefix(entry.Name(), "."), entry.IsDir():
			return nil
		case !entry.Type().IsRegular():
			return wrong(fmt.Sprintf("has %q, which is a link or a special file", name))
		case len(files) == harness.MaxSkillFiles:
			return wrong(fmt.Sprintf("has more than %d files", harness.MaxSkillFiles))
		}
		data, err := readSome(root, path, left)
		if left -= int64(len(data)); left < 0 {
			return wrong(fmt.Sprintf("has more than %d bytes", harness.MaxSkillBytes))
		}
		files[name] = data
		return err
	})
	problem := &v1alpha1.Problem{Path: "folder", What: "cannot be read", Fix: "let the function read it and its files"}
	if reason, ok := errors.AsType[wrong](err); ok {
		problem.What, problem.Fix = string(reason), "keep only the plain files that the skill needs there"
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		problem.What, problem.Fix = fmt.Sprintf("is %s, which is not there", s.Folder), "make the folder beside the file of the agent, with SKILL.md in it"
	case err == nil:
		return files, nil
	}
	return nil, problem
}

// wrong is what is wrong with a skill's folder.
type wrong string

func (w wrong) Error() string { return string(w) }

// readSome reads at most one byte more than most. A name that has become a pipe
// holds nobody.
func readSome(root *os.Root, path string, most int64) ([]byte, error) {
	file, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, wrong(fmt.Sprintf("has %q, which is a link or a special file", path))
	}
	return io.ReadAll(io.LimitReader(file, most+1))
}
