-- +goose Up

-- What the servers of an agent's blocks, MCP servers and other agents, offered when
-- they were last asked. A row is of the settings that digest names: of others it
-- says nothing.
CREATE TABLE remote_servers (
    agent_name  text NOT NULL REFERENCES agents,
    block       text NOT NULL,               -- of the agent: mcpServers or a2a
    server_name text NOT NULL,
    digest      text NOT NULL,               -- of its settings in harness.Agent
    offered     jsonb NOT NULL DEFAULT '[]', -- the newest list of tools, or agent card, that arrived
    listed_at   timestamptz,                 -- when it did; NULL: never
    tried_at    timestamptz NOT NULL,        -- when the server was last asked
    reason      text NOT NULL DEFAULT '',    -- why nothing came then; empty when it did
    PRIMARY KEY (agent_name, block, server_name)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON remote_servers, secret_checks TO tuluat_agent_step;
