"""Trains in several processes of one machine or of several, without Ray (docs/processes/ranks.md).

torchrun_environment.py      which process this is, from the environment that torchrun sets
group.py      the connections between all processes: sums, exchanges, and which rank is missing when one hangs
devices.py    which GPU a rank uses, and whether ranks exchange tensors by NCCL or through main memory
same_code_data_settings.py      code, data and settings of a process, and what differs between two
keys_exchanged_ahead.py      the exchange of the next batch's keys while a batch is learned
exchange_costs.py      what the exchanges of a step cost a rank: bytes and waiting
batch_normalization.py  batch normalization over the rows of all ranks
table.py      an embedder whose rows are owned by the ranks, each row by one
gpu_table.py  the same with keys, rows and gradients on the GPU of the rank
rows_of_batch_on_gpu.py the rows of one batch on a GPU, whose gradients are added up
evaluation.py scores of the validation rows, of which every rank computes a part
fit.py        the trainer's loop in one rank
ranks.py      checks, start and end of a training run, as ``Trainer.fit(cluster=…)`` asks for them
start_and_watch_ranks.py ``ctrbox train --ranks N``: starts the processes, forwards signals, ends all when one fails
"""
