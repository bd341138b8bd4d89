"""The optimizer: Muon for the matrices inside the network, AdamW for everything else.

Muon steps along the orthogonalised momentum of a matrix (K. Jordan et al., "Muon: an optimizer for
hidden layers in neural networks", 2024), scaled so that its step is as long as AdamW's
(J. Liu et al., "Muon is scalable for LLM training", 2025).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kit.model.clip_conv import ClipConv3d
from kit.model.moe import Experts

_MOMENTUM = 0.95
_ADAM_STEP_RMS = 0.2
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NUM_ITERATIONS = 5
_MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True)
class Matrices:
    """One parameter seen as `num` matrices [rows, columns]."""

    parameter: nn.Parameter
    part: Callable[[Tensor], Tensor]
    """The view of the parameter, or of its gradient, that holds them."""

    num: int
    rows: int
    columns: int


def linear_matrices(modules: Iterable[nn.Module]) -> Iterator[Matrices]:
    """Yield the weights of linear layers and experts below some modules."""
    for module in modules:
        for part in module.modules():
            if isinstance(part, nn.Linear | Experts):
                for weight in part.parameters(recurse=False):
                    if weight.dim() == 1:
                        continue
                    num = weight.shape[0] if weight.dim() == 3 else 1
                    yield Matrices(weight, _whole, num, weight.shape[-2], weight.shape[-1])


def kernel_matrices(modules: Iterable[nn.Module]) -> Iterator[Matrices]:
    """Yield the middle slices of the kernels below some modules, [out, in * height * width]."""
    for module in modules:
        for part in module.modules():
            if isinstance(part, ClipConv3d):
                middle = _first if part.reach == 0 else _second
                rows, columns = len(part.weight), middle(part.weight)[0].numel()
                yield Matrices(part.weight, middle, 1, rows, columns)


class Optimizer:
    """Steps over all parameters of a training run; keeps its momenta on their device."""

    def __init__(
        self,
        matrices: Iterable[Matrices],
        others: Iterable[nn.Parameter],
        *,
        matrix_learning_rate: float,
        learning_rate: float,
        betas: tuple[float, float],
        weight_decay: float = 0.0,
    ) -> None:
        self._others = list(others)
        device = self._others[0].device
        self._rates = matrix_learning_rate, learning_rate
        # On the device: a recorded step reads the rates of the call that replays it.
        self._matrix_rate, self._rate = (torch.zeros((), device=device) for _ in range(2))
        self._weight_decay = weight_decay
        groups: dict[tuple[int, int], list[Matrices]] = defaultdict(list)
        for each in matrices:
            groups[each.rows, each.columns].append(each)
        self._groups = [
            (group, torch.zeros(sum(m.num for m in group), *shape, device=device))
            for shape, group in groups.items()
        ]
        on_gpu = device.type == "cuda"
        self._adam = torch.optim.AdamW(
            self._others,
            lr=self._rate,
            betas=betas,
            weight_decay=weight_decay,
            fused=on_gpu,
            capturable=on_gpu,
        )

    def set_lr_scale(self, scale: float) -> None:
        """Scale both learning rates of the steps that follow."""
        matrix_rate, rate = self._rates
        self._matrix_rate.fill_(matrix_rate * scale)
        self._rate.fill_(rate * scale)

    def step(self) -> None:
        """Update every parameter in place from its gradient, then drop the gradients."""
        for group, momentum in self._groups:
            self._step_matrices(group, momentum)
        nn.utils.clip_grad_norm_(self._others, _MAX_GRADIENT_NORM)
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)

    @torch.no_grad()
    def _step_matrices(self, group: list[Matrices], momentum: Tensor) -> None:
        gradients = []
        for m in group:
            assert m.parameter.grad is not None, "every matrix took part in the loss"
            gradients.append(m.part(m.parameter.grad).reshape(m.num, m.rows, m.columns))
            m.parameter.grad = None
        gradient = torch.cat(gradients).float()
        momentum.lerp_(gradient, 1 - _MOMENTUM)
        direction = orthogonalise(gradient.lerp(momentum, _MOMENTUM))  # Nesterov's look ahead
        length = _ADAM_STEP_RMS * max(group[0].rows, group[0].columns) ** 0.5
        updates = (direction * (self._matrix_rate * length)).split([m.num for m in group])
        weights = [m.part(m.parameter) for m in group]
        torch._foreach_mul_(weights, 1 - self._matrix_rate * self._weight_decay)
        torch._foreach_sub_(
            weights, [u.reshape(w.shape) for u, w in zip(updates, weights, strict=True)]
        )


def orthogonalise(matrices: Tensor) -> Tensor:
    """Bring the singular values of [N, rows, columns] near 1, by Newton-Schulz iterations."""
    a, b, c = _NEWTON_SCHULZ
    length = torch.linalg.matrix_norm(matrices, keepdim=True)
    x: Tensor = matrices / length.clamp_min(1e-12)
    x = x.to(torch.bfloat16) if x.is_cuda else x
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    for _ in range(_NUM_ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).float()


def _whole(tensor: Tensor) -> Tensor:
    return tensor


def _first(tensor: Tensor) -> Tensor:
    return tensor[:, :, 0]


def _second(tensor: Tensor) -> Tensor:
    return tensor[:, :, 1]
