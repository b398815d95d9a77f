"""A device package's own test where there is a GPU of its target: PyTorch multiplies on it."""

import os

import torch

target = os.environ["PKG_NAME"].rpartition("-")[2]
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
names = [torch.cuda.get_device_properties(index).gcnArchName for index in range(count)]
fitting = [index for index, name in enumerate(names) if name.partition(":")[0] == target]
if fitting:
    ones = torch.ones(64, 64, device=f"cuda:{fitting[0]}")
    total = (ones @ ones).sum().item()
    assert total == 64.0**3, total
    print(f"{names[fitting[0]]}: {total}")
else:
    print(f"not-run: this machine has no {target} GPU that PyTorch sees")
