"""Vision-language models as data: what each family's vision tower takes, and how its images stand in a prompt."""
