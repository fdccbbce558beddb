"""What a completion is worth: verifiers, the calling contract of reward functions, auditing, tampering detection. Sets
`Completion.correct` once for every room. Never generates text and never touches the policy."""
