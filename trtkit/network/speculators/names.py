"""What goes between a model and the head that guesses its tokens."""

DRAFT_HIDDEN, NEXT_DRAFT_HIDDEN = "draft_hidden_states", "next_draft_hidden_states"
"""Hidden states that a head reads, and what the model, and a head that goes on from its own guesses, give for it."""
