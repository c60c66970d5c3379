"""Vision towers of vision-language models as exportable torch modules, built from transformers' own modules."""
