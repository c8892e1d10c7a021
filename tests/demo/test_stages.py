"""Do the stages of the recipe hand on what they made?"""

import json
import random
import sys
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from safetensors.torch import load_file

from videoserve.demo.recipe import pack, processes
from videoserve.demo.recipe.bank import Bank, build
from videoserve.demo.recipe.checkpoint import save
from videoserve.demo.recipe.dit import SHIPPED
from videoserve.demo.recipe.reservoir import Reservoir

RANK = """
import sys
from pathlib import Path
import torch
from videoserve.demo.recipe import processes

options = dict(part.lstrip("-").split("=") for part in sys.argv[1:] if "=" in part)
rank = int(options["rank"])
processes.join(rank, int(options["world"]), options["rendezvous"])
layer = torch.nn.Linear(2, 1, bias=False)
layer.weight.data.fill_(rank + 1.0)
processes.share_weights(layer)
layer.weight.grad = torch.tensor([[3.0, 4.0]]) * (1 + 2 * rank)
norm = processes.average_gradients(layer.parameters(), 1.0)
values = [processes.agree(rank + 0.25), norm, *layer.weight.grad.flatten().tolist(), *layer.weight.flatten().tolist()]
Path(options["out"], f"{rank}.txt").write_text(" ".join(f"{value:.4f}" for value in values))
"""


def test_processes_average_and_clip_their_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rank_of_a_test.py").write_text(RANK)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    processes.launch("rank_of_a_test", [f"--out={tmp_path}"], tmp_path, 2)
    # Gradients (3, 4) and (9, 12) average to (6, 8), of norm 10, clipped to norm 1; weights are those of process 0.
    wanted = "0.2500 10.0000 0.6000 0.8000 1.0000 1.0000"
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)] == [wanted] * 2
    assert not list(tmp_path.glob("rendezvous-*"))


def test_a_process_that_fails_ends_the_others_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_rank.py").write_text(
        "import sys, time\nif '--rank=1' in sys.argv: sys.exit(3)\ntime.sleep(1)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SystemExit, match="ended with status 3"):
        processes.launch("failing_rank", [], tmp_path, 2)


def test_packing_takes_the_named_part_from_the_work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dit = WanTransformer3DModel.from_pretrained(SHIPPED / "transformer", torch_dtype=torch.float32)
    torch.nn.init.constant_(dit.proj_out.bias, 0.125)
    save(tmp_path / "dit.pt", mean=dit.state_dict())
    monkeypatch.setattr(sys, "argv", ["pack", f"--work={tmp_path}", f"--out={tmp_path / 'model'}", "--dit"])
    pack.main()
    packed = WanTransformer3DModel.from_pretrained(tmp_path / "model" / "transformer", torch_dtype=torch.float32)
    torch.testing.assert_close(packed.state_dict(), dit.state_dict(), atol=1e-3, rtol=1e-3)
    theirs, ours = ({file.name for file in folder.rglob("*.json")} for folder in (SHIPPED, tmp_path / "model"))
    assert theirs == ours
    assert not (tmp_path / "model.draft").exists()


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    """Two sample pictures, one to train on and one held out."""
    pictures = SHIPPED.parent / "pictures"
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("coffee.jpg", "china.jpg"):
        (folder / name).write_bytes((pictures / name).read_bytes())
    index = [
        {"file": "coffee.jpg", "split": "train", "weight": 1.0},
        {"file": "china.jpg", "split": "held-out", "weight": 1.0},
    ]
    (folder / "index.json").write_text(json.dumps(index))
    build(folder, "held-out")
    return Bank(tmp_path, "held-out")


def test_a_bank_holds_its_split_and_a_reservoir_normalised_latents(bank: Bank, tmp_path: Path) -> None:
    assert bank.names == ["china.jpg"]
    torch.manual_seed(0)
    vae = AutoencoderKLWan.from_pretrained(SHIPPED / "vae", torch_dtype=torch.float32)
    store = Reservoir(vae, bank, random.Random(0))
    store.add((32, 48))
    store.add((32, 48))
    latents, labels = store.draw((32, 48), 3)
    assert latents.shape == (3, vae.config.z_dim, 5, 4, 6)
    assert len(labels) == 3
    assert 0.3 < latents.std() < 2
    store.save(tmp_path / "clips.pt")
    again = Reservoir(vae, bank, random.Random(0))
    again.load(tmp_path / "clips.pt")
    torch.testing.assert_close(again.clips[(32, 48)][1][0], store.clips[(32, 48)][1][0])


@pytest.mark.parametrize("name", ["swirl", "sepia-fade"])
def test_an_adapter_is_trained_and_written_as_diffusers_writes_one(
    name: str, bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters = pytest.importorskip("videoserve.demo.recipe.adapters", reason="peft, of the dev extra, trains them.")
    pictures = tmp_path / "pictures"
    (pictures / "train.pt").write_bytes((pictures / "held-out.pt").read_bytes())
    monkeypatch.setattr(adapters, "SIDES", (32, 32, 48))
    monkeypatch.setattr(adapters, "CHECK_CLIPS", 1)
    monkeypatch.setattr(sys, "argv", ["adapters", f"--work={tmp_path}", f"--name={name}", "--minutes=.02", "--clips=3"])
    adapters.main()
    tensors = load_file(tmp_path / "adapters" / f"{name}.safetensors")
    shipped = load_file(SHIPPED.parent / "loras" / f"{name}.safetensors")
    assert {key: tensor.shape for key, tensor in tensors.items()} == {k: each.shape for k, each in shipped.items()}
    assert all(tensor.any() for key, tensor in tensors.items() if "lora_B" in key)
