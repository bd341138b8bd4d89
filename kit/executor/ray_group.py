"""A worker group whose ranks run in a Ray cluster, on any of its machines.

Ray places the processes and starts them. What is said goes the same way as on one machine: each
rank connects to this process and knows a secret that Ray brought it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from kit.errors import GroupLostError, UnsupportedError
from kit.executor.link import RankGoneError, RankLink, import_path
from kit.executor.remote import RemoteExecutor
from kit.messages import StartRank, WorkerConfig
from kit.telemetry.log import get_logger

_PLACE_S = 60.0
"""How long the cluster may take to find room for a group, and to start its processes."""

logger = get_logger("executor")


class RankActor:
    """Runs on the rank's machine, as a Ray actor."""

    def where(self) -> tuple[str, int, int]:
        """Return this machine's address, the process id and a port that is free now."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return str(_ray().util.get_node_ip_address()), os.getpid(), port

    def serve(self, address: tuple[str, int], secret: bytes) -> None:
        """Be a rank of the process that listens at `address`, until it says otherwise."""
        from kit.worker.process import leave, serve

        connection = Client(address, authkey=secret)
        assert isinstance(connection, Connection), "an address and a port are a socket's"
        serve(connection)
        leave()


class RayRank(RankLink):
    """A rank in a Ray actor."""

    def __init__(
        self, name: str, connection: Connection, actor: Any, where: tuple[str, int, int]
    ) -> None:
        super().__init__(name, connection)
        self._actor, self._where = actor, where

    @property
    def pid(self) -> int:
        return self._where[1]

    def is_gone(self) -> bool:
        """As in RankLink; reads nothing that another thread waits for."""
        with socket.socket(fileno=os.dup(self._fd)) as end:
            try:
                return end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
            except BlockingIOError:
                return False
            except OSError:
                return True

    def describe_end(self) -> str:
        """As in RankLink."""
        host, pid, _ = self._where
        return f"{self.name} (process {pid} on {host}) has ended"

    def end(self, deadline: float) -> None:
        """As in RankLink."""
        while time.monotonic() < deadline and not self.is_gone():
            time.sleep(0.02)
        # A rank that is inside a step sees this, whatever Ray makes of it.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._fd)) as end:
            end.shutdown(socket.SHUT_RDWR)
        _ray().kill(self._actor)

    @property
    def _fd(self) -> int:
        return self.connection.fileno()


class RayExecutor(RemoteExecutor):
    """An Executor: ranks as Ray actors, all on one machine where one has room."""

    def __init__(self, configs: Sequence[WorkerConfig], *, name: str, timeout_s: float) -> None:
        """Start an actor for each configuration and wait until all have loaded.

        Raises UnsupportedError without Ray or a cluster, GroupLostError if it has no room now.
        """
        super().__init__(name, timeout_s)
        self._place: Any = None
        self._load(lambda: self._launch(configs))

    def _launch(self, configs: Sequence[WorkerConfig]) -> None:
        ray = connect()
        on_cpu = configs[0].device == "cpu"
        needs = {"CPU": 1.0} if on_cpu else {"CPU": 1.0, "GPU": 1.0}
        self._place = ray.util.placement_group([needs] * len(configs), strategy="PACK")
        if not self._place.wait(_PLACE_S):
            raise GroupLostError(
                f"{self.name}: the Ray cluster has no room for {len(configs)} ranks of {needs} each"
            )
        actors = [self._actor(ray, needs, at) for at in range(len(configs))]
        places = ray.get([actor.where.remote() for actor in actors], timeout=_PLACE_S)
        host, _, port = places[0]
        meeting = f"tcp://{host}:{port}" if len(configs) > 1 else None
        for rank, (config, actor, where) in enumerate(zip(configs, actors, places, strict=True)):
            # Ray shows an actor its own accelerators only.
            device = "cpu" if on_cpu else f"{config.device.partition(':')[0]}:0"
            link = RayRank(f"{self.name} rank {rank}", self._meet(ray, actor), actor, where)
            self._ranks.append(link)
            own = replace(config, rendezvous=meeting, device=device)
            link.send(StartRank(own, link.name, logger.getEffectiveLevel(), ()))
            logger.info("%s: process %d on %s, by Ray", link.name, where[1], where[0])

    def _actor(self, ray: Any, needs: dict[str, float], at: int) -> Any:
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            self._place, placement_group_bundle_index=at
        )
        remote = ray.remote(RankActor).options(
            num_cpus=needs["CPU"],
            num_gpus=needs.get("GPU", 0.0),
            max_restarts=0,
            scheduling_strategy=strategy,
            runtime_env={"env_vars": {"PYTHONPATH": import_path()}},
        )
        return remote.remote()

    def _meet(self, ray: Any, actor: Any) -> Connection:
        """Listen until the actor has connected; the port is closed again then."""
        secret = secrets.token_bytes(32)
        host = str(ray.util.get_node_ip_address())
        with Listener((host, 0), authkey=secret) as listener:
            accepting = listener._listener._socket  # type: ignore[attr-defined]
            accepting.settimeout(_PLACE_S)
            actor.serve.remote(listener.address, secret)
            try:
                connection = listener.accept()
            except TimeoutError as error:
                raise RankGoneError(f"{self.name}: a rank did not connect to {host}") from error
        assert isinstance(connection, Connection), "it listens on a socket"
        os.set_blocking(connection.fileno(), True)
        return connection

    def _release(self) -> None:
        if self._place is not None:
            _ray().util.remove_placement_group(self._place)
            self._place = None


def connect() -> Any:
    """Return Ray, connected to the cluster of this machine; raises UnsupportedError."""
    ray = _ray()
    if not ray.is_initialized():
        try:
            ray.init(address="auto", configure_logging=False)
        except ConnectionError as error:
            raise UnsupportedError(
                "stages[0].distributed_executor_backend: ray found no cluster here; run `ray start "
                "--head` on one machine and `ray start --address=...` on the others, or use mp"
            ) from error
    return ray


def _ray() -> Any:
    # By name and late: an optional extra, and its import takes a second.
    try:
        import_module("ray.util.scheduling_strategies")
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "stages[0].distributed_executor_backend: Ray is not installed; install the kit with "
            "its extra `ray`, or use mp"
        ) from error
