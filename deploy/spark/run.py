"""Run the command line of streameval as the driver of `spark-submit`."""

from streameval.cli.app import main

main()
