"""A tiny training as one would write it; PAUSE seconds in each step make it last."""

import os
import sys
import time

import torch

import loadsheet as ls

ls.deterministic(0, threads=1)
torch.set_num_threads(1)
config = {"seed": 0, "width": 32, "steps": int(sys.argv[1])}
model = torch.nn.Sequential(
    torch.nn.Linear(16, config["width"]), torch.nn.Dropout(0.1), torch.nn.Linear(config["width"], 1)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.utils.data.TensorDataset(torch.randn(512, 16), torch.randn(512, 1))
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)

run = ls.Run.open("runs", config)
run.keep(model=model, optimizer=optimizer)
batches = run.batches(loader)
for _step in run.steps(config["steps"], checkpoint_every=50):
    x, y = next(batches)
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log(loss=loss.item())
    time.sleep(float(os.environ.get("PAUSE", "0")))
print("done", run.path)
