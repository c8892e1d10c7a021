"""`python -m videoserve.worker`."""

from videoserve.worker.start import main

if __name__ == "__main__":
    main()
