"""Where a checkpoint's files are: a folder, the hub, or the copy fetched from it before."""

import logging
from collections.abc import Sequence
from pathlib import Path

from varifocal.errors import UnsupportedTarget
from varifocal.targets._refuse import first_line

logger = logging.getLogger(__name__)


def place_of(name_or_path: str, *, shipped: Sequence[str] = ("demo",)) -> str:
    """What to load from: the folder or hub id itself, or the copy of a hub that is out of reach.

    The hub is asked once, and waited for as long as HF_HUB_ETAG_TIMEOUT says (10 s). transformers
    alone would ask for every file that is not here, six times each, for 23 seconds without a
    network. Raises UnsupportedTarget where there is neither a folder, nor a hub, nor a copy; the
    error offers what is `shipped`.
    """
    if Path(name_or_path).is_dir():
        return name_or_path
    if name_or_path.startswith((".", "/", "~")):
        raise UnsupportedTarget(f"there is no folder {name_or_path}; give a checkpoint's folder")
    # Imported here: it takes time that `--help` should not.
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        HfApi().model_info(name_or_path, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except (ValueError, TypeError, KeyError):  # no hub id, or a mirror that only has files
        return name_or_path
    except Exception as error:  # the class is that of the hub's HTTP library, which has changed
        if getattr(error, "response", None) is not None:
            return name_or_path  # it was reached: what it refuses is told where files are read
        try:
            copy = snapshot_download(
                name_or_path, allow_patterns=["config.json"], local_files_only=True
            )
        except LocalEntryNotFoundError:
            names = " or ".join(f'"{name}"' for name in shipped)
            raise UnsupportedTarget(
                f"{name_or_path!r} is no folder here, was not fetched before, and the hub cannot "
                f"be reached ({first_line(error)}). Give a folder, a hub id that was fetched "
                f"before, or {names}; or go online once"
            ) from error
        logger.info("the hub cannot be reached: %s is read from %s", name_or_path, copy)
        return str(copy)
    return name_or_path
