"""Vision-language models as data: what each family's vision tower takes, and how a prompt holds its images."""
