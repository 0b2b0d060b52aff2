#!/usr/bin/env bash
# From a commit to a served model, on this machine: every command is shown before it runs. Everything it makes lies
# below one directory (DEMO_DIR, default .demo); `make demo-stop` stops what it started.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
"$here/scripts/check-python.sh" "${PYTHON:-}"
demo=$(mkdir -p "${DEMO_DIR:-$here/.demo}" && cd "${DEMO_DIR:-$here/.demo}" && pwd)
fleet=$demo/fleet

if [ -t 1 ]; then bold=$'\e[1m' dim=$'\e[2m' plain=$'\e[0m'; else bold='' dim='' plain=''; fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
run() { printf '\n%s$ %s%s\n' "$bold" "$*" "$plain"; "$@"; }

# Nothing outside the work directory: not even pip's cache or a state directory in the home.
export PIP_CACHE_DIR=$demo/cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1
export LLMGW_STATE_DIR=$demo/state LLMGW_SECRET_FILE=$demo/secret

say "1. Install llmgw into $demo/venv"
[ -x "$demo/venv/bin/python" ] || "$PYTHON" -m venv "$demo/venv"
"$demo/venv/bin/pip" install --quiet --upgrade pip
"$demo/venv/bin/pip" install --quiet "$here"
export PATH=$demo/venv/bin:$PATH

say "2. A Git repository with the manifests of one node, one profile and one model"
rm -rf "$fleet"
mkdir -p "$fleet"
cp -R "$here/manifests" "$fleet/manifests"
cd "$fleet"
sed -i "s|workDir: .*|workDir: $demo/agent|" manifests/*.yaml
if ! python "$here/scripts/wheels_exist.py" manifests; then
  say "   llama.cpp's wheel or the model's does not exist for this machine: the demo uses the sim engine, a stand-in"
  cp "$here"/scripts/demo-sim/*.yaml manifests/
fi
git init --quiet --initial-branch main
git config user.name "llmgw demo" && git config user.email "demo@localhost"
git add . && git commit --quiet -m "Serve SmolLM2 on this machine"
printf '%s\n' "$dim$(git log --oneline --stat | cat)$plain"

say "3. What does the commit ask for, and what would it change?"
run llmgw validate
run llmgw plan

say "4. Do it"
run llmgw apply --yes

say "5. Talk to the model"
printf '\n%s$ eval "$(llmgw endpoints --env)"%s\n' "$bold" "$plain"
eval "$(llmgw endpoints --env)"
run python "$here/scripts/ask.py" "Name the capital of France."

say "6. What runs, and how it came about"
run llmgw status
run llmgw history

say "7. Change one field, commit, and see the difference"
profile=$(grep -lE '^kind: Profile' manifests/*.yaml | head -n 1)
run sed -i 's/maxModelLen: 2048/maxModelLen: 1024/' "$profile"
run git commit --quiet --all -m "Halve the context: chats here are short"
run llmgw plan
run llmgw apply --yes
run llmgw status

say "Done. The fleet is in $fleet. To go on in this shell:"
cat <<TXT

  export PATH=$demo/venv/bin:\$PATH LLMGW_STATE_DIR=$LLMGW_STATE_DIR LLMGW_SECRET_FILE=$LLMGW_SECRET_FILE
  cd $fleet

  llmgw logs smollm2-135m -n 20          what the engine printed
  llmgw explain Model.spec.replicas      what a field means; set it to 2, commit, plan, apply
  llmgw-agent status --work $demo/agent  the agent, with its pid: kill -9 it, and the engine goes on; the next apply
                                         brings the agent back and finds nothing to do
  git log llmgw/state                    every change, as Git tells it

make demo-stop stops the engine and the agent; then rm -rf $demo removes the rest.
TXT
