"""Guesses of an EAGLE-3 head, which reads the hidden states that the model has just computed."""

from trtkit.drafts.proposers import ChainProposer

PROPOSER = ChainProposer
