"""GPUs from recorded outputs of the real tools (tests/data/README.md says where each is from)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from crossgrade.facts import gpu_reading, gpus, nvml
from crossgrade.process import Completed, StartError

DATA = Path(__file__).parents[1] / "data" / "gpus"


def recorded(name: str) -> str:
    return (DATA / name).read_text()


class RecordedTools:
    """Answers for programs by what follows their name; others cannot be started."""

    def __init__(self, answers: Mapping[str, str], failing: Sequence[str] = ()) -> None:
        self.answers = answers
        self.failing = failing
        self.asked: list[str] = []

    def __call__(self, argv: Sequence[str], *, timeout: float = 0) -> Completed:  # noqa: ARG002 (as a runner has it)
        question = " ".join(argv[1:])
        self.asked.append(question)
        key = next((key for key in self.answers if question.startswith(key)), None)
        if key is None:
            raise StartError(f"{argv[0]}: nothing is recorded for {question}")
        code = 9 if key in self.failing else 0
        return Completed(tuple(argv), code, self.answers[key], "", 0.0, timed_out=False)


def programs(place: Path, *names: str) -> dict[str, str]:
    """An environment whose PATH has programs of these names."""
    folder = place / "programs"
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


def loaded(place: Path, module: str = "kernel_module_580_proprietary.txt") -> Path:
    """The root of a machine with the driver loaded, with two GPUs that /proc lists."""
    nvidia = place / "system" / "proc/driver/nvidia"
    for name, bus in (("information_gtx_titan_x.txt", "0000:65:00.0"), ("information_gtx_1080_ti.txt", "0000:17:00.0")):
        (nvidia / "gpus" / bus).mkdir(parents=True)
        (nvidia / "gpus" / bus / "information").write_text(recorded(name))
    (nvidia / "version").write_text(recorded(module))
    (nvidia / "params").write_text(recorded("parameters_forced_peer_access.txt"))
    return place / "system"


# ---- parsers


def test_the_log_of_an_rtx_pro_6000() -> None:
    log = gpus.parse_smi_log(recorded("rtx_pro_6000_max_q_590.xml"))
    assert (log.driver, log.cuda) == ("590.44.01", "13.1")
    (gpu,) = log.gpus
    assert gpu.name == "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
    assert (gpu.pci_bus, gpu.minor, gpu.architecture) == ("0000:61:00.0", 0, "Blackwell")
    assert (gpu.memory_bytes, gpu.memory_used_bytes) == (97887 * 1024**2, 65720 * 1024**2)
    assert gpu.bar1_bytes == 131072 * 1024**2
    assert (gpu.persistence, gpu.performance_state, gpu.utilization) == (True, "P8", 0)
    assert (gpu.clock_reasons, gpu.mig, gpu.recovery) == ((), None, "None")
    assert (gpu.link.generation, gpu.link.generation_limit) == (1, 4)
    assert (gpu.link.width, gpu.link.width_limit) == (16, 16)
    assert gpu.processes == (gpus.GpuProcess(116860, "/root/src/llama.cpp/build/bin/llama-server", 65710 * 1024**2),)
    assert gpu.compute_capability is None  # the log names none


def test_the_log_of_an_older_driver() -> None:
    (gpu,) = gpus.parse_smi_log(recorded("a10g_515.xml")).gpus
    assert (gpu.pci_bus, gpu.persistence) == ("0000:00:1e.0", False)
    assert (gpu.link.width, gpu.link.width_limit) == (8, 16)
    assert gpu.clock_reasons == ()  # idle alone holds nothing down
    assert gpu.processes is None  # its excerpt has no such element: not known, not none


def test_an_active_reason_is_named() -> None:
    text = recorded("rtx_pro_6000_max_q_590.xml")
    for reason in ("gpu_idle", "hw_slowdown", "sw_power_cap"):
        line = f"clocks_event_reason_{reason}>"
        text = text.replace(f"<{line}Not Active", f"<{line}Active")
    assert gpus.parse_smi_log(text).gpus[0].clock_reasons == ("hw_slowdown", "sw_power_cap")


@pytest.mark.parametrize(
    "text", ["", "No devices were found", "<other/>", recorded("rtx_pro_6000_max_q_590.xml")[:900]]
)
def test_what_is_no_log(text: str) -> None:
    with pytest.raises(ValueError, match="it is"):
        gpus.parse_smi_log(text)


def test_the_topology_of_eight_rtx_pro_6000() -> None:
    cells = gpus.parse_matrix(recorded("topology_8_rtx_pro_6000.txt"))
    assert len(cells) == 28
    assert {pair for pair, path in cells.items() if path == "PIX"} == {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert (cells[0, 2], cells[0, 4], cells[3, 7]) == ("NODE", "SYS", "SYS")


def test_a_topology_with_links_and_a_network_card() -> None:
    cells = gpus.parse_matrix(recorded("topology_8_v100.txt"))
    assert len(cells) == 28
    assert (cells[0, 3], cells[0, 7], cells[6, 7]) == ("NV2", "SYS", "NV2")


def test_escapes_around_the_header_do_not_matter() -> None:
    header, rest = recorded("topology_8_v100.txt").split("\n", 1)
    assert gpus.parse_matrix(f"\x1b[4m{header}\x1b[0m\n{rest}")[0, 1] == "NV1"


@pytest.mark.parametrize("text", ["", "No devices were found\n", "\tGPU0\tGPU1\nGPU1\tPHB\t X \n"])
def test_what_is_no_topology(text: str) -> None:
    with pytest.raises(ValueError, match=r"no row|says nothing"):
        gpus.parse_matrix(text)


def test_peer_access_that_the_gpu_does_not_have() -> None:
    assert gpus.parse_matrix(recorded("peer_access_2_rtx_5090.txt")) == {(0, 1): "GNS"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kernel_module_580_open.txt", ("580.95.05", "open")),
        ("kernel_module_580_proprietary.txt", ("580.173.02", "proprietary")),
    ],
)
def test_the_kernel_module(name: str, expected: tuple[str, str]) -> None:
    assert gpus.parse_kernel_module(recorded(name)) == expected


def test_parameters_of_the_module() -> None:
    found = gpus.parse_parameters(recorded("parameters_forced_peer_access.txt"))
    assert found["EnableResizableBar"] == "1"
    assert found["RegistryDwords"].startswith("ForceP2P=0x11;")
    assert found["RegistryDwordsPerDevice"] == ""


@pytest.mark.parametrize("text", ["00000000:61:00.0", "0000:61:00.0", "61:00.0", "00000000:61:00.0\n"])
def test_addresses_are_written_as_sysfs_does(text: str) -> None:
    assert gpus.bus_address(text) == "0000:61:00.0"


def test_bits_of_clock_reasons() -> None:
    assert nvml.clock_reasons(0x1) == ()
    assert nvml.clock_reasons(0x1 | 0x8 | 0x40) == ("hw_slowdown", "hw_thermal_slowdown")
    assert nvml.clock_reasons(0x4000) == ("0x4000",)


# nccl issue 2079: `ACSCtl: 0x001d` made ncclAllReduce hang. A bridge's space: an AER capability (0x0001), then ACS.
def configuration(control: int, *, with_acs: bool = True) -> bytes:
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 1 << 16 | (0x2A0 if with_acs else 0) << 20).to_bytes(4, "little")
    if with_acs:
        space[0x2A0:0x2A4] = (0x000D | 1 << 16).to_bytes(4, "little")
        space[0x2A6:0x2A8] = control.to_bytes(2, "little")
    return bytes(space)


def test_a_bridge_that_redirects() -> None:
    assert gpus.redirects(configuration(0x001D)) is True
    assert gpus.redirects(configuration(0x0005)) is True  # requests alone
    assert gpus.redirects(configuration(0x0009)) is True  # completions alone
    assert gpus.redirects(configuration(0x0011)) is False  # what rtx6kpro sets: source validation and forwarding stay
    assert gpus.redirects(configuration(0, with_acs=False)) is False
    assert gpus.redirects(configuration(0x001D)[:256]) is None  # all that others than root can read


def test_a_configuration_that_leads_in_a_circle() -> None:
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    assert gpus.redirects(bytes(space)) is False


# ---- reading


def test_no_driver_and_nothing_is_started(tmp_path: Path) -> None:
    tools = RecordedTools({})
    found = gpu_reading.read_gpus({"PATH": ""}, tools, system=tmp_path)
    assert (found.source, found.gpus, tools.asked) == ("", (), [])
    assert found.unknown["gpus"] == "no NVIDIA driver on this machine"
    assert "not loaded" in found.unknown["kernel_module"]


def test_nvidia_smi_where_there_is_no_nvml(tmp_path: Path) -> None:
    query = "0, NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition, GPU-1, 00000000:61:00.0, 97887, 12.0\n"
    tools = RecordedTools({"-q -x": recorded("rtx_pro_6000_max_q_590.xml"), "--query-gpu": query, "-F": "590.44.01\n"})
    system = loaded(tmp_path, "kernel_module_580_open.txt")
    found = gpu_reading.read_gpus(programs(tmp_path, "nvidia-smi", "modinfo"), tools, system=system)
    assert (found.source, found.driver, found.cuda) == ("nvidia-smi", "590.44.01", "13.1")
    assert [gpu.compute_capability for gpu in found.gpus] == ["12.0"]
    assert (found.kernel_module, found.kernel_module_kind) == ("580.95.05", "open")
    assert found.installed_module == "590.44.01"  # what the next boot loads
    assert "there is no libnvidia-ml.so.1" in found.unknown["nvml"]
    assert found.parameters["GrdmaPciTopoCheckOverride"] == "1"


def test_eight_gpus_with_their_paths(tmp_path: Path) -> None:
    """The recorded GPU at eight addresses (no such log was found), with the topology of eight RTX PRO 6000."""
    text = recorded("rtx_pro_6000_max_q_590.xml")
    start, end = text.index("\t<gpu id"), text.index("</nvidia_smi_log>")
    buses = ["11", "12", "71", "72", "81", "82", "f1", "f2"]
    log = text[:start] + "".join(text[start:end].replace(":61:", f":{bus}:") for bus in buses) + text[end:]
    tools = RecordedTools({"-q -x": log, "topo -m": recorded("topology_8_rtx_pro_6000.txt")})
    found = gpu_reading.read_gpus(programs(tmp_path, "nvidia-smi"), tools, system=loaded(tmp_path))
    assert [gpu.pci_bus for gpu in found.gpus] == [f"0000:{bus}:00.0" for bus in buses]
    assert len(found.pairs) == 28
    assert found.pairs[0] == gpus.GpuPair(0, 1, "PIX", None)
    assert "nothing is recorded" in found.unknown["pairs"]  # topo -p2p r
    assert "nothing is recorded" in found.unknown["compute_capability"]


def test_proc_where_no_tool_answers(tmp_path: Path) -> None:
    tools = RecordedTools({"-q -x": recorded("nvml_mismatch_580.txt")}, failing=["-q -x"])
    found = gpu_reading.read_gpus(programs(tmp_path, "nvidia-smi"), tools, system=loaded(tmp_path))
    assert found.source == "proc"
    assert [(gpu.index, gpu.name, gpu.pci_bus, gpu.minor) for gpu in found.gpus] == [
        (0, "GeForce GTX 1080 Ti", "0000:17:00.0", 0),
        (1, "GeForce GTX TITAN X", "0000:65:00.0", 1),
    ]
    assert "Driver/library version mismatch NVML library version: 580.178" in found.unknown["gpus"]
    assert found.driver == found.kernel_module == "580.173.02"


def test_sysfs_where_no_driver_is(tmp_path: Path) -> None:
    devices = tmp_path / "sys/bus/pci/devices"
    real = tmp_path / "sys/devices/pci0000:60/0000:60:01.1/0000:61:00.0"
    real.mkdir(parents=True)
    devices.mkdir(parents=True)
    (devices / "0000:61:00.0").symlink_to(real)
    said = {"class": "0x030000", "vendor": "0x10de", "device": "0x2bb4", "numa_node": "1"}
    said |= {"current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}
    said |= {"current_link_width": "4", "max_link_width": "16"}
    for name, value in said.items():
        (real / name).write_text(value + "\n")
    (real / "iommu_group").mkdir()
    (real / "iommu_group/type").write_text("DMA-FQ\n")
    (real.parent / "config").write_bytes(configuration(0x001D))
    sound = devices / "0000:61:00.1"
    sound.mkdir()
    (sound / "class").write_text("0x040300\n")
    (sound / "vendor").write_text("0x10de\n")
    found = gpu_reading.read_gpus({"PATH": ""}, RecordedTools({}), system=tmp_path)
    (gpu,) = found.gpus
    assert (found.source, gpu.name) == ("sysfs", "PCI device 10de:2bb4")
    link = gpu.link
    assert (link.generation, link.width, link.width_limit, link.numa_node, link.iommu) == (5, 4, 16, 1, "DMA-FQ")
    assert link.redirecting_bridges == ("0000:60:01.1",)
    (real.parent / "config").write_bytes(configuration(0x001D)[:256])  # as others than root see it
    (gpu,) = gpu_reading.read_gpus({"PATH": ""}, RecordedTools({}), system=tmp_path).gpus
    assert gpu.link.redirecting_bridges is None


def test_what_sysfs_knows_is_laid_under_the_tool_s_answer() -> None:
    own = gpus.Gpu(0, "x", "0000:61:00.0", link=gpus.PciLink(width=16))
    (merged,) = gpus.with_links([own], {"0000:61:00.0": gpus.PciLink(width=8, numa_node=1, iommu="identity")})
    assert (merged.link.width, merged.link.numa_node, merged.link.iommu) == (16, 1, "identity")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"error": "NVML: Driver Not Loaded"}', "not json"])
def test_what_is_no_answer_of_nvml(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        nvml.parse_answer(text)
