"""The program of `spark-submit`: the command line of streameval, which becomes the driver."""

from streameval.cli.app import main

main()
