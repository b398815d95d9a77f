"""Puts the checks together in the order in which a newcomer meets what they are about."""

from __future__ import annotations

from assembler.doctor import containers, gpu, machine, network
from assembler.doctor.model import Examination
from assembler.progress import Progress
from assembler.stack import Profile
from assembler.workspace import Workspace


def examine(workspace: Workspace, profile: Profile, progress: Progress) -> Examination:
    """Look at this machine for one profile; takes some seconds, since things are tried."""
    with progress.task("look at this machine", total=4) as task:
        checks = [*machine.look(workspace, profile)]
        task.advance()
        checks += network.look(workspace, profile)
        task.advance()
        checks += containers.look()
        task.advance()
        checks += gpu.look()
        task.advance()
    return Examination(profile=profile.name, checks=tuple(checks))
