"""Guesses of an MTP module, from the hidden states that the model has just computed."""

from trtkit.drafts.proposers import ChainProposer

PROPOSER = ChainProposer
