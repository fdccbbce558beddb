"""The model that learns: loading, LoRA, log-probabilities (chunked, prefix-shared), reference, critic. One nn.Module that
wrappers can wrap; nobody outside calls its backbone or head. Never decides what is good."""
