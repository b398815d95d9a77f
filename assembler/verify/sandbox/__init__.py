"""Ways to run a program inside an image with no network, no root and no writable root.

In the order in which they are preferred: a container engine (podman, docker), bubblewrap, and
namespaces with chroot. Each is judged by running a tiny program in it, not by being installed.
"""

from assembler.verify.sandbox.base import Command, Completed, Sandbox
from assembler.verify.sandbox.choice import NAMES, Trial, choose, try_all
from assembler.verify.sandbox.trace import Exec

__all__ = ["NAMES", "Command", "Completed", "Exec", "Sandbox", "Trial", "choose", "try_all"]
