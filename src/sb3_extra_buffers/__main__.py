"""``python -m sb3_extra_buffers``, for where the console script is not on the path."""

import sys

from sb3_extra_buffers.cli import main

if __name__ == "__main__":
    sys.exit(main())
