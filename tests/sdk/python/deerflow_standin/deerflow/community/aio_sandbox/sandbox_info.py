# SPDX-License-Identifier: Apache-2.0
import time
from dataclasses import dataclass, field


@dataclass
class SandboxInfo:
    sandbox_id: str
    sandbox_url: str
    container_name: str | None = None
    container_id: str | None = None
    created_at: float = field(default_factory=time.time)
