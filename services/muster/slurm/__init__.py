"""Slurm's programs, as far as scripts in the wild call them: srun, scontrol, sbatch, squeue, scancel, sinfo, module.

`python -m muster.slurm NAME ARGUMENTS` runs one; `muster.slurm.install` writes wrappers for a PATH. `batch` runs the script of a
job on its first node and `stepd` waits on the others for what srun sends. Nothing here is a Slurm: what a program does not
do it says, in one sentence.
"""
