#!/bin/sh
# A task in any other language: a program. It gets {"payload": …} on standard input, and details of the job in its
# environment. Its output goes to the log. If its exit code is not 0, the job fails and is retried.
echo "attempt $GRAPHILE_WORKER_JOB_ATTEMPTS of job $GRAPHILE_WORKER_JOB_ID, with the input $(cat)"
df -h . | tail -n 1
