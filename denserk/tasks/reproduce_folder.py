"""The folder of `denserk reproduce`: what is made again, and what may be removed of it."""

from dataclasses import replace
from pathlib import Path

from denserk.config.analysis import Step
from denserk.errors import UsageError
from denserk.io.blocks import reject_other_run
from denserk.io.file_errors import write_errors
from denserk.io.manifest import Kind, Manifest, file_sha256, started_manifest, write_manifest
from denserk.io.outputs import MANIFEST, reject_occupied, remove_folder, training_folder
from denserk.io.written_files import IR_METADATA_SUFFIX, is_temporary

STEPS = "steps"  # in the contents of the manifest: names of files and folders that were made again


class WorkFolder:
    """The folder of what is made again. Its manifest names the run and the steps within."""

    def __init__(self, path: Path, run: str, from_step: Step) -> None:
        self.path = path
        made_from = {"run": {"name": run, "sha256": file_sha256(run)}}
        self._manifest = Manifest(
            Kind.REPRODUCTION, False, {"from_step": from_step.value}, made_from
        )

    def prepare(self, *, overwrite: bool, resume: bool) -> None:
        """Create the folder; empty or continue one that an earlier `reproduce` made."""
        started = started_manifest(self.path, Kind.REPRODUCTION, overwrite=overwrite, resume=resume)
        if started is not None and resume:
            reject_other_run(self.path, started, self._manifest, ["run"])
            self._manifest = replace(self._manifest, contents=started.contents)
        elif started is not None:
            self._remove_steps(started)
        with write_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        write_manifest(self.path, self._manifest)

    def step_path(self, name: str) -> str:
        """Return the path of a step, noted before there is a file."""
        steps = [*self._manifest.contents.get(STEPS, ())]
        if name not in steps:
            self._manifest = replace(self._manifest, contents={STEPS: [*steps, name]})
            write_manifest(self.path, self._manifest)
        return str(self.path / name)

    def complete(self) -> None:
        """Write that all steps were walked."""
        write_manifest(self.path, replace(self._manifest, complete=True))

    def _remove_steps(self, started: Manifest) -> None:
        """Remove the steps of an earlier `reproduce`; a UsageError if there is anything else.

        The manifest stays until it is replaced: a later command knows the folder by it.
        """
        steps = [self.path / name for name in started.contents.get(STEPS, ())]
        removable: set[Path] = set()
        for step in steps:
            removable.add(step)
            removable.add(training_folder(step))
            removable.add(self.path / f"{step.name}.{MANIFEST}")
            removable.add(self.path / f"{step.name}{IR_METADATA_SUFFIX}")
            for folder in (step, training_folder(step)):
                if folder.is_dir():
                    reject_occupied(folder, overwrite=True)
        for item in self.path.iterdir():
            is_known = item in removable or item.name == MANIFEST or is_temporary(item)
            if not is_known:
                message = f"{item} is in the way: denserk did not write it"
                raise UsageError(message, f"choose another output, or remove {self.path} yourself")
        with write_errors(self.path):
            for item in removable:
                if item.is_dir() and not item.is_symlink():
                    remove_folder(item)
                else:
                    item.unlink(missing_ok=True)
