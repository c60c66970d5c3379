"""Language models served by NVIDIA Dynamo: its frontend speaks OpenAI's API, trtkit's workers run the bundles."""
