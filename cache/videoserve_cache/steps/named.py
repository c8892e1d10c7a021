"""The policy that a request names, as far as it can be made before anything is known of the model."""

from videoserve_cache.steps.first_blocks import FirstBlocks
from videoserve_cache.steps.latent import Latent
from videoserve_cache.steps.magnitude import Magnitude
from videoserve_cache.steps.mask import Mask
from videoserve_cache.steps.off import Off
from videoserve_cache.steps.policy import Policy
from videoserve_cache.steps.request import CacheRequest, UnusableCacheError


def named(request: CacheRequest, ratios: tuple[float, ...] = ()) -> Policy:
    """The policy; `ratios` are a calibration's, for magnitude. UnusableCacheError with what is allowed."""
    try:
        return made(request, ratios)
    except ValueError as error:
        # What a policy says about a value begins with its name.
        name = str(error).split()[0]
        raise UnusableCacheError(f"cache.{name}", f"cache.{error}") from None


def made(request: CacheRequest, ratios: tuple[float, ...]) -> Policy:
    own, guards = request.own(), request.guards
    match request.policy:
        case "mask":
            return Mask(**own, forecast=request.forecast(), guards=guards)
        case "latent":
            return Latent(**own, forecast=request.forecast(), guards=guards)
        case "first_blocks":
            return FirstBlocks(**own, forecast=request.forecast(order=0), guards=guards)
        case "magnitude":
            return Magnitude(**own, ratios=ratios, forecast=request.forecast(order=0), guards=guards)
    return Off()
