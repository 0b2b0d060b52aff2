#!/usr/bin/env bash
# Stops what the demo started: empties the fleet by a commit, applies it, and stops the agent.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
demo=${DEMO_DIR:-$here/.demo}
if [ ! -d "$demo/fleet/.git" ]; then
  echo "No demo in $demo: nothing to stop."
  exit 0
fi
demo=$(cd "$demo" && pwd)
export PATH=$demo/venv/bin:$PATH LLMGW_STATE_DIR=$demo/state LLMGW_SECRET_FILE=$demo/secret
cd "$demo/fleet"
models=$(grep -lE '^kind: Model' manifests/*.yaml || true)
if [ -n "$models" ]; then
  # shellcheck disable=SC2086 # one word a file, names without spaces
  git rm --quiet --force $models
  git commit --quiet -m "Stop the demo"
fi
llmgw apply --yes --allow-prune
llmgw node stop-agent "$(sed -n 's/^ *name: *\([a-z0-9.-]*\).*/\1/p' "$(grep -lE '^kind: Node' manifests/*.yaml | head -n 1)" | head -n 1)"
echo "Stopped. What is left lies in $demo: rm -rf $demo"
