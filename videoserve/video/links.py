"""The measurement of the links between the ranks of an engine: what rank 0 says of it, and each rank's part."""

from typing import Any

import torch

from videoserve_kernels.comm.calibrate import calibrate, name_of
from videoserve_kernels.comm.calibration import Calibration
from videoserve_kernels.comm.peers import addresses
from videoserve_kernels.comm.topology import Host, islands_of


def places_of(ranks: int, device: torch.device) -> list[str]:
    """The PCI addresses of the ranks' cards: rank 0 has `device`, the others those after it. None on processors."""
    first = device.index or 0
    return addresses()[first : first + ranks] if device.type == "cuda" else []


def request_for(host: Host, ranks: int, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """What every rank has to know, as JSON holds it; `device` is rank 0's."""
    places = places_of(ranks, device)
    return {
        "fingerprint": host.fingerprint_for(places),
        "dtype": name_of(dtype),
        "believed": islands_of(host, places) if places else (),
    }


def measure(request: dict[str, Any], device: torch.device, time_limit_s: float) -> Calibration:
    """This rank's part, on its device; all ranks come to the same figures. CommunicationError when one is lost."""
    return calibrate(
        request["fingerprint"],
        device=device,
        dtype=getattr(torch, request["dtype"]),
        believed=tuple(tuple(island) for island in request["believed"]),
        time_limit_s=time_limit_s,
    )
