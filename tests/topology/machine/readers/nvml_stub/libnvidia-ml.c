/*
 * A stand-in for libnvidia-ml.so.1: the functions that bayplan.topology.nvml calls, answered from
 * the text file that NVML_STUB_MACHINE names. tests/topology/machine/readers/nvml_machine.py writes it:
 *
 *   init CODE                 nvmlInitWithFlags fails with the code
 *   driver VERSION            of the driver
 *   gpu                       the next GPU; the lines below are about it
 *   uuid|name|bus|memory|compute|minor|module VALUE
 *   error CODE                every call about this GPU fails, but for its handle
 *   handle CODE               already its handle fails
 *   links CODE                every call about its NVLinks fails
 *   states call|field|both    the ways in which the state of a link can be asked for
 *   link STATE TYPE BUS       the next NVLink; BUS "-" is hidden, TYPE -1 is not supported
 *   fabric VERSION STATE STATUS UUID CLIQUE   VERSION is the newest that the driver knows
 *   affinity HEX HEX ...      64 CPUs a word
 *   slots N                   MIG mode is on, with so many slots
 *   mig SLOT UUID GI CI MEMORY
 *   profile KIND ID SLICES MOST SMS COPY JPEG OFA MEMORY SIZE START,START NAME   of MIG, in MiB
 *   events MASK               the types of events that it supports
 *   action CODE               the recovery that the driver wants for it
 *
 * MIG instances that are made live as long as the process.
 *
 * As with the real library, the machine is read when nothing has the library open. What happens to
 * it later is appended to the file that NVML_STUB_NEWS names, whole lines at a time:
 *
 *   event GPU TYPE DATA GI CI   waits for a set that has such events of the GPU registered
 *   error|handle|action GPU CODE
 *   link GPU LINK STATE
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       TIMEOUT = 10, IS_LOST = 15, MISMATCH = 25, LINK_STATE_FIELD = 165, ACTION_FIELD = 230,
       EVENTS = 0xb, POLL_MS = 5, MAX_NEWS = 1024, MAX_GPUS = 32, MAX_LINKS = 36, MAX_MIG = 16,
       MAX_WORDS = 64, MAX_PROFILES = 18, MAX_STARTS = 16, MAX_MADE = 32, IN_USE = 19,
       INSUFFICIENT = 23 };

typedef struct { int state, type; char bus[32]; } Link;

typedef struct {
    unsigned id, slices, most, sms, copy, jpeg, ofa, size, starts[MAX_STARTS], places;
    unsigned long memory;
    char name[96];
} Profile;

typedef struct Device {
    char uuid[96], name[96], bus[32];
    unsigned long long memory;
    int major, minor_version, minor, module;
    int error, handle_error, link_error, by_call, by_field, action;
    unsigned long long events;
    Link links[MAX_LINKS];
    int link_count;
    unsigned fabric_version, fabric_state, fabric_status, clique;
    uint8_t cluster[16];
    unsigned long long affinity[MAX_WORDS];
    int words;
    struct Device *mig[MAX_MIG];
    unsigned slots;
    int gi, ci;
    Profile profiles[MAX_PROFILES];
} Device;

typedef struct {
    Device *gpu;             /* NULL where there is no instance */
    unsigned profile, start, size;
    int compute;             /* whether it has a compute instance */
    Device device;
} Instance;

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} PciInfo;

typedef struct { unsigned long long total, free, used; } Memory;

typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    int type, result;
    union { double d; unsigned u; unsigned long long ull; } value;
} FieldValue;

typedef struct { uint8_t cluster[16]; int status; uint32_t clique; uint8_t state; } Fabric;

typedef struct {
    unsigned version;
    uint8_t cluster[16];
    int status;
    uint32_t clique;
    uint8_t state;
    uint32_t health;
} FabricV;

typedef struct { Device *device; unsigned long long type, data; unsigned gi, ci; } EventData;

