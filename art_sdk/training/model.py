"""A frozen base model with one trainable adapter, named `default`.

The model stays in evaluation mode: a base model's dropout would give the trainer another
distribution than the engine sampled from. `with model.disable_adapter():` is the base model.
"""

import json
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from ..errors import TrainingError
from .options import LoraOptions


def load_policy(
    base_model: str,
    lora: LoraOptions,
    adapter: Path | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    checkpointing: bool = False,
) -> PeftModel:
    """`base_model` (a folder or a hub id) with a new adapter, or with the weights in folder `adapter`.

    A new adapter changes nothing until it is trained (B is zero); `seed` fixes its A. Adapter weights
    are float32 whatever `dtype` the frozen base has. With `checkpointing` the backward pass computes each layer's
    activations again. Goes to the GPU if there is one. A folder is
    read without the network. Raises `TrainingError` for a model or an adapter that can't be loaded.
    """
    base = _load_base(base_model, dtype)
    torch.manual_seed(seed)
    try:
        model = cast(PeftModel, get_peft_model(base, _lora_config(base_model, base, lora)))
    except ValueError as error:
        raise TrainingError(f"base model {base_model!r} can't take the adapter {lora!r}: {error}") from error
    if adapter is not None:
        _load_adapter(model, lora, adapter)
    model.eval()
    if checkpointing:
        _recompute_layers(base, base_model)
    _check_head(model, base_model)
    return model


def backbone_and_head(model: PeftModel) -> tuple[nn.Module, nn.Module]:
    """The transformer below the head, adapters included, and the head: logits = head(hidden states)."""
    causal_lm: Any = model.get_base_model()
    return causal_lm.base_model, causal_lm.get_output_embeddings()


def adapter_weights(model: PeftModel, lora: LoraOptions, adapter: Path) -> list[Tensor]:
    """The weights in folder `adapter`, in the order of the model's trainable parameters, which stay as they are."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    own = [parameter.detach().clone() for parameter in parameters]
    _load_adapter(model, lora, adapter)
    found = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter, before in zip(parameters, own, strict=True):
            parameter.copy_(before)
    return found


def _load_base(base_model: str, dtype: torch.dtype) -> PreTrainedModel:
    is_folder = Path(base_model).is_dir()
    if not is_folder and (base_model.startswith(("/", ".", "~")) or base_model.count("/") > 1):
        raise TrainingError(
            f"base model {base_model!r}: no such folder. Give the folder of a saved transformers model "
            "(it holds config.json), or a hub id such as 'org/name'."
        )
    try:
        model: nn.Module = AutoModelForCausalLM.from_pretrained(base_model, dtype=dtype, local_files_only=is_folder)
    except (OSError, ValueError, SafetensorError) as error:
        raise TrainingError(f"base model {base_model!r} can't be loaded as a causal language model: {error}") from error
    return cast(PreTrainedModel, model.to("cuda" if torch.cuda.is_available() else "cpu"))


def _lora_config(base_model: str, base: PreTrainedModel, lora: LoraOptions) -> LoraConfig:
    targets = lora.target_modules
    unserved = _unserved(base)
    if targets == "all-linear" and unserved:
        head = cast(Any, base).get_output_embeddings()
        linear = {n.split(".")[-1] for n, m in base.named_modules() if isinstance(m, nn.Linear) and m is not head}
        targets = tuple(sorted(linear - unserved))
    elif refused := sorted(unserved.intersection(targets)):
        raise TrainingError(
            f"base model {base_model!r} can't be served with an adapter on {', '.join(refused)}: leave them out of "
            "target_modules, or say 'all-linear', which does."
        )
    return LoraConfig(
        base_model_name_or_path=base_model,
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.lora_alpha,
        lora_dropout=0.0,
        target_modules=targets if isinstance(targets, str) else list(targets),
    )


def _unserved(base: PreTrainedModel) -> set[str]:
    """Last names of the layers that vLLM would not serve as they were trained.

    MLA: when it starts it makes other matrices of kv_b_proj's weights, and an adapter never reaches those.
    Routed experts are one parameter, and to PEFT (0.21) a name that a projection of theirs once had means
    that parameter and the router, with twice the rank that the engine is told of, and no dense layer.
    """
    names = {name.split(".")[-1] for name, _ in base.named_modules()} & {"kv_b_proj"}
    if any(".experts." in name for name, _ in base.named_parameters()):
        names |= {"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"}
    return names


def _recompute_layers(base: PreTrainedModel, base_model: str) -> None:
    """transformers does it only for layers in training mode. A layer is put into that alone, without what is in it:
    its dropout stays off."""
    try:
        base.gradient_checkpointing_enable({"use_reentrant": False})
    except ValueError as error:
        raise TrainingError(f"base model {base_model!r} can't be trained with checkpointing: {error}") from error
    for module in base.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True


def _load_adapter(model: PeftModel, lora: LoraOptions, adapter: Path) -> None:
    try:
        config = json.loads((adapter / "adapter_config.json").read_text())
        trained_with = config["r"], config["lora_alpha"]
        weights = load_file(adapter / "adapter_model.safetensors")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise TrainingError(
            f"adapter {adapter} can't be read: expected a whole adapter_config.json and "
            f"adapter_model.safetensors there, got {type(error).__name__}: {error}. Restore the "
            "folder, or start the policy again under another name."
        ) from error
    if trained_with != (lora.rank, lora.lora_alpha):
        raise TrainingError(
            f"adapter {adapter} has rank {config['r']} and alpha {config['lora_alpha']}, the options say "
            f"{lora.rank} and {lora.lora_alpha}: use the options that it was trained with."
        )
    # PEFT only warns about keys that fit nowhere, and the base model would be trained on instead.
    expected = {name: tensor.shape for name, tensor in get_peft_model_state_dict(model).items()}
    found = {name: tensor.shape for name, tensor in weights.items()}
    if expected != found:
        wrong = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
        raise TrainingError(
            f"adapter {adapter} doesn't fit the base model: {len(wrong)} weights are missing, unknown or "
            f"of another shape, the first is {wrong[0]}. Use the base model that it was trained on."
        )
    set_peft_model_state_dict(model, weights)


def _check_head(model: PeftModel, base_model: str) -> None:
    """Some models scale or cap their logits after the head; `token_logprobs` would leave that out."""
    backbone, head = backbone_and_head(model)
    ids = torch.arange(4, device=model.device)[None]
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits
        hidden = getattr(backbone(input_ids=ids, use_cache=False), "last_hidden_state", None)
        if hidden is None or not torch.allclose(head(hidden).float(), whole.float(), rtol=1e-3, atol=1e-3):
            raise TrainingError(
                f"base model {base_model!r} computes its logits by more than its output head (scaling or "
                "soft-capping, perhaps): such models can't be trained yet. Choose another base model."
            )
