"""What an engine was seen to do: how fast its steps, prompts and answers are."""
