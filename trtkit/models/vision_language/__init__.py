"""Vision-language models as data: each family's vision tower, its inputs, and how images appear in prompts."""
