#!/bin/sh
# A task in any other language: a program. It gets {"payload": …} on standard input and the job's particulars in its
# environment; what it prints goes to the log, and an exit code other than 0 means: try again later.
echo "attempt $GRAPHILE_WORKER_JOB_ATTEMPTS of job $GRAPHILE_WORKER_JOB_ID, which says $(cat)"
df -h . | tail -n 1
