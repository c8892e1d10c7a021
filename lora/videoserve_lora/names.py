"""Wan's modules under their two names: diffusers' and those of the native checkpoint, which most trainers write.

A place is the name of a module, or of a table that is a parameter itself. Native `norm3` is diffusers' `norm2`.
"""

import re

BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
IN_BLOCK = {
    **{
        f"{ours}.{to}": f"{theirs}.{q}"
        for ours, theirs in (("attn1", "self_attn"), ("attn2", "cross_attn"))
        for to, q in (
            ("to_q", "q"),
            ("to_k", "k"),
            ("to_v", "v"),
            ("to_out.0", "o"),
            ("norm_q", "norm_q"),
            ("norm_k", "norm_k"),
        )
    },
    "attn2.add_k_proj": "cross_attn.k_img",
    "attn2.add_v_proj": "cross_attn.v_img",
    "attn2.norm_added_k": "cross_attn.norm_k_img",
    "ffn.net.0.proj": "ffn.0",
    "ffn.net.2": "ffn.2",
    "norm2": "norm3",
    "scale_shift_table": "modulation",
}
OUTSIDE = {
    "scale_shift_table": "head.modulation",
    "proj_out": "head.head",
    "patch_embedding": "patch_embedding",
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    "condition_embedder.image_embedder.norm1": "img_emb.proj.0",
    "condition_embedder.image_embedder.ff.net.0.proj": "img_emb.proj.1",
    "condition_embedder.image_embedder.ff.net.2": "img_emb.proj.3",
    "condition_embedder.image_embedder.norm2": "img_emb.proj.4",
    "condition_embedder.image_embedder.pos_embed": "img_emb.emb_pos",
}
# What reads the picture's CLIP embedding, which Wan 2.1 I2V alone has; with dots, or as kohya's trainers write it.
IMAGE = re.compile(
    r"blocks[._]\d+[._](cross_attn[._](norm_)?[kv]_img|attn2[._](add_[kv]_proj|norm_added_k))([._].+)?"
    r"|(img_emb|condition_embedder[._]image_embedder)[._].+"
)


def native(place: str) -> str:
    """The native name of a place under its name in diffusers; its own name where the two do not differ."""
    if inside := BLOCK.fullmatch(place):
        number, rest = inside.groups()
        return f"blocks.{number}.{IN_BLOCK.get(rest, rest)}"
    return OUTSIDE.get(place, place)


def of_image(name: str) -> bool:
    """Whether a name, of either kind, is of what reads the picture's CLIP embedding."""
    return IMAGE.fullmatch(name) is not None
