"""`python -m videoserve.worker`."""

from videoserve.worker.run import main

if __name__ == "__main__":
    main()
