/* A libnvidia-ml.so.1 without a GPU, so that NVML's real binding and its error paths are what is tested.
 *
 * LLMGW_FAKE_NVML names a text file, read anew by every call:
 *
 *   driver = 590.48.01                 what belongs to the whole system, before the first section
 *   [0]                                GPU 0;  [0.1] is MIG instance 1 of GPU 0
 *   name = NVIDIA H100 80GB HBM3
 *   memory = 85520809984 85000000000 520809984     total, free, used
 *
 * A value "!15" makes that call fail with NVML error 15; "!hang" makes it never return. What is not written is Not
 * Supported. Without the file the driver is not loaded. "lost = !15" fails every call on that GPU, "handle = !15" its
 * lookup, "lasts = 5" makes it vanish from the bus after five calls of one process. With -DOLD_DRIVER the symbols that
 * an old driver lacks are missing.
 *
 * A handle is (GPU + 1) | (MIG instance + 1) << 16. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef void *Handle;

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NOT_LOADED = 9,
       LOST = 15, VERSION = 25, UNKNOWN = 999 };
#define API __attribute__((visibility("default"))) int
#define MAX_GPUS 64

static int started;
static int calls[MAX_GPUS];

/* ---- The file --------------------------------------------------------------------------------------- */

static char *trimmed(char *text) {
    while (isspace((unsigned char)*text)) text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1])) *--end = 0;
    return text;
}

static int refused(const char *value) {
    if (!strcmp(value, "!hang")) for (;;) pause();
    return atoi(value + 1);
}

#ifndef TOLD /* for those whose environment is not passed on: a path, at build time */
#define TOLD getenv("LLMGW_FAKE_NVML")
#endif

static int lookup(const char *section, const char *key, char *out, size_t size) {
    const char *path = TOLD;
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[4096], current[64] = "";
    int result = NOT_SUPPORTED;
    if (!file) return NOT_LOADED;
    while (fgets(line, sizeof line, file)) {
        char *text = trimmed(line);
        char *value = strchr(text, '=');
        if (*text == '[') snprintf(current, sizeof current, "%.*s", (int)strcspn(text + 1, "]"), text + 1);
        if (*text == '[' || *text == '#' || !value || strcmp(current, section)) continue;
        *value++ = 0;
        if (strcmp(trimmed(text), key)) continue;
        value = trimmed(value);
        result = *value == '!' ? refused(value) : strlen(value) + 1 > size ? TOO_SMALL : OK;
        if (result == OK) snprintf(out, size, "%s", value);
        break;
    }
    fclose(file);
    return result;
}

static int exists(const char *section) {
    char text[8];
    int result = lookup(section, "name", text, sizeof text);
    return result != NOT_SUPPORTED && result != NOT_LOADED;
}

static int gpu_of(Handle handle) { return (int)((unsigned long)handle & 0xffff) - 1; }

static int text_of(Handle handle, const char *key, char *out, size_t size) {
    int gpu = gpu_of(handle), instance = (int)((unsigned long)handle >> 16) - 1, result;
    char section[32], lasts[16];
    if (!started) return UNINITIALIZED;
    if (gpu < 0 || gpu >= MAX_GPUS) return INVALID;
    snprintf(section, sizeof section, "%d", gpu);
    if (lookup(section, "lasts", lasts, sizeof lasts) == OK && calls[gpu]++ >= atoi(lasts)) return LOST;
    if ((result = lookup(section, "lost", lasts, sizeof lasts)) != NOT_SUPPORTED) return result ? result : LOST;
    if (instance >= 0) snprintf(section, sizeof section, "%d.%d", gpu, instance);
    return lookup(section, key, out, size);
}

static int numbers_of(Handle handle, const char *key, u64 *out, int count) {
    char text[4096], *at = text, *end;
    int result = text_of(handle, key, text, sizeof text);
    if (result) return result;
    for (int i = 0; i < count; i++, at = end) {
        out[i] = strtoull(at, &end, 0);
        if (end == at) return UNKNOWN;
    }
    return OK;
}

static int number_of(Handle handle, const char *key, u32 *out) {
    u64 number;
    int result = numbers_of(handle, key, &number, 1);
    if (!result) *out = (u32)number;
    return result;
}

