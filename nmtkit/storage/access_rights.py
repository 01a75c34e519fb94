"""Owner and access rights of new files: those of the file or folder that one replaces, which may be private."""

import contextlib
import errno
import os
import stat
import sys
from pathlib import Path

_ACL = "system.posix_acl_access"
_NO_MODES = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP)


def set_mode(descriptor: int, mode: int) -> None:
    """Set the permissions of an open file or folder, if its file system has any."""
    try:
        os.fchmod(descriptor, stat.S_IMODE(mode))
    except OSError as error:
        if error.errno not in _NO_MODES:
            raise


def copy_access(replaced: Path, descriptor: int) -> None:
    """Give an open file or folder the permissions, group and access control list (ACL) of the one that it will replace.

    Does nothing if there is none. If the group or the list cannot be copied, groups get no access.
    """
    try:
        status = replaced.stat()
    except OSError:  # there is none, or a loop of symlinks
        return
    mode = status.st_mode & 0o777 | stat.S_IRUSR | stat.S_IWUSR
    try:
        if os.fstat(descriptor).st_gid != status.st_gid:
            os.fchown(descriptor, -1, status.st_gid)
        _copy_acl(replaced, descriptor)
    except OSError:
        mode &= ~stat.S_IRWXG
    set_mode(descriptor, mode)


def copy_owner(replaced: Path, descriptor: int) -> None:
    """Give an open file to the owner of the one that it replaces, if this user may.

    Otherwise a file that root replaces in a container may be closed to its owner. In a folder that everyone can write
    to, the owner may have made the file to get this one.
    """
    with contextlib.suppress(OSError):
        owner = replaced.stat().st_uid
        if os.fstat(descriptor).st_uid != owner and not replaced.parent.stat().st_mode & stat.S_IWOTH:
            os.fchown(descriptor, owner, -1)


def _copy_acl(replaced: Path, descriptor: int) -> None:
    """Copy the access control list: without it, the same permissions would let the whole group in."""
    if sys.platform != "linux":
        return
    try:
        acl = os.getxattr(replaced, _ACL)
    except OSError:  # there is none, or the file system has none
        with contextlib.suppress(OSError):
            os.removexattr(descriptor, _ACL)  # one that the folder gives to new files
        return
    os.setxattr(descriptor, _ACL, acl)
