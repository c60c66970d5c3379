"""Guesses of an EAGLE-3 head, from the hidden states that the model has just computed."""

from trtkit.drafts.proposers import ChainProposer

PROPOSER = ChainProposer
