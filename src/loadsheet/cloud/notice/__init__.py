"""Hearing that a machine will be taken: the metadata services of AWS, Google Cloud and Azure.

`aws`, `gcp`, `azure`: what each of them says, as a `Notice`; `http`: how they are asked; `listen`: which of
them is here, and what becomes of the answers: the notice file that a run obeys, or a callable for it.
"""
