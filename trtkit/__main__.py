"""`python -m trtkit`, for launchers such as torchrun that start modules."""

from trtkit.cli import main

if __name__ == "__main__":
    main()
