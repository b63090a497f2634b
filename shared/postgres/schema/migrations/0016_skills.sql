-- +goose Up

-- What skills hold, named by its bytes and never changed: revisions name it by the
-- digest. What no revision names any more stays, as old revisions do.
CREATE TABLE skill_contents (
    digest       text PRIMARY KEY, -- harness.SkillContent.Digest
    instructions text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE skill_files (
    digest text NOT NULL REFERENCES skill_contents,
    path   text NOT NULL, -- below the skill's folder
    data   bytea NOT NULL,
    PRIMARY KEY (digest, path)
);

-- session_skills: what the model has loaded in a session. Each sandbox of the
-- session has the files of that content while the agent has a skill of the name.
CREATE TABLE session_skills (
    session_id text NOT NULL REFERENCES sessions,
    skill_name text NOT NULL,
    digest     text NOT NULL REFERENCES skill_contents,
    PRIMARY KEY (session_id, skill_name)
);

-- skill_placements: which sandbox has the files of which skill, of which content.
CREATE TABLE skill_placements (
    sandbox_id text NOT NULL REFERENCES sandboxes,
    skill_name text NOT NULL,
    digest     text NOT NULL,
    PRIMARY KEY (sandbox_id, skill_name)
);

GRANT SELECT, INSERT ON skill_contents, skill_files TO tuluat_agent_status;
GRANT SELECT ON skill_contents TO tuluat_agent_step;
GRANT SELECT (digest, path) ON skill_files TO tuluat_agent_step;
GRANT SELECT, INSERT, UPDATE ON session_skills TO tuluat_agent_step;
GRANT SELECT ON skill_files, session_skills TO tuluat_sandbox_exec;
GRANT SELECT (agent_name, revision, spec) ON agent_revisions TO tuluat_sandbox_exec; -- whether the agent has the skill still
GRANT SELECT, INSERT, UPDATE ON skill_placements TO tuluat_sandbox_exec;
