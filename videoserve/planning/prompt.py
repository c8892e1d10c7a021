"""What the text encoder reads of a prompt: the same cleaning as diffusers' Wan pipelines."""

import html
import re

import ftfy

_SPACE = re.compile(r"\s+")


def clean(text: str) -> str:
    """`text` with broken encodings mended, HTML entities read and white space collapsed.

    Source: `prompt_clean` of diffusers/pipelines/wan/pipeline_wan_i2v.py; equal to it for every string.
    Raises ValueError, as that does, for a character reference of more digits than Python reads (4300).
    """
    mended = html.unescape(html.unescape(ftfy.fix_text(text))).strip()
    return _SPACE.sub(" ", mended).strip()
