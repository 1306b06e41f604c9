"""Slurm scripts in the manners in which people write them, and what each comes to.

Written for these tests after scripts in public repositories: their habits, not their text.
"""

from typing import Any

# name: (script, what it comes to, the options that are named as not honoured)
SCRIPTS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "plain-one-gpu": (
        "#!/bin/bash\n#SBATCH --job-name=first\n#SBATCH --gres=gpu:1\n#SBATCH --time=01:00:00\npython train.py\n",
        {"name": "first", "gpus": 1, "time_s": 3600, "cpus": 1, "nodes": 1, "tasks": "1"},
        [],
    ),
    "short-forms-joined": (
        "#!/bin/bash\n#SBATCH -N2\n#SBATCH -n8\n#SBATCH -c4\n#SBATCH -pgpu\n#SBATCH -t90\n#SBATCH -Jshort\nsrun ./a\n",
        {"name": "short", "queue": "gpu", "nodes": 2, "cpus": 16, "time_s": 5400, "tasks": "8"},
        ["-N"],
    ),
    "short-forms-apart": (
        "#!/bin/bash\n#SBATCH -N 1\n#SBATCH -n 4\n#SBATCH -p debug\n#SBATCH -t 0-00:30\n#SBATCH -o out.%j\n#SBATCH -e err.%j\n"
        "srun ./a\n",
        {"queue": "debug", "cpus": 4, "time_s": 1800, "output": "out.%j", "error": "err.%j"},
        [],
    ),
    "spaces-and-comments": (
        "#!/bin/bash\n#\n#SBATCH --partition gpu      # partition (queue)\n#SBATCH --nodes 1\n#SBATCH --ntasks 1  # one task\n"
        "#SBATCH --cpus-per-task 10\n#SBATCH --gres gpu:4\n#SBATCH --time 50:00:00\n#SBATCH --mem 120000\n"
        "#SBATCH --output slurm-%j.out\nsrun python -u $1\n",
        {"queue": "gpu", "cpus": 10, "gpus": 4, "memory_mib": 120000, "time_s": 180000},
        [],
    ),
    "commented-out": (
        "#!/bin/bash\n##SBATCH --gres=gpu:8\n# SBATCH --nodes=9\n#!SBATCH --time=1\n### #SBATCH --mem=1G\n#SBATCH --mem=16GB\n"
        "hostname\n",
        {"gpus": 0, "nodes": 1, "memory_mib": 16384, "time_s": None},
        [],
    ),
    "typed-gpus": (
        "#!/bin/sh\n#SBATCH --gres=gpu:a30:3\n#SBATCH --mem-per-cpu=4000M\n#SBATCH --cpus-per-task=8\nnvidia-smi\n",
        {"gpus": 3, "models": ("a30", "A30"), "memory_mib": 32000, "cpus": 8},
        [],
    ),
    "gpus-over-nodes": (
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus=8\n#SBATCH --ntasks-per-node=4\n#SBATCH --cpus-per-task=6\n"
        "srun python ddp.py\n",
        {"nodes": 2, "gpus": 4, "cpus": 24, "tasks": "8"},
        ["--nodes"],
    ),
    "gpus-per-task": (
        "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-task=1\n#SBATCH --cpus-per-task=72\n"
        "#SBATCH --mem=460000\n#SBATCH --no-requeue\t# logs would be lost\nsrun python main.py\n",
        {"nodes": 4, "gpus": 4, "cpus": 288, "memory_mib": 460000, "tasks": "16"},
        ["--nodes", "--no-requeue"],
    ),
    "gpus-per-node-typed": (
        '#!/usr/bin/bash\n#SBATCH --job-name="forl-proj"\n#SBATCH --gpus-per-node=rtx_2080_ti:1\n#SBATCH --nodes=3\n'
        "#SBATCH --ntasks=8\n"
        "#SBATCH --mem-per-cpu=8G\n#SBATCH --tmp=4G\n#SBATCH --time=10:00\nray start\n",
        {
            "name": "forl-proj",
            "nodes": 3,
            "gpus": 1,
            "models": ("rtx_2080_ti", "RTX_2080_TI", "RTX2080Ti"),
            "cpus": 3,
            "memory_mib": 24576,
        }
        | {"disk_mib": 4096, "time_s": 600},
        ["--nodes"],
    ),
    "half-node-specs": (
        "#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH --gpus-per-task=1\n#SBATCH --nodes=2\n#SBATCH --ntasks=2\n"
        "#SBATCH --cpus-per-gpu=8\n"
        "#SBATCH --mem=60G\n#SBATCH --time=0:20:00\n#SBATCH --account=plgllm-gpu-a100\nsrun torchrun train.py\n",
        {"nodes": 2, "gpus": 2, "cpus": 16, "memory_mib": 61440, "time_s": 1200, "labels": {"slurm.account": "plgllm-gpu-a100"}},
        ["--nodes", "--account"],
    ),
    "nodelist-in-brackets": (
        "#!/bin/bash\n#SBATCH --job-name=GPU-torchrun\n#SBATCH --mem=10G\n#SBATCH --partition=rtx6000\n#SBATCH --qos=normal\n"
        "#SBATCH --output=logs/%x.%j.log\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:2\n#SBATCH --ntasks-per-node=2\n"
        "#SBATCH --cpus-per-task=8\n"
        "#SBATCH --nodelist=gpu[170-179]\nexport NODELIST=`scontrol show hostnames $SLURM_JOB_NODELIST`\nsrun torchrun x.py\n",
        {"name": "gpu-torchrun", "nodes": 2, "gpus": 2, "cpus": 16, "selector": [("In", 10)], "output": "logs/%x.%j.log"},
        ["--qos", "--nodes"],
    ),
    "exclude-several": (
        "#!/bin/bash\n#SBATCH -x node021,node[071-076]\n#SBATCH --gres=gpu:1 --constraint=40GB\n#SBATCH --mem=20000\ndate\n",
        {"gpus": 1, "memory_mib": 20000, "selector": [("NotIn", 7)], "gpu_memory_mib": 38120},
        [],
    ),
    "array-at-once": (
        "#!/bin/bash\n#SBATCH --array=[0-50]%5\n#SBATCH --output=out/%A_%a.txt\n#SBATCH --mem-per-cpu=1gb\n"
        "python run.py $SLURM_ARRAY_TASK_ID\n",
        {"array": 51, "at_once": 5, "memory_mib": 1024, "output": "out/%A_%a.txt", "array_spec": "0-50"},
        [],
    ),
    "array-list": (
        "#!/bin/bash\n#SBATCH -a 1,3,7\n#SBATCH -t 1-20:00\nmodule purge\npython3 execute.py $SLURM_ARRAY_TASK_ID 30\n",
        {"array": 3, "time_s": 158400, "output": "slurm-%A_%a.out", "array_spec": "1,3,7"},
        [],
    ),
    "array-steps": (
        "#!/bin/bash\n#SBATCH --array=0-15:4\necho $SLURM_ARRAY_TASK_ID\n",
        {"array": 4, "array_spec": "0-12:4"},
        [],
    ),
    "array-of-one": (
        "#!/bin/bash\n#SBATCH --array=1\n#SBATCH --ntasks-per-node=1\n#SBATCH --chdir=/data/logs\necho $SLURM_ARRAY_TASK_ID\n",
        {"array": 1, "directory": "/data/logs", "array_spec": "1"},
        [],
    ),
    "login-shell-mpcdf": (
        "#!/bin/bash -l\n\n#SBATCH -o ./job.out.%j\n#SBATCH -e ./job.err.%j\n#SBATCH -D ../\n\n"
        "#SBATCH --job-name=multinode-example\n"
        "#SBATCH --nodes=1\n#SBATCH --constraints=gpu\n#SBATCH --ntasks-per-node=4\n\n#SBATCH --gres=gpu:a100:4\n"
        "#SBATCH --nvps\n\n"
        "#SBATCH --mail-type=none\n#SBATCH --mail-user=userid@example.org\n#SBATCH --time=00:10:00\nmodule purge\n"
        "srun torchrun x.py\n",
        {"gpus": 4, "cpus": 4, "time_s": 600, "directory": "/home/ann/..", "interpreter": ("/bin/bash", "-l", "-c")},
        ["--constraints", "--nvps", "--mail-user"],
    ),
    "short-with-equals": (
        "#!/bin/bash\n#SBATCH -o=slurm-%j.o\n#SBATCH --qos=6hours\n#SBATCH --array=1-409%20\nCOMMAND\n",
        {"output": "=slurm-%j.o", "array": 409},
        ["-o", "--qos"],
    ),
    "whole-memory": (
        "#!/bin/bash\n#SBATCH --account=project_2001659\n#SBATCH --partition=gputest\n#SBATCH --nodes=1\n#SBATCH --ntasks=1\n"
        "#SBATCH --cpus-per-task=40\n#SBATCH --mem=0\n#SBATCH --time=15\n#SBATCH --gres=gpu:a100:4\n"
        "srun singularity_wrapper exec deepspeed $*\n",
        {"cpus": 40, "memory_mib": 0, "time_s": 900, "gpus": 4},
        ["--account", "--mem"],
    ),
    "site-options": (
        "#!/bin/bash\n#SBATCH --environment=/iopsstor/env.toml   # an image of the site\n#SBATCH --quotatype=spot\n"
        "#SBATCH --signal=USR1@120\n"
        "#SBATCH --hint=nomultithread\n#SBATCH --exclusive\n#SBATCH --gpus=1\nsleep 1\n",
        {"gpus": 1, "exclusive": True},
        ["--environment", "--quotatype", "--signal", "--hint"],
    ),
    "constraint-of-models": (
        "#!/bin/sh\n#SBATCH --gpus=1\n#SBATCH --cpus-per-task=8\n#SBATCH --mem=32000\n#SBATCH --time=1440 # minutes\n"
        '#SBATCH --constraint="tesla_v100|quadro_rtx_8000|geforce_rtx_3090|a100|a5000|a6000"\npython3 train.py\n',
        {"gpus": 1, "models": ("V100", "RTX8000", "RTX3090", "A100", "RTXA5000", "RTXA6000"), "selector": [], "any_of": []},
        [],
    ),
    "constraint-in-brackets": (
        "#!/bin/bash\n#SBATCH -C [v100]\n#SBATCH --gres=gpu:1\npython a.py\n",
        {"models": ("V100",), "any_of": []},
        [],
    ),
    "constraint-with-a-size": (
        "#!/bin/bash\n#SBATCH --gres=gpu:a100:2\n#SBATCH --constraint=a100-80gb\npython a.py\n",
        {"models": ("a100", "A100"), "gpu_memory_mib": 76240, "gpus": 2},
        [],
    ),
    "constraint-gpu": (
        "#!/bin/bash\n#SBATCH --time=12:00:00\n#SBATCH --constraint=gpu\n#SBATCH --qos=regular\n#SBATCH --nodes=1\n"
        "#SBATCH --ntasks-per-node 1\n#SBATCH --cpus-per-task 4\n#SBATCH --gpus-per-task 2\nsrun -n 1 python3 train.py\n",
        {"gpus": 2, "selector": [], "models": ()},
        ["--qos"],
    ),
    "constraint-of-features": (
        '#!/bin/bash\n#SBATCH --constrain="rivendell|khazadum"\n#SBATCH --gres=gpu:1\npython train.py ${SLURMD_NODENAME}\n',
        {"any_of": [["feature.muster.io/rivendell"], ["feature.muster.io/khazadum"]], "selector": []},
        [],
    ),
    "constraint-both": (
        '#!/bin/bash\n#SBATCH -C "ib&(intel|amd)&fast"\nhostname\n',
        {"any_of": [["feature.muster.io/intel"], ["feature.muster.io/amd"]], "selector": [("Exists", 0), ("Exists", 0)]},
        [],
    ),
    "licences-and-nodes-alone": (
        "#!/bin/bash\n#SBATCH -L matlab:2,ansys@db:1\n#SBATCH --exclusive\n#SBATCH -N 2\n#SBATCH --switches=1\n"
        "#SBATCH --mincpus=16\nsrun ./solve\n",
        {
            "licences": {"matlab": 2, "ansys": 1},
            "exclusive": True,
            "spread": [("node", 1)],
            "within": [("rack", True)],
            "cpus": 16,
        },
        [],
    ),
    "spread-and-prefer": (
        "#!/bin/bash\n#SBATCH --spread-job\n#SBATCH --nodes=3\n#SBATCH --prefer=ssd\n#SBATCH --switches=1@10:00\nsrun ./solve\n",
        {"spread": [("node", 1)], "exclusive": False, "within": [("rack", False)], "prefers": [["feature.muster.io/ssd"]]},
        ["--switches"],
    ),
    "places-that-cannot-be-said": (
        "#!/bin/bash\n#SBATCH --exclusive=user\n#SBATCH -L a|b\n#SBATCH --switches=2\n#SBATCH -C ib*2\nhostname\n",
        {"exclusive": False, "licences": {}, "within": [], "selector": [("Exists", 0)]},
        ["--exclusive", "-L", "--switches", "-C"],
    ),
    "abbreviated": (
        "#!/bin/bash\n#SBATCH --part=long\n#SBATCH --job=abc\n#SBATCH --cpus-per-t=2\nhostname\n",
        {"queue": "long", "name": "abc", "cpus": 2},
        [],
    ),
    "old-names": (
        "#!/bin/bash\n#SBATCH --workdir=/scratch/x\n#SBATCH --tasks-per-node=3\n#SBATCH --share\nhostname\n",
        {"directory": "/scratch/x", "cpus": 3, "tasks": "3"},
        [],
    ),
    "options-after-commands": (
        "#!/bin/bash\n#SBATCH --gpus=2\nset -e\n#SBATCH --gpus=8\nhostname\n",
        {"gpus": 2},
        ["#SBATCH"],
    ),
    "dependency-and-mail": (
        "#!/bin/bash\n#SBATCH --dependency=afterok:1234:1235,singleton\n#SBATCH --mail-type=END,FAIL,TIME_LIMIT\n"
        "#SBATCH --requeue\nhostname\n",
        {"nodes": 1, "after": ["finished:1234", "finished:1235"]},
        ["--dependency", "--mail-type"],
    ),
    "unlimited": (
        "#!/bin/bash\n#SBATCH --time=UNLIMITED\n#SBATCH --nice\n#SBATCH --export=NONE\nhostname\n",
        {"time_s": None, "priority": -100, "exported": None},
        [],
    ),
    "exported-list": (
        "#!/bin/bash\n#SBATCH --export=WANDB_MODE=offline,HF_HOME\n#SBATCH --nice=-7\nenv\n",
        {"priority": 7, "environment": {"WANDB_MODE": "offline", "HF_HOME": "/cache"}, "exported": None},
        [],
    ),
    "exported-all": (
        "#!/bin/bash\n#SBATCH --export=ALL,EXTRA=1\nenv\n",
        {"environment": {"EXTRA": "1", "HF_HOME": "/cache", "SECRET": "s"}, "exported": "s"},
        [],
    ),
    "node-range": (
        "#!/bin/bash\n#SBATCH --nodes=2-4\n#SBATCH --gres=gpu:8\nsrun ./elastic\n",
        {"nodes": 4, "nodes_min": 2, "gpus": 8},
        ["--nodes"],
    ),
    "nodes-from-tasks": (
        "#!/bin/bash\n#SBATCH --ntasks=16\n#SBATCH --ntasks-per-node=8\n#SBATCH --gpus-per-node=8\nsrun python x.py\n",
        {"nodes": 2, "gpus": 8, "cpus": 8, "tasks": "16"},
        ["--ntasks-per-node"],
    ),
    "nodes-from-gpus": (
        "#!/bin/bash\n#SBATCH -G 16\n#SBATCH --gpus-per-node=8\nsrun python x.py\n",
        {"nodes": 2, "gpus": 8},
        ["-G"],
    ),
    "tasks-from-gpus": (
        "#!/bin/bash\n#SBATCH --gpus=4\n#SBATCH --ntasks-per-gpu=1\n#SBATCH --cpus-per-gpu=8\n#SBATCH --mem-per-gpu=40G\n"
        "srun python x.py\n",
        {"nodes": 1, "gpus": 4, "cpus": 32, "memory_mib": 163840, "tasks": "4"},
        [],
    ),
    "gres-of-many-kinds": (
        "#!/bin/bash\n#SBATCH --gres=gpu:v100:2(S:0-1),nvme:1\nhostname\n",
        {"gpus": 2, "models": ("v100", "V100")},
        ["--gres"],
    ),
    "gres-without-number": (
        "#!/bin/bash\n#SBATCH --gres=gpu\nhostname\n",
        {"gpus": 1, "models": ()},
        [],
    ),
    "python-script": (
        "#!/usr/bin/env python3\n#SBATCH --job-name=Run_in_Python\n#SBATCH --gpus=1\nprint(1)\n",
        {"name": "run-in-python", "gpus": 1, "interpreter": ("python3", "-c")},
        [],
    ),
    "no-shebang": (
        "#SBATCH --job-name=bare\n#SBATCH --gpus=1\nhostname\n",
        {"name": "bare", "gpus": 1, "interpreter": ("bash", "-c")},
        ["script"],
    ),
    "no-options": ("#!/bin/bash\nhostname\n", {"name": "no-options.sbatch", "nodes": 1, "cpus": 1, "output": "slurm-%j.out"}, []),
    "quoted-name": (
        '#!/bin/bash\n#SBATCH -J "My Job #3"\n#SBATCH --comment=\'it is, "quoted"\'\nhostname\n',
        {"name": "my-job-3", "slurm_name": "My Job #3", "labels": {"slurm.comment": 'it is, "quoted"'}},
        [],
    ),
    "several-partitions": (
        "#!/bin/bash\n#SBATCH -p gpu_long,gpu_short\n#SBATCH --gres=gpu:h100:8 -N 1 --exclusive=user\nhostname\n",
        {"queue": "gpu-long", "gpus": 8},
        ["-p", "--exclusive"],
    ),
    "other-schedulers-too": (
        "#!/bin/bash\n#PBS -l nodes=1\n#SBATCH --gpus=1\nhostname\n",
        {"gpus": 1},
        ["#PBS"],
    ),
}

