"""What tests share: small models of every kind, servers, references, decoders by transformers and by the executor."""
