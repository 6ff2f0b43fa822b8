# ruff: noqa: F401, F811  (fixtures are imported, and are arguments)
"""Checkpoints are written to Google Cloud Storage and Azure, and removed there: their requests differ from S3."""

from pathlib import Path

import numpy as np
import pytest

from fault_server import FaultServer
from max_weights import load_weights, save_file, save_sharded
from max_weights.remote import Remote
from refusals import refuses
from test_remote_saving import folder, kept, open_uploads, server, tensors


def of(server: FaultServer, scheme: str) -> Remote:
    """The settings to open URLs of a vendor."""
    if scheme == "az":
        key = "dmVyeS1zZWNyZXQta2V5"
        return Remote(endpoint=server.azure, credentials={"account": "lab", "key": key}, retries=2)
    keys = {"token": "very-secret-key"} if scheme == "gs" else {"key_id": "a", "secret": "very-secret-key"}
    return Remote(endpoint=server.s3, credentials=keys, retries=2)


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_google_and_azure_are_listed_and_written_to(
    server: FaultServer, folder: Path, tmp_path: Path, scheme: str
) -> None:
    remote = of(server, scheme)
    data, url = tensors(), f"{scheme}://bucket/model"
    local = save_sharded(data, tmp_path / "local", max_shard_size="12MB")
    files = save_sharded(data, url, max_shard_size="12MB", remote=remote, read_back=True)
    assert [str(file) for file in files] == [f"{url}/{file.name}" for file in local]
    for file in local:
        assert (folder / "bucket/model" / file.name).read_bytes() == file.read_bytes(), file.name
    # Without its index, the listing of the files defines the checkpoint.
    (folder / "bucket/model" / files[-1].name).unlink()
    for place in (url, f"{scheme}://bucket/model/"):
        loaded = load_weights(place, remote=remote).load(framework="numpy")
        assert all(array.tobytes() == loaded[name].tobytes() for name, array in data.items())
    one = f"{scheme}://bucket/one.safetensors"
    for mib in (1, 30):
        place = folder / "bucket/one.safetensors"
        place.unlink(missing_ok=True)
        save_file(tensors(mib), one, remote=remote, if_exists="fail")
        before = kept(folder)
        server.reset_counts()
        save_file(tensors(mib), one, remote=remote, if_exists="same")
        with pytest.raises(FileExistsError):
            save_file(tensors(mib, seed=1), one, remote=remote, if_exists="same")
        with pytest.raises(FileExistsError):
            save_file({"other": np.ones(3)}, one, remote=remote, if_exists="fail")
        assert server.counts()["uploaded"] == 0
        assert kept(folder) == before
        for fault, cause in (("part-fails", "cannot upload part"), ("denied method=PUT", "403 AccessDenied")):
            server.set(fault)
            if mib > 1 or not fault.startswith("part"):
                with pytest.raises(OSError, match=cause) as raised:
                    save_file(tensors(mib, seed=2), one, remote=remote)
                assert "very-secret-key" not in str(raised.value)
                assert kept(folder) == before
            server.set()
    with pytest.raises(FileNotFoundError):
        load_weights(f"{scheme}://bucket/nothing", remote=remote)
    assert open_uploads(server) == 0


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_what_an_older_save_left_is_removed_by_few_requests(
    server: FaultServer,
    folder: Path,
    scheme: str,
) -> None:
    remote, url = of(server, scheme), f"{scheme}://bucket/model"
    old = save_sharded(tensors(), url, max_shard_size="6MB", remote=remote)
    assert len(old) > 5
    server.reset_counts()
    save_sharded({"one": np.ones(3)}, url, remote=remote)
    assert set(kept(folder)) == {"bucket/model/model.safetensors"}
    removals = [request for request in server.log() if request["method"] in {"POST", "DELETE"}]
    # Google has no batch deletion.
    assert len(removals) == (len(old) if scheme == "gs" else 1)
    assert set(load_weights(url, remote=remote).load(framework="numpy")) == {"one"}


def test_of_a_folder_of_azure_that_fails_what_has_its_name_is_removed(server: FaultServer, folder: Path) -> None:
    remote = of(server, "az")
    server.set("denied method=PUT path=index.json")
    with refuses(OSError):
        save_sharded(tensors(), "az://bucket/model", max_shard_size="12MB", remote=remote, if_exists="fail")
    assert kept(folder) == {}
    server.set("denied method=PUT path=index.json", "denied method=POST")
    with refuses(OSError):
        save_sharded(tensors(), "az://bucket/model", max_shard_size="12MB", remote=remote, if_exists="fail")
    assert kept(folder) != {}
