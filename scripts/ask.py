"""Ask the served model one question, as any OpenAI client would; reads OPENAI_BASE_URL, _API_KEY and _MODEL.

eval "$(llmgw endpoints --env)" && python scripts/ask.py "Name the capital of France."
"""

import json
import os
import sys
import urllib.request

question = sys.argv[1] if len(sys.argv) > 1 else "Name the capital of France."
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    headers={
        "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        "Content-Type": "application/json",
    },
    data=json.dumps(
        {
            "model": os.environ["OPENAI_MODEL"],
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 40,
            "temperature": 0,
        }
    ).encode(),
)
with urllib.request.urlopen(request, timeout=60) as answer:
    body = json.load(answer)
print(f"{body['model']}: {body['choices'][0]['message']['content'].strip()}")
