# nmtkit for CPUs, installed by README's two commands. Not built yet: its steps were run one by one without Docker.
#
#     docker build -t nmtkit .
#     docker run --rm -v "$PWD:/data" nmtkit nmt-train data-bin/en-de --save-dir checkpoints/en-de
FROM python:3.11-slim

# The compiler of the search. Python's headers are in the base image.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

ENV PIP_NO_CACHE_DIR=1 NMTKIT_NATIVE=required
WORKDIR /nmtkit
COPY . .
RUN pip install -c constraints.txt torch==2.13.0
RUN pip install -c constraints.txt '.[import]'

WORKDIR /data
