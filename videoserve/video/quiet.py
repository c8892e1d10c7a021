"""Progress bars of the libraries that load models: they would run through our logs and our own bar."""

import diffusers.utils.logging
import transformers.utils.logging


def quiet() -> None:
    """For the rest of this process: loading says nothing on standard error but warnings and errors."""
    transformers.utils.logging.disable_progress_bar()
    diffusers.utils.logging.disable_progress_bar()
