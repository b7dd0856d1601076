"""``python tiny_lora.py MODEL OUT SEED``: a random LoRA adapter of a tiny model, as PEFT writes one.

Runs in the environment of the vLLM that serves it, which has torch and safetensors.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

RANK = 8


def make(model: Path, out: Path, seed: int) -> None:
    """Weights large enough that its answers differ from the base's."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text())
    torch.manual_seed(seed)
    hidden = config["hidden_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    outputs = {"q_proj": config["num_attention_heads"] * head, "v_proj": config["num_key_value_heads"] * head}
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for module, size in outputs.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{at}.lora_A.weight"] = torch.randn(RANK, hidden)
            weights[f"{at}.lora_B.weight"] = torch.randn(size, RANK)
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, str(out / "adapter_model.safetensors"))
    adapter = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK, "lora_dropout": 0.0,
        "bias": "none", "target_modules": list(outputs), "base_model_name_or_path": str(model),
    }  # fmt: skip
    (out / "adapter_config.json").write_text(json.dumps(adapter))


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