# name: (script, the line, the key, words of the sentence)
WRONG: dict[str, tuple[str, int, str, str]] = {
    "time": ("#!/bin/bash\n#SBATCH --time=1 day\nx\n", 2, "#SBATCH", "no option"),
    "licences": ("#!/bin/bash\n#SBATCH -L matlab:none\nx\n", 2, "-L", "matlab:2"),
    "features": ("#!/bin/bash\n#SBATCH -C 'a&'\nx\n", 2, "-C", "needs a feature at its end"),
    "features-open": ("#!/bin/bash\n#SBATCH -C '(a|b'\nx\n", 2, "-C", "not closed"),
    "features-many": ("#!/bin/bash\n#SBATCH -C '(a|b)&(c|d)&(e|f)&(g|h)&(i|j)'\nx\n", 2, "-C", "16 alternatives"),
    "exclusive-for-whom": ("#!/bin/bash\n#SBATCH --exclusive=me\nx\n", 2, "--exclusive", "user, mcs or topo"),
    "switches": ("#!/bin/bash\n#SBATCH --switches=few\nx\n", 2, "--switches", "COUNT@TIME"),
    "time-words": ("#!/bin/bash\n#SBATCH --time=1day\nx\n", 2, "--time", "HH:MM:SS"),
    "time-template": ("#!/bin/bash\n#SBATCH --time={{time}}\nx\n", 2, "--time", "'{{time}}'"),
    "mem": ("#!/bin/bash\n\n#SBATCH --mem=1.5G\nx\n", 3, "--mem", "64G"),
    "nodes-equals": ("#!/bin/bash\n#SBATCH -N=2\nx\n", 2, "-N", "-N 2"),
    "nodes-zero": ("#!/bin/bash\n#SBATCH --nodes=0\nx\n", 2, "--nodes", "1 to 100000"),
    "nodes-backwards": ("#!/bin/bash\n#SBATCH --nodes=4-2\nx\n", 2, "--nodes", "least"),
    "no-value": ("#!/bin/bash\n#SBATCH --mem\nx\n", 2, "--mem", "needs a value"),
    "flag-with-value": ("#!/bin/bash\n#SBATCH --requeue=1\nx\n", 2, "--requeue", "takes no value"),
    "ambiguous": ("#!/bin/bash\n#SBATCH --n=1\nx\n", 2, "--n", "write it out"),
    "no-option": ("#!/bin/bash\n#SBATCH gpu\nx\n", 2, "#SBATCH", "'gpu'"),
    "open-quote": ('#!/bin/bash\n#SBATCH -J "a\nx\n', 2, "#SBATCH", "not closed"),
    "hostlist": ("#!/bin/bash\n#SBATCH -w gpu[1-\nx\n", 2, "-w", "bracket"),
    "hostlist-backwards": ("#!/bin/bash\n#SBATCH --exclude=gpu[9-1]\nx\n", 2, "--exclude", "backwards"),
    "hostlist-huge": ("#!/bin/bash\n#SBATCH --nodelist=n[1-9999999]\nx\n", 2, "--nodelist", "hosts"),
    "too-many-named": ("#!/bin/bash\n#SBATCH --nodelist=n[1-65]\nx\n", 2, "--nodelist", "at most 64"),
    "array": ("#!/bin/bash\n#SBATCH --array=a-b\nx\n", 2, "--array", "0-15"),
    "array-huge": ("#!/bin/bash\n#SBATCH --array=0-4000000\nx\n", 2, "--array", "100000"),
    "dependency-on-nothing": ("#!/bin/bash\n#SBATCH --dependency=afterok\nx\n", 2, "--dependency", "afterok:JOB"),
    "dependency-on-an-element": ("#!/bin/bash\n#SBATCH -d afterany:12_3\nx\n", 2, "-d", "whole jobs"),
    "array-none-at-once": ("#!/bin/bash\n#SBATCH --array=1-4%0\nx\n", 2, "--array", "from 1"),
    "two-types": ("#!/bin/bash\n#SBATCH --gres=gpu:a100:1,gpu:v100:1\nx\n", 2, "--gres", "one type"),
    "types-that-differ": ("#!/bin/bash\n#SBATCH --gres=gpu:a100:1\n#SBATCH --gpus=v100:1\nx\n", 3, "--gpus", "one type"),
    "too-many-gpus": ("#!/bin/bash\n#SBATCH --gpus=256\nx\n", 2, "--gpus", "--nodes"),
    "export": ("#!/bin/bash\n#SBATCH --export=A-B=1\nx\n", 2, "--export", "NAME=value"),
    "heterogeneous": ("#!/bin/bash\n#SBATCH -n1\n#SBATCH hetjob\n#SBATCH -n2\nx\n", 3, "#SBATCH", "heterogeneous"),
    "dos": ("#!/bin/bash\r\n#SBATCH -n1\r\nx\r\n", 1, "script", "dos2unix"),
    "perl": ("#!/usr/bin/perl\n#SBATCH -n1\nprint 1;\n", 1, "script", "perl"),
    "name": ("#!/bin/bash\n#SBATCH --job-name=...\nx\n", 2, "--job-name", "a letter or a digit"),
    "too-long": ("#!/bin/bash\n" + "# padding\n" * 14000, 1, "script", "at most 131071"),
    "nul": ("#!/bin/bash\necho \0\n", 2, "script", "NUL"),
}
