# SPDX-License-Identifier: Apache-2.0
"""The seccomp filter that a process really has: read from the kernel with ptrace, and run here.

This judges calls that this machine's kernel does not have (kexec, modules, x32 ...): the filter must refuse
them all the same, because another kernel has them.
"""

import ctypes
import os
import struct

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_SECCOMP_GET_FILTER = 17, 0x4206, 0x4207, 0x420C
ARCH_X86_64, ARCH_I386 = 0xC000003E, 0x40000003
ALLOW, ERRNO = 0x7FFF0000, 0x00050000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def _ptrace(request, pid, address=0, data=None):
    result = _libc.ptrace(request, pid, address, data)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def read_filters(pid):
    """All filters of a process, each a list of (code, jt, jf, k)."""
    found = []
    _ptrace(PTRACE_SEIZE, pid)
    try:
        _ptrace(PTRACE_INTERRUPT, pid)
        os.waitpid(pid, 0x40000000)  # __WALL
        while True:
            try:
                size = _ptrace(PTRACE_SECCOMP_GET_FILTER, pid, len(found))
            except OSError as end:
                if found and end.errno == 2:
                    return found
                raise
            block = ctypes.create_string_buffer(size * 8)
            _ptrace(PTRACE_SECCOMP_GET_FILTER, pid, len(found), ctypes.addressof(block))
            found.append(list(struct.iter_unpack("=HBBI", block.raw)))
    finally:
        _ptrace(PTRACE_DETACH, pid)


def _alu(operation, a, b):
    return {
        0x00: a + b,
        0x10: a - b,
        0x20: a * b,
        0x40: a | b,
        0x50: a & b,
        0x60: a << (b & 31),
        0x70: a >> (b & 31),
        0xA0: a ^ b,
        0x80: -a,
    }[operation] & 0xFFFFFFFF


def _run(program, data):
    a = x = pc = 0
    memory = [0] * 16
    while True:
        code, jt, jf, k = program[pc]
        pc += 1
        kind = code & 7
        source = x if code & 8 else k
        if kind in (0, 1):  # ld, ldx
            mode = code & 0xE0
            value = {
                0x20: lambda: struct.unpack_from("=I", data, k)[0],
                0x00: lambda: k,
                0x60: lambda: memory[k],
                0x80: lambda: len(data),
            }[mode]()
            a, x = (value, x) if kind == 0 else (a, value)
        elif kind in (2, 3):  # st, stx
            memory[k] = a if kind == 2 else x
        elif kind == 4:
            a = _alu(code & 0xF0, a, source)
        elif kind == 5:
            if code & 0xF0 == 0:
                pc += k
            else:
                taken = {0x10: a == source, 0x20: a > source, 0x30: a >= source, 0x40: a & source != 0}[
                    code & 0xF0
                ]
                pc += jt if taken else jf
        elif kind == 6:
            return a if code & 0x18 == 0x10 else k
        elif code & 0xF8 == 0:
            x = a
        else:
            a = x


def verdict(filters, number, args=(), arch=ARCH_X86_64):
    """ "allow", "errno N" or "kill": what the filters together say to a call."""
    data = struct.pack(
        "=IIQ6Q", number & 0xFFFFFFFF, arch, 0, *[v & (1 << 64) - 1 for v in (*args, *[0] * 6)][:6]
    )
    # the kernel takes the action with the smallest signed number
    action = min(
        (_run(f, data) for f in filters), key=lambda r: (r & 0xFFFF0000) - (1 << 32 if r >> 31 else 0)
    )
    if action & 0xFFFF0000 == ALLOW:
        return "allow"
    if action & 0xFFFF0000 == ERRNO:
        return f"errno {action & 0xFFFF}"
    return f"kill {action:#x}"
