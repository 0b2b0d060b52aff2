"""`llmgw serve` and `llmgw sync`: passes without a person beside them."""
