"""Applies Adam steps to the dense weights in native code: one call instead of about forty torch operations.

The optimizer stays torch's. Its state tensors are read and changed in place, so that checkpoints and callbacks see no difference;
``torch.optim.Adam.step`` is the slow twin, and equal up to rounding (``native/core/network/adam_of_dense_weights.h``).
"""

from __future__ import annotations

import torch

from ctrbox import _native

# Settings of torch's Adam that the native step does not know: what each must be.
PLAIN = {"amsgrad": False, "maximize": False, "capturable": False, "differentiable": False, "fused": None}
HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class AdamStep:
    """Adam steps of one torch optimizer, computed in native code."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.built: list[_native.Adam] = []  # of each group of weights
        self.addresses: list[int] = []

    @property
    def usable(self) -> bool:
        """Return whether the native step supports the settings of the optimizer, and the optimizer has no hooks."""
        optimizer = self.optimizer
        if "step" in vars(optimizer) or any(getattr(optimizer, name) for name in HOOKS):
            return False
        return all(
            all(group.get(name) == value for name, value in PLAIN.items())
            and not group.get("decoupled_weight_decay")  # of Adam since torch 2.7; it is then AdamW
            and not isinstance(group["lr"], torch.Tensor)
            for group in optimizer.param_groups
        )

    def step(self, threads: int) -> None:
        """Change every weight that has a gradient."""
        tensors = [t for group in self.optimizer.param_groups for p in group["params"] for t in self._tensors(p)]
        addresses = [t.data_ptr() for t in tensors]
        if addresses != self.addresses or len(self.built) != len(self.optimizer.param_groups):
            self._build()
            self.addresses = addresses
        # The groups are asked for each time: load_state_dict replaces them, and may keep the tensors.
        for group, native in zip(self.optimizer.param_groups, self.built, strict=True):
            beta1, beta2 = group["betas"]
            native.step(group["lr"], beta1, beta2, group["eps"], group["weight_decay"], threads)

    def _tensors(self, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return a weight, its gradient and its state, which the first step creates; nothing if there is no gradient."""
        if weight.grad is None:
            return ()
        state = self.optimizer.state[weight]
        if not state:
            state["step"] = torch.tensor(0.0, dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        return weight, weight.grad, state["exp_avg"], state["exp_avg_sq"], state["step"]

    def _build(self) -> None:
        self.built = []
        for group in self.optimizer.param_groups:
            native = _native.Adam()
            for weight in group["params"]:
                if tensors := self._tensors(weight):
                    native.add(*(t.detach().view(-1).numpy() for t in tensors))
            self.built.append(native)
