package sandbox

// Environment is what commands find in theirs, whatever the driver: everything
// that programs write goes below Workspace or /tmp, and nothing asks a person.
// PATH is not in it: it belongs to the image.
func Environment() map[string]string {
	const cache = Workspace + "/.cache"
	return map[string]string{
		"HOME": Workspace, "USER": "sandbox", "LOGNAME": "sandbox", "SHELL": "/bin/sh", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb",
		"CI": "1", "DEBIAN_FRONTEND": "noninteractive", "PYTHONUNBUFFERED": "1",
		"XDG_CACHE_HOME": cache, "XDG_CONFIG_HOME": Workspace + "/.config", "XDG_DATA_HOME": Workspace + "/.local/share",
		"NPM_CONFIG_CACHE": cache + "/npm", "YARN_CACHE_FOLDER": cache + "/yarn", "PIP_CACHE_DIR": cache + "/pip", "UV_CACHE_DIR": cache + "/uv",
		"GOCACHE": cache + "/go-build", "GOPATH": cache + "/go", "GOTOOLCHAIN": "local", "CARGO_HOME": cache + "/cargo",
		// Workspace may belong to another user than the sandbox's.
		"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
		"GRADLE_USER_HOME": cache + "/gradle", "MAVEN_OPTS": "-Dmaven.repo.local=" + cache + "/m2",
	}
}
