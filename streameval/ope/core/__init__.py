"""The core: loops that are compiled when the package is built, and also run as they are."""
