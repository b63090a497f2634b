package sandboxtest

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// task is one thing that people do with a toolchain.
type task struct {
	name string
	text string
	want string // all of stdout
}

// Languages returns the toolchains that Toolchain knows: the names of the
// platform's images.
func Languages() []string { return slices.Sorted(maps.Keys(toolchains())) }

// Toolchain starts a sandbox of spec and does in it what people do first with a
// language: write files, execute what they wrote, build, install a package of
// their own, run tests. Nothing of it needs a network, a home in the image, an
// entry in passwd or a root file system that can be written (K30, B17). One
// sandbox, so the spec needs 512 MiB of memory and 256 MiB of volume.
func Toolchain(t *testing.T, d sandbox.Driver, spec harness.SandboxSpec, language string) {
	tasks, ok := toolchains()[language]
	if !ok {
		t.Fatalf("no toolchain %q, only %v", language, Languages())
	}
	sb := Started(t, d, spec)
	for _, task := range slices.Concat(anyImage(), tasks) {
		t.Run(task.name, func(t *testing.T) {
			req := Command("set -e\n" + task.text)
			req.Timeout = 4 * time.Minute // a cold build cache, on a busy machine
			begun := time.Now()
			res, out := Exec(t, d, sb, req)
			if res.State != harness.ExecutionCompleted || out.String("stdout") != task.want {
				t.Errorf("%+v\nstdout %q, want %q\nstderr %s", res, out.String("stdout"), task.want, out.String("stderr"))
			}
			t.Logf("%v %s", time.Since(begun).Round(time.Millisecond), out.String("stderr"))
		})
	}
}

func toolchains() map[string][]task {
	return map[string][]task{"python": python(), "node": node(), "golang": golang(), "java": java()}
}

func lines(all ...string) string { return strings.Join(all, "\n") + "\n" }

// anyImage is what every image can do.
func anyImage() []task {
	return []task{
		{"is no root", `[ "$(id -u)" != 0 ] && echo yes`, "yes\n"},
		{"writes", `touch "$HOME/x" /tmp/x "$TMPDIR/y" && rm "$HOME/x" && echo written`, "written\n"},
		{"executes what it wrote", `for d in "$HOME" /tmp /workspace; do printf '#!/bin/sh\necho ran\n' > $d/run.sh; chmod +x $d/run.sh; $d/run.sh; rm $d/run.sh; done`, "ran\nran\nran\n"},
		{"finds its tools", `for tool in sh cat grep sed awk tar gzip find xargs sort head tail mktemp env; do command -v $tool >/dev/null || echo no $tool; done`, ""},
		// The folder itself belongs to root in a Pod, which git distrusts by default.
		{"keeps its workspace in git", `command -v git >/dev/null || { echo this image has no git >&2; echo committed; exit; }
git init -q . && git -c user.name=x -c user.email=x@example.com commit -q --allow-empty -m x && git log --oneline | wc -l | sed 's/ *1/committed/' && rm -rf .git`, "committed\n"},
	}
}

// python's package brings its own build backend, so that pip builds it in the
// isolated environment that it makes in TMPDIR, without a network.
func python() []task {
	return []task{
		{"makes a package", `mkdir -p pkg && cd pkg
cat >greet.py <<'END'
def hello(): return "hello from a package"
END
cat >pyproject.toml <<'END'
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "greet"
version = "1.0"
END
cat >backend.py <<'END'
import base64, hashlib, os, tarfile, zipfile
META = "Metadata-Version: 2.1\nName: greet\nVersion: 1.0\n"
def build_wheel(directory, config_settings=None, metadata_directory=None):
    name, info = "greet-1.0-py3-none-any.whl", "greet-1.0.dist-info/"
    files = {
        "greet.py": open("greet.py").read(), info + "METADATA": META,
        info + "WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        info + "entry_points.txt": "[console_scripts]\ngreet = greet:hello\n",
    }
    record = ""
    with zipfile.ZipFile(os.path.join(directory, name), "w") as z:
        for path, text in files.items():
            z.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += "%s,sha256=%s,%d\n" % (path, digest, len(text))
        z.writestr(info + "RECORD", record + info + "RECORD,,\n")
    return name
def build_sdist(directory, config_settings=None):
    name = "greet-1.0.tar.gz"
    with tarfile.open(os.path.join(directory, name), "w:gz") as t:
        open("PKG-INFO", "w").write(META)
        for f in ("PKG-INFO", "pyproject.toml", "backend.py", "greet.py"):
            t.add(f, "greet-1.0/" + f)
    return name
END
python3 -c 'import backend; print(backend.build_sdist(".."))'`, "greet-1.0.tar.gz\n"},
		{"python -m venv", `python3 -m venv venv && venv/bin/python -c 'import sys; print(sys.prefix)'`, "/workspace/venv\n"},
		{
			"pip install of an sdist", `venv/bin/pip install -q --no-index --disable-pip-version-check ./greet-1.0.tar.gz && venv/bin/python -c 'import greet; print(greet.hello())' && ls venv/bin/greet`,
			"hello from a package\nvenv/bin/greet\n",
		},
		{
			"pip install of a wheel", `venv/bin/pip wheel -q --no-index --disable-pip-version-check --wheel-dir /tmp/wheels ./greet-1.0.tar.gz && python3 -m venv /tmp/v && /tmp/v/bin/pip install -q --no-index --disable-pip-version-check /tmp/wheels/*.whl && /tmp/v/bin/python -c 'import greet; print(greet.hello())'`,
			"hello from a package\n",
		},
		// Debian's own pip asks for this variable; others do not know it.
		{"pip install without a venv", `PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install -q --no-index --disable-pip-version-check ./greet-1.0.tar.gz 2>/tmp/err || { cat /tmp/err >&2; exit 1; }
cd /tmp && python3 -c 'import greet; print(greet.hello())'`, "hello from a package\n"},
		{"pip cache dir", `python3 -m pip cache dir`, "/workspace/.cache/pip\n"},
	}
}

