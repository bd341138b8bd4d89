"""Weights that wait in host memory and come to the card when they are needed."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from kit.errors import UnsupportedError, WorkerError
from kit.model.shard import Shard
from kit.model.transformer import DecoderLayer, HunyuanImage3
from kit.modelspec.config import ModelConfig


class StreamedLayers(nn.Module):
    """Decoder layers in host memory; two places on the card take turns.

    Iterating gives each layer in order with its weights on the card, while the next one's are on
    their way. So a pass takes as long as the copies or the layers take, whichever is longer.
    """

    def __init__(
        self, config: ModelConfig, shard: Shard, layers: nn.ModuleList, device: torch.device
    ) -> None:
        """Lock the layers' weights, which lie in host memory, and take two places on `device`.

        Raises UnsupportedError for layers of different shapes, WorkerError if the driver cannot
        lock the memory.
        """
        super().__init__()
        shapes = {tuple(p.shape for p in layer.parameters()) for layer in layers}
        if len(shapes) > 1:
            raise UnsupportedError(
                "enable_layerwise_offload: the layers of this checkpoint have different shapes, "
                "and they take turns in one place on the card; set it to false"
            )
        self._layers = [_locked(layer) for layer in layers]
        self._places = nn.ModuleList(
            _place(config, shard, like, device) for like in list(layers)[:2]
        )
        self._device = device
        self._copies = torch.cuda.Stream(device)
        self._arrived, self._left = (_events(len(self._places)) for _ in range(2))
        self._first_is_here = False

    @property
    def host_tensors(self) -> list[Tensor]:
        """The weights as they wait."""
        return [tensor for layer in self._layers for tensor in layer]

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[DecoderLayer]:
        stream = torch.cuda.current_stream(self._device)
        if not self._first_is_here:
            for left in self._left:  # a pass that broke off may still be running on the card
                left.record(stream)
            self._send(0)
        self._first_is_here = False  # until this pass has come to its end
        for layer in range(len(self)):
            at = layer % len(self._places)
            if layer + 1 < len(self):
                self._send(layer + 1)
            place = self._places[at]
            assert isinstance(place, DecoderLayer), "places are decoder layers"
            place.self_attn.layer = layer
            stream.wait_event(self._arrived[at])
            yield place
            self._left[at].record(stream)
        self._send(0)  # of the next pass
        self._first_is_here = True

    def _send(self, layer: int) -> None:
        at = layer % len(self._places)
        with torch.cuda.stream(self._copies):
            self._copies.wait_event(self._left[at])
            for there, waiting in zip(
                self._places[at].parameters(), self._layers[layer], strict=True
            ):
                there.copy_(waiting, non_blocking=True)
            self._arrived[at].record(self._copies)


def stream_layers(model: HunyuanImage3, device: torch.device) -> StreamedLayers:
    """Have a model iterate over streamed layers in place of its own, which lie in host memory."""
    layers = StreamedLayers(model.config, model.shard, model.model.layers, device)
    model.model.register_module("layers", layers)
    return layers


class WaitingModule:
    """A module whose weights lie in host memory while it does not run."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module, self._device = module, device
        self.host_tensors = _locked(module)
        """The weights as they wait."""

    @contextmanager
    def on_card(self) -> Iterator[None]:
        """Have the weights on the card while the block runs."""
        self._hold(waiting.to(self._device, non_blocking=True) for waiting in self.host_tensors)
        try:
            yield
        finally:
            self._hold(self.host_tensors)

    def _hold(self, tensors: Iterable[Tensor]) -> None:
        for parameter, tensor in zip(self._module.parameters(), tensors, strict=True):
            parameter.data = tensor


def _place(
    config: ModelConfig, shard: Shard, like: nn.Module, device: torch.device
) -> DecoderLayer:
    """Return a layer shaped like another, with memory of its own on the card."""
    with torch.device("meta"):
        place = DecoderLayer(config, 0, shard)
    for part, other in zip(place.modules(), like.modules(), strict=True):
        for name, parameter in list(other.named_parameters(recurse=False)):
            memory = torch.empty_like(parameter, device=device)
            setattr(part, name, nn.Parameter(memory, requires_grad=False))
    return place.eval()


def _events(count: int) -> list[torch.cuda.Event]:
    return [torch.cuda.Event() for _ in range(count)]


def _locked(module: nn.Module) -> list[Tensor]:
    """Lock a module's weights into memory where they lie, and return them.

    The driver is asked to lock them: torch's own pinned memory would round every tensor up to a
    power of two.
    """
    tensors = [parameter.data for parameter in module.parameters()]
    runtime = torch.cuda.cudart()
    for tensor in tensors:
        code = int(runtime.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
        if code:
            raise WorkerError(
                f"the driver could not lock {tensor.nbytes} bytes of host memory (CUDA error "
                f"{code}); raise the limit of locked memory (ulimit -l), or leave offload off"
            )
        weakref.finalize(tensor, runtime.cudaHostUnregister, tensor.data_ptr())
    return tensors
