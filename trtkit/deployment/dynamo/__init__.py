"""Language models behind NVIDIA Dynamo: its frontend speaks OpenAI's API, trtkit's workers run the bundles."""
