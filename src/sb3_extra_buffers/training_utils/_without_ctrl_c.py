"""What workers import in place of the main script: from here on they ignore Ctrl-C."""

import signal

if __name__ == "__mp_main__":  # so multiprocessing calls the main script in a worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