static int pair_of(Handle handle, const char *key, u32 *first, u32 *second) {
    u64 pair[2];
    int result = numbers_of(handle, key, pair, 2);
    if (!result) *first = (u32)pair[0], *second = (u32)pair[1];
    return result;
}

/* ---- The library itself ----------------------------------------------------------------------------- */

API nvmlInitWithFlags(u32 flags) {
    char text[64];
    int result = lookup("", "init", text, sizeof text);
    (void)flags;
    if (result != NOT_SUPPORTED && result != OK) return result;
    started = 1;
    return OK;
}
API nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API nvmlShutdown(void) { int was = started; started = 0; return was ? OK : UNINITIALIZED; }

__attribute__((visibility("default"))) const char *nvmlErrorString(int code) {
    switch (code) {
        case 0: return "Success";
        case 3: return "Not Supported";
        case 4: return "Insufficient Permissions";
        case 6: return "Not Found";
        case 7: return "Insufficient Size";
        case 9: return "Driver Not Loaded";
        case 15: return "GPU is lost";
        case 16: return "GPU requires reset";
        case 18: return "Driver/library version mismatch";
        default: return "Unknown Error";
    }
}

API nvmlSystemGetDriverVersion(char *out, u32 size) {
    return started ? lookup("", "driver", out, size) : UNINITIALIZED;
}

/* ---- Handles ---------------------------------------------------------------------------------------- */

API nvmlDeviceGetCount_v2(u32 *count) {
    char section[16];
    if (!started) return UNINITIALIZED;
    for (*count = 0;; ++*count) {
        snprintf(section, sizeof section, "%u", *count);
        if (!exists(section)) return OK;
    }
}

API nvmlDeviceGetHandleByIndex_v2(u32 index, Handle *out) {
    char section[16], text[8];
    int result;
    snprintf(section, sizeof section, "%u", index);
    if (!started) return UNINITIALIZED;
    if (!exists(section)) return INVALID;
    if ((result = lookup(section, "handle", text, sizeof text)) != NOT_SUPPORTED) return result;
    *out = (Handle)(unsigned long)(index + 1);
    return OK;
}

API nvmlDeviceGetMigDeviceHandleByIndex(Handle handle, u32 index, Handle *out) {
    char section[32];
    snprintf(section, sizeof section, "%d.%u", gpu_of(handle), index);
    if (!exists(section)) return NOT_FOUND;
    *out = (Handle)(((unsigned long)handle & 0xffff) | ((unsigned long)(index + 1) << 16));
    return OK;
}

/* ---- What they are ---------------------------------------------------------------------------------- */

API nvmlDeviceGetName(Handle handle, char *out, u32 size) { return text_of(handle, "name", out, size); }
API nvmlDeviceGetUUID(Handle handle, char *out, u32 size) { return text_of(handle, "uuid", out, size); }
API nvmlDeviceGetMaxMigDeviceCount(Handle handle, u32 *out) { return number_of(handle, "max_mig", out); }
API nvmlDeviceGetMigMode(Handle handle, u32 *now, u32 *next) { return pair_of(handle, "mig_mode", now, next); }
API nvmlDeviceGetCudaComputeCapability(Handle handle, int *major, int *minor) {
    return pair_of(handle, "capability", (u32 *)major, (u32 *)minor);
}

struct pci { char legacy[16]; u32 domain, bus, device, ids, subsystem; char bus_id[32]; };

API nvmlDeviceGetPciInfo_v3(Handle handle, struct pci *out) {
    memset(out, 0, sizeof *out);
    return text_of(handle, "pci", out->bus_id, sizeof out->bus_id);
}

/* ---- Memory ----------------------------------------------------------------------------------------- */

API nvmlDeviceGetMemoryInfo(Handle handle, u64 *out) { return numbers_of(handle, "memory", out, 3); }

#ifndef OLD_DRIVER
struct memory { u32 version; u64 total, reserved, free, used; };

API nvmlDeviceGetMemoryInfo_v2(Handle handle, struct memory *out) {
    u64 parts[3], reserved = 0;
    int result = numbers_of(handle, "memory", parts, 3);
    if (out->version != 0x02000028) return VERSION;
    if (result) return result;
    numbers_of(handle, "reserved", &reserved, 1);
    out->total = parts[0], out->free = parts[1], out->used = parts[2] - reserved, out->reserved = reserved;
    return OK;
}