typedef struct { unsigned long long types[MAX_GPUS]; } EventSet;

static Device gpus[MAX_GPUS];
static int gpu_count;
static int init_error;
static char driver[80];
static char news_path[4096];   /* of the file whose events are marked as taken */
static char taken[MAX_NEWS];   /* by line */
static Instance made[MAX_MADE];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
int stub_sessions = 0; /* nvmlInit less nvmlShutdown: a test asserts that it is 0 */
int stub_sets = 0;     /* event sets that are not freed: likewise */

static void read_mig(Device *gpu, const char *text)
{
    unsigned slot;
    Device *made = calloc(1, sizeof *made);
    sscanf(text, "%u %95s %d %d %llu", &slot, made->uuid, &made->gi, &made->ci, &made->memory);
    gpu->mig[slot] = made;
}

static void read_profile(Device *gpu, char *text)
{
    unsigned kind;
    char starts[128];
    Profile *one;
    if (sscanf(text, "%u", &kind) != 1 || kind >= MAX_PROFILES)
        return;
    one = &gpu->profiles[kind];
    sscanf(text, "%*u %u %u %u %u %u %u %u %lu %u %127s %95[^\n]", &one->id, &one->slices,
           &one->most, &one->sms, &one->copy, &one->jpeg, &one->ofa, &one->memory, &one->size,
           starts, one->name);
    for (char *word = strtok(starts, ","); word; word = strtok(NULL, ","))
        one->starts[one->places++] = (unsigned)atoi(word);
}

static void read_fabric(Device *gpu, const char *text)
{
    char hex[33] = "";
    unsigned byte;
    sscanf(text, "%u %u %u %32s %u", &gpu->fabric_version, &gpu->fabric_state, &gpu->fabric_status,
           hex, &gpu->clique);
    for (int i = 0; i < 16 && sscanf(hex + 2 * i, "%2x", &byte) == 1; i++)
        gpu->cluster[i] = (uint8_t)byte;
}

static void read_link(Device *gpu, const char *text)
{
    Link *link = &gpu->links[gpu->link_count++];
    sscanf(text, "%d %d %31s", &link->state, &link->type, link->bus);
    if (!strcmp(link->bus, "-"))
        link->bus[0] = 0;
}

static void read_affinity(Device *gpu, char *text)
{
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        gpu->affinity[gpu->words++] = strtoull(word, NULL, 16);
}

static void read_line(Device *gpu, const char *key, char *text)
{
    if (!strcmp(key, "uuid")) strcpy(gpu->uuid, text);
    else if (!strcmp(key, "name")) strcpy(gpu->name, text);
    else if (!strcmp(key, "bus")) strcpy(gpu->bus, text);
    else if (!strcmp(key, "memory")) gpu->memory = strtoull(text, NULL, 10);
    else if (!strcmp(key, "compute")) sscanf(text, "%d %d", &gpu->major, &gpu->minor_version);
    else if (!strcmp(key, "minor")) gpu->minor = atoi(text);
    else if (!strcmp(key, "module")) gpu->module = atoi(text);
    else if (!strcmp(key, "error")) gpu->error = atoi(text);
    else if (!strcmp(key, "handle")) gpu->handle_error = atoi(text);
    else if (!strcmp(key, "links")) gpu->link_error = atoi(text);
    else if (!strcmp(key, "link")) read_link(gpu, text);
    else if (!strcmp(key, "fabric")) read_fabric(gpu, text);
    else if (!strcmp(key, "affinity")) read_affinity(gpu, text);
    else if (!strcmp(key, "slots")) gpu->slots = (unsigned)atoi(text);
    else if (!strcmp(key, "mig")) read_mig(gpu, text);
    else if (!strcmp(key, "profile")) read_profile(gpu, text);
    else if (!strcmp(key, "events")) gpu->events = strtoull(text, NULL, 10);
    else if (!strcmp(key, "action")) gpu->action = atoi(text);
    else if (!strcmp(key, "states")) {
        gpu->by_call = strcmp(text, "field") != 0;
        gpu->by_field = strcmp(text, "call") != 0;
    }
}

