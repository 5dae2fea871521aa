"""A stand-in for the driver's libnvidia-ml.so.1, built by gcc: two GPUs, or one of the ways in which it fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef unsigned int u32;
typedef unsigned long long u64;
struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; };
struct memory { u64 total, free, used; };
struct utilization { u32 gpu, memory; };
struct process { u32 pid; u64 used; u32 instance, compute; };
struct value { u32 field, scope; long long at, latency; int type, code; union { double d; u32 u; u64 l; } value; };
static int index_of(void *gpu) { return (int)(long)gpu - 1; }

int nvmlInitWithFlags(u32 flags) {
#ifdef HANGS
    sleep(60);
#endif
#ifdef MISMATCH
    return 18;
#endif
    return 0;
}
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "Not Supported"; }
int nvmlSystemGetDriverVersion(char *to, u32 size) { snprintf(to, size, "580.95.05"); return 0; }
int nvmlSystemGetCudaDriverVersion(int *to) { *to = 13000; return 0; }
int nvmlDeviceGetCount_v2(u32 *to) { *to = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(u32 index, void **to) { *to = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetName(void *gpu, char *to, u32 size) { snprintf(to, size, "stub %d", index_of(gpu)); return 0; }
int nvmlDeviceGetUUID(void *gpu, char *to, u32 size) { snprintf(to, size, "GPU-%d", index_of(gpu)); return 0; }
int nvmlDeviceGetMinorNumber(void *gpu, u32 *to) { *to = 1 - index_of(gpu); return 0; }
int nvmlDeviceGetPciInfo_v3(void *gpu, struct pci *to) {
    memset(to, 0, sizeof *to);
    snprintf(to->bus_id, sizeof to->bus_id, "00000000:%02X:00.0", 0xC1 + index_of(gpu));
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *gpu, int *major, int *minor) { *major = 12; *minor = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *gpu, struct memory *to) {
    *to = (struct memory){1000, 900, 100};
    const char *name = getenv("NVML_STUB_USED");  /* a file with the bytes that the first GPU has in use */
    FILE *file = name && !index_of(gpu) ? fopen(name, "r") : 0;
    if (file) { fscanf(file, "%llu", &to->used); fclose(file); }
    return 0;
}
int nvmlDeviceGetBAR1MemoryInfo(void *gpu, struct memory *to) { *to = (struct memory){2000, 0, 0}; return 0; }
int nvmlDeviceGetPersistenceMode(void *gpu, int *to) { *to = index_of(gpu); return 0; }
int nvmlDeviceGetPerformanceState(void *gpu, int *to) { *to = 8; return 0; }
int nvmlDeviceGetUtilizationRates(void *gpu, struct utilization *to) { *to = (struct utilization){37, 1}; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, u64 *to) { *to = index_of(gpu) ? 0x1 : 0x48; return 0; }
int nvmlDeviceGetMigMode(void *gpu, u32 *current, u32 *pending) { return 3; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, u32 *count, struct process *to) {
    if (index_of(gpu)) { *count = 0; return 0; }
    if (!to) { *count = 1; return 7; }
    *count = 1;
    to[0] = (struct process){PID, 64, 0, 0};
    return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *gpu, u32 *count, struct process *to) { *count = 0; return 0; }
int nvmlDeviceGetFieldValues(void *gpu, int count, struct value *to) {
    to->code = index_of(gpu) ? 3 : 0;
    to->value.u = to->field == 230 ? 4 : 99;
    return 0;
}
int nvmlDeviceGetCurrPcieLinkGeneration(void *gpu, u32 *to) { *to = 1; return 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(void *gpu, u32 *to) { *to = 5; return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(void *gpu, u32 *to) { *to = 8; return 0; }
int nvmlDeviceGetMaxPcieLinkWidth(void *gpu, u32 *to) { *to = 16; return 0; }
int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, int *to) { *to = 40; return 0; }
int nvmlDeviceGetP2PStatus(void *one, void *other, int index, int *to) { *to = index == 0 ? 1 : 0; return 0; }
"""


def build_nvml(folder: Path, *defines: str, pid: int = 1) -> Path:
    """Build it into a folder. `defines` may hold HANGS and MISMATCH; `pid` is the process that holds the first GPU."""
    folder.mkdir(exist_ok=True)
    source = folder / "nvml.c"
    source.write_text(_SOURCE)
    library = folder / "libnvidia-ml.so.580.95.05"
    options = [f"-D{name}" for name in (*defines, f"PID={pid}")]
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", *options, "-o", str(library), str(source)], check=True)
    (folder / "libnvidia-ml.so.1").symlink_to(library.name)
    return folder
