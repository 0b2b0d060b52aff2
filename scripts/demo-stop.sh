#!/usr/bin/env bash
# Stops what the demo started: empties the fleet by a commit, applies it, and stops the agent.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
demo=${DEMO_DIR:-$here/.demo}
if [ ! -d "$demo/fleet/.git" ] || [ ! -x "$demo/venv/bin/llmgw" ]; then
  echo "No demo in $demo: nothing to stop. (One that was begun elsewhere: make demo-stop DEMO_DIR=…)"
  exit 0
fi
demo=$(cd "$demo" && pwd)
export PATH=$demo/venv/bin:$PATH LLMGW_STATE_DIR=$demo/state LLMGW_SECRET_FILE=$demo/secret
cd "$demo/fleet"
mapfile -d '' -t models < <(grep -lZE '^kind: Model' manifests/*.yaml || true)
if [ "${#models[@]}" -gt 0 ]; then
  git rm --quiet --force --ignore-unmatch -- "${models[@]}"
fi
git diff --cached --quiet || git commit --quiet -m "Stop the demo"
llmgw apply --yes --allow-prune
node=$(grep -lE '^kind: Node' manifests/*.yaml | head -n 1 || true)
# None is left where somebody has removed the node by hand, and its agent with it.
if [ -n "$node" ]; then
  llmgw node stop-agent "$(sed -n 's/^ *name: *\([a-z0-9.-]*\).*/\1/p' "$node" | head -n 1)"
fi
echo "Stopped. What is left lies in $demo; to remove it: rm -rf '$demo'"
