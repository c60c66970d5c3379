"""Language models served by NVIDIA Dynamo: its frontend provides the OpenAI API, trtkit's workers run the bundles."""
