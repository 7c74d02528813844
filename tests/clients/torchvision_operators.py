"""torchvision beside a torch that its compiled half was not built for.

Registries have wheels of torchvision for CUDA alone. Beside a CPU torch the compiled half does not load, and then even
the import fails, because Python declares what the operators give for tensors without data. The projects use transforms
alone, which are Python: with the operators' names declared, the import works, and calling one of them still fails.
Import this module first.
"""

import torch

try:
    import torchvision
except RuntimeError:
    _library = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # noqa: F401