static void read_machine(void)
{
    char line[2048];
    const char *path = getenv("NVML_STUB_MACHINE");
    FILE *file = path ? fopen(path, "r") : NULL;
    memset(gpus, 0, sizeof gpus);
    gpu_count = init_error = 0;
    driver[0] = 0;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *text = line + strcspn(line, " ");
        if (*text)
            *text++ = 0;
        if (!strcmp(line, "init"))
            init_error = atoi(text);
        else if (!strcmp(line, "driver"))
            snprintf(driver, sizeof driver, "%s", text);
        else if (!strcmp(line, "gpu")) {
            Device *gpu = &gpus[gpu_count++];
            gpu->by_call = 1;
            gpu->events = EVENTS;
            gpu->action = -1;
        } else if (gpu_count)
            read_line(&gpus[gpu_count - 1], line, text);
    }
    if (file)
        fclose(file);
}

static void happen(const char *what, Device *gpu, int first, int second)
{
    if (!strcmp(what, "error")) gpu->error = first;
    else if (!strcmp(what, "handle")) gpu->handle_error = first;
    else if (!strcmp(what, "action")) gpu->action = first;
    else if (!strcmp(what, "link")) gpu->links[first].state = second;
}

/* Let happen all that the news tell; take the first event that a set waits for. */
static int read_news(const EventSet *set, EventData *event)
{
    char line[256], what[16];
    int found = 0;
    const char *path = getenv("NVML_STUB_NEWS");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file && strcmp(news_path, path)) {
        snprintf(news_path, sizeof news_path, "%s", path);
        memset(taken, 0, sizeof taken);
    }
    for (int number = 0; file && fgets(line, sizeof line, file) && number < MAX_NEWS; number++) {
        unsigned gpu, gi, ci;
        unsigned long long type, data;
        int first = 0, second = 0;
        if (!strchr(line, '\n') || sscanf(line, "%15s %u", what, &gpu) < 2 || gpu >= MAX_GPUS)
            continue;
        if (strcmp(what, "event")) {
            sscanf(line, "%*s %*u %d %d", &first, &second);
            happen(what, &gpus[gpu], first, second);
        } else if (set && !found && !taken[number]
                   && sscanf(line, "%*s %*u %llu %llu %u %u", &type, &data, &gi, &ci) == 4
                   && set->types[gpu] & type) {
            *event = (EventData){&gpus[gpu], type, data, gi, ci};
            taken[number] = 1;
            found = 1;
        }
    }
    if (file)
        fclose(file);
    return found;
}

static void hear(void)
{
    pthread_mutex_lock(&lock);
    read_news(NULL, NULL);
    pthread_mutex_unlock(&lock);
}

/* The library ------------------------------------------------------------------------------ */

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    if (stub_sessions < 1)
        read_machine();
    if (!init_error)
        stub_sessions++;
    pthread_mutex_unlock(&lock);
    return init_error;
}

int nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    stub_sessions--;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *out, unsigned length)
{
    snprintf(out, length, "%s", driver);
    return driver[0] ? SUCCESS : NOT_SUPPORTED;
}

const char *nvmlErrorString(int code) { (void)code; return "an error of the stub"; }

int nvmlDeviceGetCount_v2(unsigned *count)
{
    if (stub_sessions < 1)
        return UNINITIALIZED;
    *count = (unsigned)gpu_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device)
{
    hear();
    if (index >= (unsigned)gpu_count)
        return INVALID_ARGUMENT;
    *device = &gpus[index];
    return gpus[index].handle_error;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device)
{
    for (unsigned index = 0; index < (unsigned)gpu_count; index++)
        if (!strcmp(gpus[index].uuid, uuid))
            return nvmlDeviceGetHandleByIndex_v2(index, device);
    return NOT_FOUND;
}

