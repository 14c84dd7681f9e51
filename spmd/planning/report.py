"""Plan: the answer."""

from dataclasses import dataclass

from .figures import Part


@dataclass(frozen=True)
class Plan:
    parts: tuple[Part, ...]
    target: str | None
    line: str

    @staticmethod
    def of(parts, *, target, line):
        return Plan(tuple(parts), target, line)

    @property
    def temporary_bytes(self) -> int:
        return max(p.temporary_bytes for p in self.parts)

    @property
    def peak_bytes(self) -> int:
        return max(p.peak_bytes for p in self.parts)

    @property
    def cycles(self) -> int:
        return sum(p.cycles for p in self.parts)

    @property
    def flops(self) -> float:
        return sum(p.flops for p in self.parts)

    @property
    def compile_seconds(self) -> float:
        return sum(p.compile_seconds for p in self.parts)
