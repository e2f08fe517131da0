"""The configuration files of the Slurm cluster of the tests, with the database where it keeps accounts."""

from pathlib import Path

PASSWORD = "of-a-test-database"
SLURM_CONF = """\
ClusterName=charter
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmctldLogFile={directory}/log/slurmctld.log
SlurmdLogFile={directory}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=5
MessageTimeout=20
SlurmdTimeout=300
MinJobAge=300
MaxArraySize=20001
DefMemPerCPU=500
MaxJobCount=50000
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
GresTypes=gpu
JobCompType=jobcomp/filetxt
JobCompLoc={directory}/log/jobcomp.txt
{nodes}
PartitionName=gpu  Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1  PreemptMode=REQUEUE GraceTime=5
PartitionName=prod Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
"""
GRES_CONF = "NodeName=n[1-4] Name=gpu Type=h100 File={directory}/dev/nvidia[0-{last}]\n"
DBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
LogFile={directory}/log/slurmdbd.log
PidFile={directory}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=of-a-test-database
StorageLoc=slurm_acct
"""


def dbd_lines(directory: Path, port: int) -> str:
    """Lines of `slurm.conf` that send accounts to slurmdbd."""
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={directory}/munge/socket
AccountingStorageTRES=gres/gpu
"""
