# SPDX-License-Identifier: Apache-2.0
"""Makes another process call the kernel: what somebody who has taken it over could do, without a bug to do it with.

The process has one thread and waits in a system call; its registers are put back afterwards (ptrace, x86_64).
"""

import ctypes
import errno
import os
import platform
import signal

supported = platform.machine() == "x86_64"
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
SINGLESTEP, GETREGS, SETREGS, ATTACH, DETACH = 9, 12, 13, 16, 17
NAMES = (
    "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base "
    "ds es fs gs"
).split()
ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
SYSCALL = b"\x0f\x05"
ROOM = 8192  # below the stack pointer, behind what its own frames may use

CALLS = {
    "read": 0, "write": 1, "close": 3, "mmap": 9, "mprotect": 10, "socket": 41, "socketpair": 53, "clone": 56,
    "execve": 59, "kill": 62, "link": 86, "symlink": 88, "chmod": 90, "chown": 92, "ptrace": 101, "setuid": 105,
    "mount": 165, "prctl": 157, "capset": 126, "openat": 257, "mkdirat": 258, "unlinkat": 263, "fchmodat": 268,
    "unshare": 272, "fchownat": 260, "prlimit64": 302, "open_by_handle_at": 304, "settimeofday": 164, "setns": 308,
    "process_vm_readv": 310, "memfd_create": 319, "bpf": 321, "io_uring_setup": 425, "pidfd_send_signal": 424,
    "pidfd_open": 434, "fchown": 93, "setxattr": 188, "connect": 42, "open_tree": 428, "renameat": 264,
}


class Registers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in NAMES]


def trace(request, pid, data=None):
    if libc.ptrace(request, pid, None, data) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request}")


class Taken:
    """with Taken(pid) as it: it("openat", -100, b"/etc/shadow", 0) is the descriptor, or minus an errno."""

    def __init__(self, pid):
        self.pid = pid

    def __enter__(self):
        trace(ATTACH, self.pid)
        os.waitpid(self.pid, 0)
        self.saved = Registers()
        trace(GETREGS, self.pid, ctypes.byref(self.saved))
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
            memory.seek(self.saved.rip - 2)
            assert memory.read(2) == SYSCALL, "it does not wait in a system call"
        return self

    def __exit__(self, *_):
        try:
            trace(SETREGS, self.pid, ctypes.byref(self.saved))
            trace(DETACH, self.pid)
            os.kill(self.pid, signal.SIGCONT)
        except (OSError, ProcessLookupError):
            pass  # it is another program now, or none

    def __call__(self, name, *arguments):
        registers = Registers.from_buffer_copy(self.saved)
        at = (self.saved.rsp - ROOM) & ~15
        with open(f"/proc/{self.pid}/mem", "r+b", buffering=0) as memory:
            for register, value in zip(ARGUMENTS, arguments):
                if isinstance(value, bytes):
                    value += b"\0"
                    at -= (len(value) + 15) & ~15
                    memory.seek(at)
                    memory.write(value)
                    value = at
                setattr(registers, register, value & 0xFFFFFFFFFFFFFFFF)
        registers.rax, registers.orig_rax, registers.rip = CALLS[name], 0xFFFFFFFFFFFFFFFF, self.saved.rip - 2
        trace(SETREGS, self.pid, ctypes.byref(registers))
        trace(SINGLESTEP, self.pid)
        _, status = os.waitpid(self.pid, 0)
        assert os.WIFSTOPPED(status), f"{name} ended it: {status}"
        trace(GETREGS, self.pid, ctypes.byref(registers))
        return ctypes.c_longlong(registers.rax).value


def refused(result):
    return result in (-errno.EPERM, -errno.EACCES, -errno.ENOSYS)
