"""Sessions in Amazon Bedrock AgentCore Memory."""
