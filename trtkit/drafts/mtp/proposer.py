"""Guesses of an MTP module, which reads the hidden states that the model has just computed."""

from trtkit.drafts.proposers import ChainProposer

PROPOSER = ChainProposer
