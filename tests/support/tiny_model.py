"""A language model that is real in form and random in content, written on the spot: nothing is downloaded.

It is a Llama of two layers and hidden size 64 with a vocabulary of words, in the files that Hugging Face's loaders
read: config.json, model.safetensors (https://github.com/huggingface/safetensors#format), tokenizer.json and its
configuration.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy

from crossgrade.bench.load import WORDS

HIDDEN = 64
INTERMEDIATE = 128
LAYERS = 2
HEADS = 4
KEY_VALUE_HEADS = 2
VOCABULARY = 512
CONTEXT = 2048
SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")
END = SPECIAL.index("</s>")


def write_tiny_model(directory: Path, seed: int = 0) -> Path:
    """The same model for the same seed. Returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", configuration())
    write_json(directory / "generation_config.json", {"bos_token_id": 1, "eos_token_id": END, "pad_token_id": 3})
    write_json(directory / "tokenizer.json", tokenizer())
    write_json(directory / "tokenizer_config.json", tokenizer_configuration())
    write_safetensors(directory / "model.safetensors", weights(seed))
    return directory


def configuration() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HIDDEN // HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": VOCABULARY,
        "bos_token_id": 1,
        "eos_token_id": END,
        "pad_token_id": 3,
        "torch_dtype": "float32",
        "use_cache": True,
    }


def tokenizer() -> dict[str, object]:
    words = [*SPECIAL, *dict.fromkeys(WORDS.split())]  # those of the load's own prompts, so that prompts differ
    words += [f"word{number}" for number in range(VOCABULARY - len(words))]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, token in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": "<unk>",
        },
    }


def tokenizer_configuration() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "clean_up_tokenization_spaces": False,
        "chat_template": "{% for message in messages %}{{ message['content'] }} {% endfor %}",
    }


def weights(seed: int) -> dict[str, numpy.ndarray]:
    """Random, small, as float32; the row that would end an answer is zero, so that greedy answers have full length."""
    random = numpy.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> numpy.ndarray:
        scaled: numpy.ndarray = random.standard_normal((rows, columns)) / float(columns) ** 0.5
        return scaled.astype(numpy.float32)

    head = HIDDEN // HEADS
    tensors = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN) * 8,
        "model.norm.weight": numpy.ones(HIDDEN, numpy.float32),
        "lm_head.weight": matrix(VOCABULARY, HIDDEN),
    }
    tensors["lm_head.weight"][: len(SPECIAL)] = 0
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        tensors |= {
            f"{name}.input_layernorm.weight": numpy.ones(HIDDEN, numpy.float32),
            f"{name}.post_attention_layernorm.weight": numpy.ones(HIDDEN, numpy.float32),
            f"{name}.self_attn.q_proj.weight": matrix(HEADS * head, HIDDEN),
            f"{name}.self_attn.k_proj.weight": matrix(KEY_VALUE_HEADS * head, HIDDEN),
            f"{name}.self_attn.v_proj.weight": matrix(KEY_VALUE_HEADS * head, HIDDEN),
            f"{name}.self_attn.o_proj.weight": matrix(HIDDEN, HEADS * head),
            f"{name}.mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            f"{name}.mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            f"{name}.mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE),
        }
    return tensors


def write_safetensors(path: Path, tensors: dict[str, numpy.ndarray]) -> None:
    """A header of JSON with each tensor's place, preceded by its length in 8 bytes, then the numbers."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.astype("<f4").tobytes())


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1))