API nvmlDeviceGetRemappedRows(Handle handle, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    u64 parts[4];
    int result = numbers_of(handle, "remapped_rows", parts, 4);
    if (result) return result;
    *corrected = parts[0], *uncorrected = parts[1], *pending = parts[2], *failed = parts[3];
    return OK;
}

struct repair { u32 version, channel, tpc; };

API nvmlDeviceGetRepairStatus(Handle handle, struct repair *out) {
    return pair_of(handle, "repairs", &out->channel, &out->tpc);
}

API nvmlDeviceGetUnrepairableMemoryFlag_v1(Handle handle, u32 *versioned) {
    return number_of(handle, "unrepairable", &versioned[1]);
}

struct sram { u32 version; u64 counts[11]; u32 exceeded; };

API nvmlDeviceGetSramEccErrorStatus(Handle handle, struct sram *out) {
    return number_of(handle, "sram_exceeded", &out->exceeded);
}

struct field { u32 id, scope; long long timestamp, latency; u32 type, result; u64 value; };

API nvmlDeviceGetFieldValues(Handle handle, int count, struct field *values) {
    for (int i = 0; i < count; i++) {
        char key[24];
        u32 value = 0;
        snprintf(key, sizeof key, "field%u", values[i].id);
        values[i].result = number_of(handle, key, &value);
        values[i].value = value;
    }
    return OK;
}

API nvmlDeviceGetP2PStatus(Handle handle, Handle other, u32 kind, u32 *out) {
    char peers[256], number[16], *at, *rest;
    int result = text_of(handle, "nvlink", peers, sizeof peers);
    (void)kind;
    if (result) return result;
    snprintf(number, sizeof number, "%d", gpu_of(other));
    *out = 5; /* not supported between these two */
    for (at = strtok_r(peers, " ", &rest); at; at = strtok_r(NULL, " ", &rest)) if (!strcmp(at, number)) *out = 0;
    return OK;
}
#endif

API nvmlDeviceGetTotalEccErrors(Handle handle, u32 type, u32 counter, u64 *out) {
    char key[32];
    snprintf(key, sizeof key, "ecc_%s_%s", type ? "uncorrected" : "corrected", counter ? "aggregate" : "volatile");
    return numbers_of(handle, key, out, 1);
}
API nvmlDeviceGetRetiredPagesPendingStatus(Handle handle, u32 *out) { return number_of(handle, "pages_pending", out); }
API nvmlDeviceGetTopologyCommonAncestor(Handle handle, Handle other, u32 *out) {
    char key[24];
    snprintf(key, sizeof key, "near%d", gpu_of(other));
    return number_of(handle, key, out);
}

/* ---- Processes: "pid:bytes pid:-", where - is memory that is not told ------------------------------- */

struct process { u32 pid; u64 memory; u32 gpu_instance, compute_instance; };

static int processes_of(Handle handle, const char *key, u32 *count, struct process *out) {
    char text[4096], *at, *rest;
    u32 found = 0, room = *count;
    int result = text_of(handle, key, text, sizeof text);
    if (result == NOT_SUPPORTED) { *count = 0; return OK; }
    if (result) return result;
    for (at = strtok_r(text, " ", &rest); at; at = strtok_r(NULL, " ", &rest), found++) {
        char *memory = strchr(at, ':');
        if (!out || found >= room) continue;
        out[found] = (struct process){ (u32)atoi(at), memory && memory[1] != '-' ? strtoull(memory + 1, 0, 0) : ~0ULL, ~0u, ~0u };
    }
    *count = found;
    return (!out && found) || (out && found > room) ? TOO_SMALL : OK;
}
API nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, u32 *count, struct process *out) {
    return processes_of(handle, "processes", count, out);
}
API nvmlDeviceGetGraphicsRunningProcesses_v3(Handle handle, u32 *count, struct process *out) {
    return processes_of(handle, "graphics", count, out);
}
API nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle handle, u32 *count, struct process *out) {
    return processes_of(handle, "mps", count, out);
}
