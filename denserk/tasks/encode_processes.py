"""Texts -> vectors by several processes: one a device of this machine, or as torchrun started them.

All write blocks into one folder, whose bytes are those of a single process at the same kind of
device, precision and number of CPU threads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from denserk.errors import UsageError
from denserk.formats.files import STREAM
from denserk.modeling.devices import choose_device
from denserk.settings.encoding import ComputeSettings, EncodeSettings, VectorFormat
from denserk.settings.formats import CorpusSettings
from denserk.tasks.encode import encode
from denserk.tasks.encode_tally import EncodeResult
from denserk.tasks.processes import ALONE, Crew, launched, on_devices, under_torchrun


@dataclass(frozen=True)
class _Encoding:
    """What `encode` is asked, but for the device."""

    settings: EncodeSettings
    corpus: CorpusSettings
    representation: Mapping[str, Any]
    text: Mapping[str, Any]
    compute: ComputeSettings

    def __call__(self, device: str, crew: Crew) -> EncodeResult:
        compute = replace(self.compute, device=device)
        given = self.settings, self.corpus, self.representation, self.text, compute
        return encode(*given, crew)


def encode_everywhere(
    settings: EncodeSettings,
    corpus: CorpusSettings,
    representation: Mapping[str, Any],
    text: Mapping[str, Any],
    compute: ComputeSettings,
) -> EncodeResult:
    """Encodes one side of a collection in as many processes as are asked for.

    Args:
        settings: see `denserk.tasks.encode.encode`, which each process calls.
        corpus: how passages are read.
        representation: fields of RepresentationSettings that override the model's own.
        text: fields of TextSettings that override the model's own.
        compute: where and how precisely; several devices, separated by commas, are a process each.

    Raises:
        DenserkError: any process was refused or lost; the others are ended.
    """
    work = _Encoding(settings, corpus, dict(representation), dict(text), compute)
    devices, world = compute.device.split(","), launched()
    if world is not None:
        _refuse(settings, f"WORLD_SIZE {world.size}")
        device = _device_of_rank(compute.device, world.local_rank)
        with under_torchrun() as crew:
            return work(device, crew)
    if len(devices) == 1:
        return work(compute.device, ALONE)
    _refuse(settings, f"--device {compute.device}")
    _refuse_devices(devices)
    return on_devices(devices, work)


def _refuse(settings: EncodeSettings, asked: str) -> None:
    """Refuses what one process alone can do.

    Raises:
        UsageError: the source is a stream, or the output a single file.
    """
    if settings.source == STREAM:
        raise UsageError(
            f"{asked}: a stream can be read by one process only",
            "write it to a file first, or use one device",
        )
    if settings.output_format is not VectorFormat.NPY:
        raise UsageError(
            f"{asked}: --output-format {settings.output_format} is written by one process only",
            "use --output-format npy, and denserk convert afterwards",
        )


def _refuse_devices(devices: list[str]) -> None:
    """Refuses devices whose vectors would not be those of one device.

    Raises:
        UsageError: they are of two kinds, or one is not there, or not named outright.
    """
    for device in devices:
        if device == "auto":
            raise UsageError("--device auto among several", "name each: cuda:0,cuda:1")
        choose_device(device)
    if len({device.split(":")[0] for device in devices}) > 1:
        raise UsageError(
            f"--device {','.join(devices)}: vectors differ between kinds of devices",
            "name devices of one kind",
        )


def _device_of_rank(name: str, local_rank: int) -> str:
    """The device of a process that torchrun started.

    Raises:
        UsageError: a device was named that all processes of a machine would share, or there is none
            of that number.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(
            f"--device {name} under torchrun, where each process takes the GPU of its rank",
            "use --device auto, cpu or cuda",
        )
    device = choose_device(name)
    return name if device.type == "cpu" else str(choose_device(f"cuda:{local_rank}"))
