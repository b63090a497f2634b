package harness

// Skills of an agent.
func skillWords() []Word {
	return []Word{
		{Name: "skill", Meaning: "one of the skills of an agent: its name there", Column: "skill_name"},
		{Name: "skillContent", Meaning: "what a skill holds, by its digest", Table: "skill_contents"},
		{Name: "skillFile", Meaning: "a file of a skill beside its SKILL.md", Table: "skill_files"},
		{Name: "sessionSkill", Meaning: "a skill that the model has loaded in a session", Table: "session_skills"},
		{Name: "skillPlacement", Meaning: "which sandbox has the files of which skill", Table: "skill_placements"},
		{Name: "instructions", Meaning: "what a skill tells the model to do", Column: "instructions"},
		{Name: "folder", Meaning: "where the files of a skill are, beside those of the agents", Key: "folder"},
	}
}
