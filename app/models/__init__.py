"""Model families: items to prompts, and engine output to what was said."""
