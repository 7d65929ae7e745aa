"""`python -m glassformer` (and `torchrun -m glassformer`) is the command `glassformer`."""

from glassformer.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
