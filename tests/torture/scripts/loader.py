"""An image classifier with a DataLoader of two workers, augmentation and accumulated gradients.

Written without interruptions in mind; the five lines for the run are marked with `+`.
"""

import json
import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import loadsheet as ls  # + 1

config = {"lr": 0.02, "epochs": 6, "batch": 8, "accumulate": 2, "seed": 3}
torch.manual_seed(config["seed"])
torch.set_num_threads(1)


class Digits(Dataset):
    """Stripes of four kinds, shifted and dimmed at random."""

    def __len__(self):
        return 160

    def __getitem__(self, i):
        image = torch.zeros(1, 12, 12)
        image[0, :: 2 + i % 4] = 1.0
        image = torch.roll(image, random.randrange(3), 1) * random.uniform(0.7, 1.3)
        return image + 0.3 * torch.randn(1, 12, 12), i % 4


loader = DataLoader(Digits(), config["batch"], shuffle=True, num_workers=2, drop_last=True)
model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(600, 4))
optimizer = torch.optim.SGD(model.parameters(), config["lr"], momentum=0.9)
steps = config["epochs"] * len(loader) // config["accumulate"]
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps + 1)
run = ls.Run.open(sys.argv[1], config)  # + 2
run.keep(model=model, optimizer=optimizer, scheduler=scheduler)  # + 3
batches = run.batches(loader)  # + 4
for _ in run.steps(steps, checkpoint_every=2):  # + 5
    for _ in range(config["accumulate"]):
        images, labels = next(batches)
        loss = nn.functional.cross_entropy(model(images), labels) / config["accumulate"]
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()

result = {name: value.tolist() for name, value in model.state_dict().items()}
with open(sys.argv[2], "w") as file:
    json.dump({"weights": result, "rate": scheduler.get_last_lr(), "next": torch.rand(3).tolist()}, file)
