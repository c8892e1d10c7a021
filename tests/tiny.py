"""Real diffusers and transformers classes at tiny size: complete model directories of Wan's three layouts.

Every weight is random and none of the model is degenerate: gains are not all one, biases not all zero, so that a
forward that forgets one of them gives another result.
"""

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanImageToVideoPipeline, WanTransformer3DModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    CLIPVisionModel,
    PreTrainedTokenizerFast,
    UMT5Config,
    UMT5EncoderModel,
)

LAYOUTS = ("wan21-i2v", "wan22-a14b", "wan22-ti2v")
TEXT_DIM = 32
IMAGE_DIM = 24
Z_DIM = 16


def write_model(layout: str, directory: Path) -> None:
    """Writes the complete diffusers directory of one layout, under a megabyte, the same every time."""
    with torch.random.fork_rng():
        torch.manual_seed(LAYOUTS.index(layout))
        clip = layout == "wan21-i2v"
        pipeline = WanImageToVideoPipeline(
            tokenizer=tokenizer(),
            text_encoder=text_encoder(),
            vae=vae(layout),
            scheduler=UniPCMultistepScheduler(
                prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=3.0
            ),
            image_processor=image_processor() if clip else None,
            image_encoder=image_encoder() if clip else None,
            transformer=transformer(layout),
            transformer_2=transformer(layout) if layout == "wan22-a14b" else None,
            boundary_ratio=0.875 if layout == "wan22-a14b" else None,
            expand_timesteps=layout == "wan22-ti2v",
        )
        pipeline.save_pretrained(directory)


def transformer(layout: str, **changes: Any) -> WanTransformer3DModel:
    """Two layers, four heads of 12 channels."""
    conditioned = layout != "wan22-ti2v"
    clip = layout == "wan21-i2v"
    fields: dict[str, Any] = {
        "patch_size": (1, 2, 2),
        "num_attention_heads": 4,
        "attention_head_dim": 12,
        "in_channels": 2 * Z_DIM + 4 if conditioned else Z_DIM,
        "out_channels": Z_DIM,
        "text_dim": TEXT_DIM,
        "freq_dim": 32,
        "ffn_dim": 72,
        "num_layers": 2,
        "cross_attn_norm": True,
        "rope_max_seq_len": 64,
        "image_dim": IMAGE_DIM if clip else None,
        "added_kv_proj_dim": 48 if clip else None,
    }
    return stirred(WanTransformer3DModel(**{**fields, **changes}))


def vae(layout: str) -> AutoencoderKLWan:
    """The 2.2 kind (residual, patches of 2) for TI2V, the 2.1 kind for the others; both 8×8 in space, 4 in time."""
    if layout == "wan22-ti2v":
        kind: dict[str, Any] = {
            "base_dim": 8,
            "decoder_base_dim": 12,
            "dim_mult": [1, 2, 2],
            "temperal_downsample": [True, True],
            "is_residual": True,
            "in_channels": 12,
            "out_channels": 12,
            "patch_size": 2,
        }
    else:
        kind = {"base_dim": 8, "dim_mult": [1, 2, 2, 2], "temperal_downsample": [False, True, True]}
    return stirred(AutoencoderKLWan(z_dim=Z_DIM, num_res_blocks=1, **kind))


def text_encoder() -> UMT5EncoderModel:
    """Two layers of UMT5 over the bytes."""
    config = UMT5Config(
        vocab_size=vocabulary_size(),
        d_model=TEXT_DIM,
        d_kv=8,
        num_heads=4,
        d_ff=48,
        num_layers=2,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=32,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        use_cache=False,
    )
    return stirred(UMT5EncoderModel(config))


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without merges, ending with </s> as T5's does."""
    vocabulary = {token: number for number, token in enumerate(["<pad>", "</s>", "<unk>", *alphabet()])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=512
    )


def alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def vocabulary_size() -> int:
    return 3 + len(alphabet())


def image_encoder() -> CLIPVisionModel:
    """Three layers of CLIP's vision tower over 28×28 pictures: 5 tokens."""
    config = CLIPVisionConfig(
        hidden_size=IMAGE_DIM,
        intermediate_size=40,
        projection_dim=16,
        num_hidden_layers=3,
        num_attention_heads=3,
        image_size=28,
        patch_size=14,
    )
    return stirred(CLIPVisionModel(config))


def image_processor() -> CLIPImageProcessorPil:
    return CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})


def stirred(module: Any) -> Any:
    """Adds noise to the parameters that start at one or zero: gains, biases and tables."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1 or parameter.std() == 0:
                parameter.add_(torch.randn_like(parameter), alpha=0.15)
    return module.eval()