func node() []task {
	return []task{
		{"makes a package", `mkdir -p dep app && cd dep
cat >package.json <<'END'
{"name": "greet", "version": "1.0.0", "bin": {"greet": "greet.js"}, "main": "greet.js"}
END
cat >greet.js <<'END'
#!/usr/bin/env node
module.exports = () => "hello from a package"
if (require.main === module) console.log(module.exports())
END
npm pack --silent`, "greet-1.0.0.tgz\n"},
		{"npm install", `cd app
cat >package.json <<'END'
{"name": "app", "version": "1.0.0", "private": true, "scripts": {"greet": "greet"}, "dependencies": {"greet": "file:../dep/greet-1.0.0.tgz"}}
END
npm install --silent --offline --no-audit --no-fund && ls package-lock.json`, "package-lock.json\n"},
		{"npm ci", `cd app && rm -rf node_modules && npm ci --silent --offline --no-audit --no-fund && node -p 'require("greet")()'`, "hello from a package\n"},
		{"npm run", `cd app && npm run --silent greet`, "hello from a package\n"},
		{"npm install -g", `npm install --silent --offline --no-audit --no-fund -g --prefix "$HOME/.npm-global" ./dep/greet-1.0.0.tgz && "$HOME/.npm-global/bin/greet"`, "hello from a package\n"},
		{"npm config get cache", `npm config get cache`, "/workspace/.cache/npm\n"},
	}
}

func golang() []task {
	return []task{
		{"makes a module", `mkdir -p mod/greet && cd mod
cat >go.mod <<'END'
module example.com/hello

go 1.21
END
cat >main.go <<'END'
package main

import (
	"fmt"

	"example.com/hello/greet"
)

func main() { fmt.Println(greet.Hello()) }
END
cat >greet/greet.go <<'END'
package greet

func Hello() string { return "hello from a package" }
END
cat >greet/greet_test.go <<'END'
package greet

import "testing"

func TestHello(t *testing.T) {
	if Hello() == "" {
		t.Error("silent")
	}
}
END
ls`, lines("go.mod", "greet", "main.go")},
		{"go build", onPath("go", "/usr/local/go/bin") + `cd mod && go build -o /tmp/hello . && /tmp/hello`, "hello from a package\n"},
		{"go run", onPath("go", "/usr/local/go/bin") + `cd mod && go run .`, "hello from a package\n"},
		{"go test", onPath("go", "/usr/local/go/bin") + `cd mod && go test ./greet >/tmp/out && cut -f1,2 /tmp/out`, "ok  \texample.com/hello/greet\n"},
		{"go env", onPath("go", "/usr/local/go/bin") + `go env GOCACHE GOPATH GOTOOLCHAIN`, lines("/workspace/.cache/go-build", "/workspace/.cache/go", "local")},
	}
}

func java() []task {
	return []task{
		{"makes a class", `mkdir -p src && cat >src/Hello.java <<'END'
import java.nio.file.*;
public class Hello {
	public static void main(String[] args) throws Exception {
		Path p = Files.createTempFile("hello", ".txt");
		Files.writeString(p, "hello from a class");
		System.out.println(Files.readString(p));
	}
}
END
ls src`, "Hello.java\n"},
		{"javac and java", `javac -d classes src/Hello.java && java -cp classes Hello`, "hello from a class\n"},
		{"java of a source file", `java src/Hello.java`, "hello from a class\n"},
		{"jar", `jar --create --file /tmp/hello.jar --main-class Hello -C classes . && java -jar /tmp/hello.jar`, "hello from a class\n"},
	}
}

// onPath is a line that finds a program also where it is installed without
// being on the path of every user.
func onPath(program, dir string) string {
	return "command -v " + program + " >/dev/null || export PATH=\"$PATH:" + dir + "\"\n"
}
