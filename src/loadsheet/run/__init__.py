"""The run: one execution of one config, which loses nothing and resumes bit for bit.

Modules: `loop` (Run, what a training script uses), `directory`, `lock`, `log`, `provenance` (the record),
`state`, `checkpoint`, `saver`, `mirror` (what is saved, and how), `batches` (data, exact mid-epoch),
`signals`, `notices` (why a run stops), `determinism`, `load` (weights of a finished or running run).

Nothing is imported here: the command line reads a run without loading PyTorch.
"""
