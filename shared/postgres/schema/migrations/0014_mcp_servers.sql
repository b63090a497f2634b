-- +goose Up

-- What an agent's MCP servers offered when they were last asked. A row is of the
-- settings that digest names: of others it says nothing.
CREATE TABLE mcp_servers (
    agent_name  text NOT NULL REFERENCES agents,
    server_name text NOT NULL,
    digest      text NOT NULL,               -- harness.MCPServer.Digest
    tools       jsonb NOT NULL DEFAULT '[]', -- of the newest list that arrived
    listed_at   timestamptz,                 -- when it did; NULL: never
    tried_at    timestamptz NOT NULL,        -- when the server was last asked
    reason      text NOT NULL DEFAULT '',    -- why no list came then; empty when one did
    PRIMARY KEY (agent_name, server_name)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON mcp_servers, secret_checks TO tuluat_agent_step;