static int give_text(Device *gpu, const char *text, char *out, unsigned length)
{
    if (!gpu->error)
        snprintf(out, length, "%s", text);
    return gpu->error;
}

int nvmlDeviceGetName(Device *gpu, char *out, unsigned length)
{
    return give_text(gpu, gpu->name, out, length);
}

int nvmlDeviceGetUUID(Device *gpu, char *out, unsigned length)
{
    return give_text(gpu, gpu->uuid, out, length);
}

int nvmlDeviceGetPciInfo_v3(Device *gpu, PciInfo *info)
{
    strcpy(info->bus_id, gpu->bus);
    sscanf(gpu->bus, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    return gpu->error;
}

int nvmlDeviceGetMemoryInfo(Device *gpu, Memory *memory)
{
    hear();
    if (!gpu->memory)
        return NOT_SUPPORTED;
    memory->total = memory->free = gpu->memory;
    return gpu->error;
}

int nvmlDeviceGetMinorNumber(Device *gpu, unsigned *minor)
{
    *minor = (unsigned)gpu->minor;
    return gpu->error;
}

int nvmlDeviceGetModuleId(Device *gpu, unsigned *module)
{
    *module = (unsigned)gpu->module;
    return gpu->error;
}

int nvmlDeviceGetCudaComputeCapability(Device *gpu, int *major, int *minor)
{
    *major = gpu->major;
    *minor = gpu->minor_version;
    return gpu->error;
}

int nvmlDeviceGetCpuAffinityWithinScope(Device *gpu, unsigned size, unsigned long *words,
                                        unsigned scope)
{
    (void)scope;
    if (!gpu->words)
        return NOT_SUPPORTED;
    for (unsigned i = 0; i < size; i++)
        words[i] = i < (unsigned)gpu->words ? gpu->affinity[i] : 0;
    return gpu->error;
}

/* NVLink ----------------------------------------------------------------------------------- */

static int check_link(Device *gpu, unsigned link)
{
    if (gpu->error || gpu->link_error)
        return gpu->error ? gpu->error : gpu->link_error;
    return link < (unsigned)gpu->link_count ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkState(Device *gpu, unsigned link, unsigned *active)
{
    int result = check_link(gpu, link);
    if (result == SUCCESS && !gpu->by_call)
        return NOT_SUPPORTED;
    if (result == SUCCESS)
        *active = gpu->links[link].state == 1;
    return result;
}

int nvmlDeviceGetFieldValues(Device *gpu, int count, FieldValue *values)
{
    for (int i = 0; i < count; i++) {
        FieldValue *wanted = &values[i];
        if (wanted->field == ACTION_FIELD) {
            wanted->result = gpu->error ? gpu->error : gpu->action < 0 ? NOT_SUPPORTED : SUCCESS;
            wanted->value.u = (unsigned)gpu->action;
            continue;
        }
        wanted->result = check_link(gpu, wanted->scope);
        if (wanted->field != LINK_STATE_FIELD || !gpu->by_field)
            wanted->result = NOT_SUPPORTED;
        if (wanted->result == SUCCESS)
            wanted->value.u = (unsigned)gpu->links[wanted->scope].state;
    }
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Device *gpu, unsigned link, unsigned *type)
{
    int result = check_link(gpu, link);
    if (result == SUCCESS && gpu->links[link].type < 0)
        return NOT_SUPPORTED;
    if (result == SUCCESS)
        *type = (unsigned)gpu->links[link].type;
    return result;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *gpu, unsigned link, PciInfo *info)
{
    int result = check_link(gpu, link);
    if (result == SUCCESS)
        strcpy(info->bus_id, gpu->links[link].bus);
    return result;
}

int nvmlDeviceGetGpuFabricInfoV(Device *gpu, FabricV *info)
{
    unsigned version = info->version >> 24;
    if (gpu->error || gpu->fabric_version < 2)
        return gpu->error ? gpu->error : NOT_SUPPORTED;
    if (version > gpu->fabric_version)
        return MISMATCH;
    memcpy(info->cluster, gpu->cluster, 16);
    info->status = (int)gpu->fabric_status;
    info->clique = gpu->clique;
    info->state = (uint8_t)gpu->fabric_state;
    return SUCCESS;
}

int nvmlDeviceGetGpuFabricInfo(Device *gpu, Fabric *info)
{
    if (gpu->error || !gpu->fabric_version)
        return gpu->error ? gpu->error : NOT_SUPPORTED;
    memcpy(info->cluster, gpu->cluster, 16);
    info->status = (int)gpu->fabric_status;
    info->clique = gpu->clique;
    info->state = (uint8_t)gpu->fabric_state;
    return SUCCESS;
}

/* MIG -------------------------------------------------------------------------------------- */

int nvmlDeviceGetMigMode(Device *gpu, unsigned *current, unsigned *pending)
{
    *current = *pending = gpu->slots > 0;
    return gpu->error;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *gpu, unsigned *count)
{
    *count = gpu->slots;
    return gpu->error;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *gpu, unsigned slot, Device **device)
{
    unsigned seen = 0;
    if (slot >= gpu->slots)
        return NOT_FOUND;
    if (gpu->mig[slot]) {
        *device = gpu->mig[slot];
        return gpu->error;
    }
    for (int number = 0; number < MAX_MADE; number++)
        if (made[number].gpu == gpu && made[number].compute && seen++ == slot) {
            *device = &made[number].device;
            return gpu->error;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(Device *gpu, unsigned *id) { *id = (unsigned)gpu->gi; return 0; }

int nvmlDeviceGetComputeInstanceId(Device *gpu, unsigned *id) { *id = (unsigned)gpu->ci; return 0; }

typedef struct { unsigned start, size; } Placement;

typedef struct {
    unsigned version, id, p2p, slices, most, sms, copy, decoders, encoders, jpeg, ofa;
    unsigned long memory;
    char name[96];
} ProfileInfo;

typedef struct { Device *device; unsigned id, profile; Placement placement; } InstanceInfo;

int nvmlDeviceGetGpuInstanceProfileInfoV(Device *gpu, unsigned kind, ProfileInfo *info)
{
    const Profile *one = &gpu->profiles[kind];
    if (kind >= MAX_PROFILES || !one->places)
        return NOT_SUPPORTED;
    info->id = one->id;
    info->slices = one->slices;
    info->most = one->most;
    info->sms = one->sms;
    info->copy = one->copy;
    info->decoders = info->encoders = 0;
    info->jpeg = one->jpeg;
    info->ofa = one->ofa;
    info->memory = one->memory;
    strcpy(info->name, one->name);
    return gpu->error;
}

static const Profile *profile_of(const Device *gpu, unsigned id)
{
    for (int kind = 0; kind < MAX_PROFILES; kind++)
        if (gpu->profiles[kind].places && gpu->profiles[kind].id == id)
            return &gpu->profiles[kind];
    return NULL;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(Device *gpu, unsigned id, Placement *places,
                                                  unsigned *count)
{
    const Profile *one = profile_of(gpu, id);
    if (!one)
        return NOT_SUPPORTED;
    for (unsigned place = 0; places && place < one->places; place++)
        places[place] = (Placement){one->starts[place], one->size};
    *count = one->places;
    return gpu->error;
}

int nvmlDeviceGetGpuInstances(Device *gpu, unsigned id, Instance **found, unsigned *count)
{
    *count = 0;
    for (int number = 0; number < MAX_MADE; number++)
        if (made[number].gpu == gpu && made[number].profile == id)
            found[(*count)++] = &made[number];
    return gpu->error;
}

int nvmlDeviceCreateGpuInstanceWithPlacement(Device *gpu, unsigned id, const Placement *place,
                                             Instance **instance)
{
    int free_number = -1;
    if (!profile_of(gpu, id))
        return INVALID_ARGUMENT;
    for (int number = MAX_MADE - 1; number >= 0; number--) {
        if (!made[number].gpu)
            free_number = number;
        else if (made[number].gpu == gpu && made[number].start < place->start + place->size
                 && place->start < made[number].start + made[number].size)
            return INSUFFICIENT;
    }
    if (free_number < 0 || gpu->error)
        return gpu->error ? gpu->error : INSUFFICIENT;
    *instance = &made[free_number];
    memset(*instance, 0, sizeof **instance);
    **instance = (Instance){.gpu = gpu, .profile = id, .start = place->start, .size = place->size};
    (*instance)->device.gi = free_number + 1;
    snprintf((*instance)->device.uuid, sizeof (*instance)->device.uuid, "MIG-%.60s-%d", gpu->uuid,
             free_number + 1);
    return SUCCESS;
}

int nvmlGpuInstanceGetInfo(Instance *instance, InstanceInfo *info)
{
    *info = (InstanceInfo){instance->gpu, (unsigned)instance->device.gi, instance->profile,
                           {instance->start, instance->size}};
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceById(Device *gpu, unsigned id, Instance **instance)
{
    if (id < 1 || id > MAX_MADE || made[id - 1].gpu != gpu)
        return NOT_FOUND;
    *instance = &made[id - 1];
    return SUCCESS;
}

int nvmlGpuInstanceDestroy(Instance *instance)
{
    if (instance->compute)
        return IN_USE;
    instance->gpu = NULL;
    return SUCCESS;
}

int nvmlGpuInstanceGetComputeInstanceProfileInfoV(Instance *instance, unsigned kind,
                                                  unsigned engine, unsigned *info)
{
    (void)instance;
    (void)engine;
    info[1] = kind + 1; /* the id, after the version */
    return SUCCESS;
}

int nvmlGpuInstanceGetComputeInstances(Instance *instance, unsigned id, Instance **found,
                                       unsigned *count)
{
    (void)id;
    *count = (unsigned)instance->compute;
    found[0] = instance;
    return SUCCESS;
}

int nvmlGpuInstanceCreateComputeInstance(Instance *instance, unsigned id, Instance **compute)
{
    (void)id;
    if (instance->gpu->link_error)  /* "links CODE" lets this fail, too */
        return instance->gpu->link_error;
    instance->compute = 1;
    *compute = instance;
    return SUCCESS;
}

int nvmlComputeInstanceDestroy(Instance *instance)
{
    instance->compute = 0;
    return SUCCESS;
}

/* Events ----------------------------------------------------------------------------------- */

int nvmlEventSetCreate(EventSet **set)
{
    if (stub_sessions < 1)
        return UNINITIALIZED;
    *set = calloc(1, sizeof **set);
    stub_sets++;
    return SUCCESS;
}

int nvmlEventSetFree(EventSet *set)
{
    free(set);
    stub_sets--;
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(Device *gpu, unsigned long long *types)
{
    *types = gpu->events;
    return gpu->error;
}

int nvmlDeviceRegisterEvents(Device *gpu, unsigned long long types, EventSet *set)
{
    if (gpu->error || types & ~gpu->events)
        return gpu->error ? gpu->error : NOT_SUPPORTED;
    set->types[gpu - gpus] |= types;
    return SUCCESS;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *event, unsigned milliseconds)
{
    const struct timespec pause = {0, POLL_MS * 1000000};
    for (unsigned waited = 0;; waited += POLL_MS) {
        int found, lost = 0;
        pthread_mutex_lock(&lock);
        found = read_news(set, event);
        for (int gpu = 0; gpu < gpu_count; gpu++)
            lost |= set->types[gpu] && gpus[gpu].error == IS_LOST;
        pthread_mutex_unlock(&lock);
        if (found || lost || waited >= milliseconds)
            return found ? SUCCESS : lost ? IS_LOST : TIMEOUT;
        nanosleep(&pause, NULL);
    }
}
