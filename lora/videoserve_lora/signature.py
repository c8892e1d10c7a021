"""What a file is that is no safetensors file, told from its first bytes: its sender learns what to change."""

STARTS = (
    (b"PK\x03\x04", "a zip archive, as torch.save writes (convert it to safetensors)"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"\x1f\x8b", "compressed with gzip"),
    (b"BZh", "compressed with bzip2"),
    (b"\xfd7zXZ", "compressed with xz"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"GGUF", "a GGUF file"),
    (b"version https://git-lfs", "a pointer to a file in Git LFS, not the file itself"),
    (b"<!DOCTYPE", "an HTML page"),
    (b"<!doctype", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"\x89HDF", "an HDF5 file"),
)
# A pickle begins with its protocol; old ones with the number torch wrote first.
PICKLES = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))


def signature(start: bytes) -> str | None:
    """What the file with these first bytes (512 of them, or all) is; None when it may be a safetensors file."""
    if not start:
        return "empty"
    # The ninth byte of a safetensors file opens its header: 0x80 0x02 may then be the low bytes of the header's length.
    if start.startswith(PICKLES) and start[8:9] != b"{":
        return "a pickle, which can run code when it is read (convert it to safetensors)"
    if start[257:262] == b"ustar":
        return "a tar archive"
    return next((what for magic, what in STARTS if start.startswith(magic)), None)
