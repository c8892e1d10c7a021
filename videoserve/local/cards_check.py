"""What the doctor says of the cards: the driver, their links, and the way from one to another."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from videoserve.local.finding import Finding, good
from videoserve_kernels.comm.peers import Peers
from videoserve_kernels.comm.topology import Card, Host

# A card's window without resizable BAR.
SMALL_WINDOW = 256 * 2**20
# NCCL_P2P_LEVEL from the nearest to the furthest; NODE is PHB there.
LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
PATHS = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS"}


def check_cards(host: Host, seen: int) -> Iterator[Finding]:
    """The cards on the bus, and how many of them torch sees."""
    if not host.cards:
        yield good("cards", "There is no NVIDIA card here: videos are made on the processor.")
        return
    models = ", ".join(f"{count} × {model}" for model, count in sorted(Counter(c.model for c in host.cards).items()))
    if host.driver is None:
        yield Finding(
            about="cards",
            level="wrong",
            found=f"{models} on the PCI bus, but the kernel module nvidia is not loaded.",
            matters="Without a driver no card can be used.",
            do="Install NVIDIA's driver, or load it with `modprobe nvidia`.",
        )
    elif seen < len(host.cards):
        yield Finding(
            about="cards",
            level="advice" if seen else "wrong",
            found=f"{models} on the PCI bus with driver {host.driver}, and torch sees {seen} of them.",
            matters="A rank needs a card that torch sees.",
            do="Look at CUDA_VISIBLE_DEVICES, the devices a container was given, and whether torch is built for CUDA.",
        )
    else:
        yield good("cards", f"{models}, driver {host.driver}; torch sees all of them.")
    yield from check_links(host.cards)
    if len(host.cards) > 1:
        yield from check_between(host)


def check_links(cards: Sequence[Card]) -> Iterator[Finding]:
    known = [(card, card.link) for card in cards if card.link]
    narrow = [
        f"{card.address} has {link.width} of {link.width_max} lanes"
        for card, link in known
        if link.width < link.width_max
    ]
    slow = [
        f"{card.address} at {link.speed:g} of {link.speed_max:g} GT/s"
        for card, link in known
        if link.speed < link.speed_max
    ]
    if narrow:
        yield Finding(
            about="PCIe width",
            level="wrong",
            found=f"{'; '.join(narrow)}.",
            matters="Half the lanes are half the bandwidth, and the slowest card sets the pace of all ranks.",
            do="Use a slot with all lanes, seat the card and its riser anew, and look at the slot's bifurcation in the "
            "firmware's setup.",
        )
    elif known:
        yield good("PCIe width", f"All cards have all of their lanes ({known[0][1].width}).")
    if slow:
        yield Finding(
            about="PCIe speed",
            level="advice",
            found=f"{'; '.join(slow)}.",
            matters="Cards lower the speed of their links while they idle, which is no fault; one that stays low under "
            "load loses bandwidth.",
            do="Ask again while a job runs. If it stays low, set the slot's generation in the firmware's setup and "
            "check the riser.",
        )
    elif known:
        yield good("PCIe speed", f"All links run at their highest speed ({known[0][1].speed:g} GT/s).")
    small = [card.address for card in cards if card.window is not None and card.window <= SMALL_WINDOW]
    if small and len(cards) > 1:
        yield Finding(
            about="resizable BAR",
            level="advice",
            found=f"{', '.join(small)} shows {SMALL_WINDOW >> 20} MiB of memory or less to the bus.",
            matters="Other cards can write only into that window: peer-to-peer needs it to span the memory.",
            do="Turn on Resizable BAR and Above 4G Decoding in the firmware's setup.",
        )


def check_between(host: Host) -> Iterator[Finding]:
    """What lies between several cards: sockets, ACS and the IOMMU."""
    parts = "; ".join(", ".join(host.cards[card].address for card in island) for island in host.islands)
    if host.numa_nodes > 1 and any(card.numa < 0 for card in host.cards):
        yield Finding(
            about="NUMA",
            level="advice",
            found=f"{host.numa_nodes} nodes, and the firmware does not say which card is on which.",
            matters="Ranks that share a socket cannot be told from others; measured links show it all the same.",
            do="Update the firmware; `videoserve plan` measures the islands.",
        )
    else:
        count = len(host.islands)
        yield good(
            "NUMA", f"{host.numa_nodes} nodes; {count} island{'s' * (count > 1)} of cards by the PCI tree: {parts}."
        )
    redirected = [card.address for card in host.cards if card.acs]
    if redirected:
        yield Finding(
            about="ACS",
            level="wrong",
            found=f"Access Control Services redirect what peers send above {', '.join(redirected)}.",
            matters="Traffic from card to card then goes up to the processor and back: it is slow, or hangs.",
            do="Turn ACS off in the firmware's setup, or after each start with setpci as deploy/pcie.md shows.",
        )
    elif any(card.acs is None for card in host.cards):
        yield Finding(
            about="ACS",
            level="advice",
            found="The bridges' configuration is readable for root only: whether ACS redirects peers was not seen.",
            matters="With ACS on, traffic from card to card goes up to the processor and back.",
            do="Run `videoserve doctor` as root once.",
        )
    else:
        yield good("ACS", "No bridge above a card redirects what peers send.")
    if host.iommu == "translating":
        yield Finding(
            about="IOMMU",
            level="wrong",
            found="The IOMMU translates the cards' addresses.",
            matters="Peer-to-peer through a translating IOMMU is slow, hangs, or arrives changed.",
            do="Outside of virtual machines turn it off in the firmware's setup, or start the kernel with iommu=pt.",
        )
    else:
        yield good("IOMMU", "The IOMMU is off." if host.iommu == "off" else "The IOMMU passes addresses through.")


def check_peers(pairs: Sequence[Peers]) -> Iterator[Finding]:
    """What copies between cards have shown."""
    if not pairs:
        return
    broken = [f"{pair.source} to {pair.target}" for pair in pairs if not pair.intact]
    barred = [f"{pair.source} to {pair.target}" for pair in pairs if not pair.access]
    if broken:
        yield Finding(
            about="P2P",
            level="wrong",
            found=f"What was copied arrived changed: card {', '.join(broken)}.",
            matters="Videos would be wrong without any error.",
            do="Turn off the IOMMU and ACS; until then set NCCL_P2P_DISABLE=1.",
        )
    if barred:
        every = "no pair of cards" if len(barred) == len(pairs) else f"all pairs but card {', '.join(barred)}"
        yield Finding(
            about="P2P",
            level="advice",
            found=f"The driver allows peer-to-peer for {every}.",
            matters="The others go through host memory, at 4 to 6 GB/s instead of 50.",
            do="NVIDIA's driver gives GeForce cards no peer-to-peer: plan with --wire int8. For others look at ACS, "
            "the IOMMU and `nvidia-smi topo -p2p r`.",
        )
    if not broken and not barred:
        yield good("P2P", f"All {len(pairs)} copies from card to card arrived intact, without the host.")


def check_nccl(host: Host, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Settings of NCCL that cost something on a box without NVLink; `environment` has those of nccl.conf as well."""
    told = {name: value for name, value in sorted(environment.items()) if name.startswith("NCCL_")}
    if len(host.cards) < 2:
        return
    for name, what in (("NCCL_P2P_DISABLE", "peer-to-peer"), ("NCCL_SHM_DISABLE", "shared memory")):
        if told.get(name, "0") != "0":
            yield Finding(
                about="NCCL",
                level="wrong",
                found=f"{name} is {told[name]}.",
                matters=f"NCCL then never uses {what}, and cards talk over something slower.",
                do=f"Unset {name}, unless peer-to-peer was found to be broken here.",
            )
    furthest = max(
        (PATHS[host.nearness(one, other)] for one in range(len(host.cards)) for other in range(one)), key=LEVELS.index
    )
    level = told.get("NCCL_P2P_LEVEL")
    if level in LEVELS and LEVELS.index(level) < LEVELS.index(furthest):
        yield Finding(
            about="NCCL",
            level="wrong",
            found=f"NCCL_P2P_LEVEL is {level}, and the furthest cards are {furthest} apart.",
            matters="Cards further apart than the level talk through host memory.",
            do=f"Set NCCL_P2P_LEVEL={furthest} where copies between all cards are intact.",
        )
    elif level is None and LEVELS.index(furthest) >= LEVELS.index("PHB"):
        yield Finding(
            about="NCCL",
            level="advice",
            found=f"NCCL_P2P_LEVEL is not set, and the furthest cards are {furthest} apart.",
            matters="NCCL may then go through host memory between cards that reach each other directly.",
            do=f"Where all copies are intact, compare `videoserve plan --again` with NCCL_P2P_LEVEL={furthest}.",
        )
    shown = ", ".join(f"{name}={value}" for name, value in told.items())
    yield good("NCCL", f"Set: {shown}." if told else "No NCCL variable is set.")
