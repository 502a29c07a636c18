"""What a process may use of memory, read from files as Linux has them."""

import resource
from pathlib import Path

import pytest

from fedtailor.errors import InputError
from fedtailor.storage import memory
from fedtailor.storage.memory import Memory, get_memory, require_memory

GB = 10**9
KILOBYTES = 1024
NO_LIMIT_OF_VERSION_1 = 0x7FFFFFFFFFFFF000


@pytest.fixture(autouse=True)
def unlimited_process(monkeypatch: pytest.MonkeyPatch) -> None:
    no_limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: no_limit)


def write(root: Path, name: str, content: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def write_machine(root: Path, total: int, available: int, swap: int = 0) -> None:
    lines = {"MemTotal:": total, "MemFree:": 0, "MemAvailable:": available, "SwapFree:": swap}
    text = "".join(f"{name:16}{value // KILOBYTES} kB\n" for name, value in lines.items())
    write(root, "proc/meminfo", text)


def test_a_machine_without_limits_has_its_memory(tmp_path: Path) -> None:
    write_machine(tmp_path, total=1024 * GB, available=512 * GB)
    assert get_memory(tmp_path) == Memory(1024 * GB, 512 * GB)


def test_swap_is_free_but_no_more_is_there_than_the_memory_of_the_machine(tmp_path: Path) -> None:
    write_machine(tmp_path, total=1024 * GB, available=512 * GB, swap=256 * GB)
    assert get_memory(tmp_path).available == 768 * GB
    write_machine(tmp_path, total=1024 * GB, available=512 * GB, swap=2048 * GB)
    assert get_memory(tmp_path).available == 1024 * GB


def test_without_files_the_system_says_how_much_there_is(tmp_path: Path) -> None:
    total = get_memory(tmp_path).total
    assert get_memory(tmp_path) == Memory(total, total)
    assert total >= get_memory().total > 0
    assert get_memory().available <= get_memory().total


def test_the_limit_of_a_control_group_of_version_2(tmp_path: Path) -> None:
    write_machine(tmp_path, total=1024 * GB, available=512 * GB)
    write(tmp_path, "proc/self/cgroup", "0::/slice/job\n")
    write(tmp_path, "sys/fs/cgroup/slice/job/memory.max", f"{8 * GB}\n")
    write(tmp_path, "sys/fs/cgroup/slice/job/memory.current", f"{5 * GB}\n")
    statistics = f"anon {3 * GB}\nfile {2 * GB}\ninactive_file {GB}\nactive_file {GB}\n"
    write(tmp_path, "sys/fs/cgroup/slice/job/memory.stat", statistics)
    assert get_memory(tmp_path) == Memory(8 * GB, 5 * GB)  # all but what is not cached


def test_a_group_around_the_group_may_have_the_limit(tmp_path: Path) -> None:
    write_machine(tmp_path, total=1024 * GB, available=512 * GB)
    write(tmp_path, "proc/self/cgroup", "0::/slice/job\n")
    write(tmp_path, "sys/fs/cgroup/slice/job/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/slice/memory.max", f"{16 * GB}\n")
    write(tmp_path, "sys/fs/cgroup/slice/memory.current", f"{4 * GB}\n")
    assert get_memory(tmp_path) == Memory(16 * GB, 12 * GB)


def test_a_container_may_know_its_group_by_another_name(tmp_path: Path) -> None:
    write_machine(tmp_path, total=1024 * GB, available=512 * GB)
    write(tmp_path, "proc/self/cgroup", "0::/../../outside\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", f"{2 * GB}\n")
    assert get_memory(tmp_path) == Memory(2 * GB, 2 * GB)


def test_the_limit_of_a_control_group_of_version_1(tmp_path: Path) -> None:
    write_machine(tmp_path, total=1024 * GB, available=512 * GB)
    lines = ["5:cpu,cpuacct:/docker/1", "4:hugetlb,memory:/docker/1", "0::/", ""]
    write(tmp_path, "proc/self/cgroup", "\n".join(lines))
    folder = "sys/fs/cgroup/memory"  # in the container it is that of the group
    write(tmp_path, f"{folder}/memory.limit_in_bytes", f"{4 * GB}\n")
    write(tmp_path, f"{folder}/memory.usage_in_bytes", f"{3 * GB}\n")
    statistics = f"inactive_file 0\ntotal_inactive_file {GB}\ntotal_active_file 0\n"
    write(tmp_path, f"{folder}/memory.stat", statistics)
    write(tmp_path, "sys/fs/cgroup/cpu/docker/1/memory.limit_in_bytes", "1\n")
    assert get_memory(tmp_path) == Memory(4 * GB, 2 * GB)


def test_a_group_of_version_1_without_a_limit_is_that_of_the_machine(tmp_path: Path) -> None:
    write_machine(tmp_path, total=1024 * GB, available=512 * GB)
    write(tmp_path, "proc/self/cgroup", "4:memory:/job\n")
    limit_file = "sys/fs/cgroup/memory/job/memory.limit_in_bytes"
    write(tmp_path, limit_file, f"{NO_LIMIT_OF_VERSION_1}\n")
    assert get_memory(tmp_path) == Memory(1024 * GB, 512 * GB)


def test_a_full_group_has_nothing_available(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", f"{GB}\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", f"{2 * GB}\n")
    assert get_memory(tmp_path) == Memory(GB, 0)


def test_the_limit_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_machine(tmp_path, total=1024 * GB, available=512 * GB)
    pages = GB // resource.getpagesize()
    write(tmp_path, "proc/self/statm", f"{pages} 1 1 1 0 1 0\n")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (4 * GB, resource.RLIM_INFINITY))
    used_bytes = pages * resource.getpagesize()
    assert get_memory(tmp_path) == Memory(4 * GB, 4 * GB - used_bytes)


def test_files_that_are_not_understood_are_left_out(tmp_path: Path) -> None:
    write_machine(tmp_path, total=1024 * GB, available=512 * GB)
    write(tmp_path, "proc/self/cgroup", "memory\n0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", "-1\n")
    assert get_memory(tmp_path) == Memory(1024 * GB, 512 * GB)


def test_what_does_not_fit_is_refused_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "get_memory", lambda: Memory(8 * GB, 3 * GB))
    require_memory("It", 3 * GB, "make it smaller")
    with pytest.raises(InputError) as more_than_free:
        require_memory("It", 4 * GB, "make it smaller")
    assert str(more_than_free.value) == (
        "It needs at least 4.0 GB of memory, but cpu has 3.0 of its 8.0 GB free; make it smaller, "
        "or end other programs."
    )
    with pytest.raises(InputError) as more_than_all:
        require_memory("It", 9 * GB, "make it smaller")
    assert str(more_than_all.value) == (
        "It needs at least 9.0 GB of memory, but cpu has 8.0 GB; make it smaller."
    )
