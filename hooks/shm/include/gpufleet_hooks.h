/* The memory that a training process shares with the gpufleet agent, for clients in C.
 *
 * docs/hooks-shm.md says what each word means and how it is written; hooks/shm/example.c is a whole
 * client. Needs C11, gcc or clang, Linux on a 64-bit little-endian machine. Every writer takes a
 * region of NULL and then does nothing: so set yours to NULL in forked children (pthread_atfork). */
#ifndef GPUFLEET_HOOKS_H
#define GPUFLEET_HOOKS_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before the first include: memfd_create and file seals need it"
#endif

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define GPUFLEET_MAGIC 0x4b4f4f4846555047ull       /* GPUFHOOK */
#define GPUFLEET_HELLO 0x4f4c454846555047ull       /* GPUFHELO */
#define GPUFLEET_REPLY 0x4c50455246555047ull       /* GPUFREPL */
#define GPUFLEET_VERSION 1
#define GPUFLEET_SIZE_BYTES 327680
#define GPUFLEET_STEPS 2048
#define GPUFLEET_COLLECTIVES 1024
#define GPUFLEET_READINGS 128
#define GPUFLEET_IN_FLIGHT 64
#define GPUFLEET_COMMUNICATORS 64
#define GPUFLEET_FUNCTIONS 8
#define GPUFLEET_PHASES 16
#define GPUFLEET_NAME_WORDS 8
#define GPUFLEET_SOCKET "/run/gpufleet/hooks.sock"

/* Looks at a section that another thread writes before giving up. */
#define GPUFLEET_WRITE_TRIES 256

enum gpufleet_writer { GPUFLEET_PYTHON = 1, GPUFLEET_NCCL = 2, GPUFLEET_C = 3, GPUFLEET_RUST = 4 };

enum gpufleet_phase {
    GPUFLEET_DATA_WAIT = 1,
    GPUFLEET_FORWARD = 2,
    GPUFLEET_BACKWARD = 3,
    GPUFLEET_OPTIMIZER = 4,
    GPUFLEET_COMMUNICATION = 5,
    GPUFLEET_CHECKPOINT_SAVE = 6,
    GPUFLEET_CHECKPOINT_RESTORE = 7,
    GPUFLEET_EVALUATION = 8,
    GPUFLEET_STARTUP = 9,
    GPUFLEET_OTHER = 10
};

enum gpufleet_end_kind { GPUFLEET_FINISHED = 1, GPUFLEET_STOPPED = 2, GPUFLEET_EXCEPTION = 3 };

struct gpufleet_header {
    uint64_t magic, version, size, writer, pid, start_ticks, session_high, session_low;
    uint64_t created_at, heartbeats, heartbeat_at, connections, contended, takes, reserved[18];
};

struct gpufleet_axis {
    uint64_t coordinate, size;
};

struct gpufleet_identity {
    uint64_t sequence, attempt, rank, world, local_rank, local_world, cuda_device, host_pid;
    uint64_t mesh_source;
    struct gpufleet_axis dp, pp, tp, cp, ep;
    uint64_t cluster[GPUFLEET_NAME_WORDS], job_namespace[GPUFLEET_NAME_WORDS];
    uint64_t job_name[GPUFLEET_NAME_WORDS], job_uid[GPUFLEET_NAME_WORDS];
    uint64_t framework[GPUFLEET_NAME_WORDS], gpu_uuid[GPUFLEET_NAME_WORDS];
    uint64_t launcher[GPUFLEET_NAME_WORDS], reserved[53];
};

struct gpufleet_plan {
    uint64_t sequence, total_steps, total_tokens, deadline_at, flops_per_step, flops_per_token;
    uint64_t hardware_flops_per_step, flops_source, parameters, dtype[GPUFLEET_NAME_WORDS];
    uint64_t reserved[15];
};

struct gpufleet_totals {
    uint64_t started, done, wall_ns, busy_ns, data_wait_ns, comm_wait_ns, checkpoint_ns;
    uint64_t evaluation_ns, tokens, samples, model_flops, last_step, last_ended_at, reserved[19];
};

struct gpufleet_reading {
    uint64_t sequence, value, step, at;
};

struct gpufleet_reading_record {
    uint64_t state, value, step, at;
};

struct gpufleet_readings {
    uint64_t started, reserved[7];
    struct gpufleet_reading_record recent[GPUFLEET_READINGS];
};

struct gpufleet_learning {
    struct gpufleet_reading loss, gradient_norm, learning_rate, evaluation_loss;
    uint64_t scaler_skips, non_finite_losses, non_finite_gradients, reserved[13];
};

struct gpufleet_occasion {
    uint64_t sequence, count, total_ns, last_ns, last_step, last_at, failures, reserved[1];
};

struct gpufleet_phase_total {
    uint64_t total_ns, count;
};

struct gpufleet_phases {
    uint64_t now, reserved[31];
    struct gpufleet_phase_total totals[GPUFLEET_PHASES];
};

struct gpufleet_memory {
    uint64_t sequence, at, allocated_bytes, reserved_bytes, peak_allocated_bytes;
    uint64_t peak_reserved_bytes, limit_bytes, retries, out_of_memory, reserved[7];
};

/* verdict: 0 none, 1 passed, 2 failed, 3 could not run. sm: the one to blame plus 1. right, wrong: works as bits.
   The sequence is that of probe_reason, too. */
struct gpufleet_probe {
    uint64_t sequence, at, verdict, step, sm, sms, covered, checked_bytes, gpu_ns, runs;
    uint64_t right, wrong, reserved[4];
};

/* The last profile that an agent asked for. state: 1 running, 2 done, 3 failed. window_ns 0: the GPU's gaps were not
   measured. untold, why: 1 too many events, 2 they could not be read, 3 the GPU had no work; 0 not said.
   A client that captures none leaves header.takes 0 and is not asked. */
struct gpufleet_profile {
    uint64_t sequence, number, state, at, step, steps, bytes, window_ns, gap_data_ns;
    uint64_t gap_synchronisation_ns, gap_launch_ns, synchronisations, kernels, kernel_ns, gap_host_ns, untold;
    uint64_t text[64];
};

struct gpufleet_end {
    uint64_t sequence, kind, at, exit_status, step, reserved[11];
};

struct gpufleet_exception {
    uint64_t sequence, at, rank, step, kind[GPUFLEET_NAME_WORDS], message[32], traceback[256];
    uint64_t reserved[4];
};

struct gpufleet_fingerprint {
    uint64_t sequence, left_out, text[1024], reserved[6];
};

struct gpufleet_tags {
    uint64_t sequence, left_out, text[128], reserved[6];
};

struct gpufleet_in_flight {
    uint64_t sequence, communicator, number, what, bytes, started_at, peer, reserved[1];
};

struct gpufleet_function_total {
    uint64_t count, bytes, timed, duration_ns, wait_ns;
};

struct gpufleet_communicator {
    uint64_t sequence, hash, ranks, rank, nodes, name[GPUFLEET_NAME_WORDS];
    struct gpufleet_function_total totals[GPUFLEET_FUNCTIONS];
    uint64_t reserved[11];
};

struct gpufleet_collective {
    uint64_t state, communicator, number, what, bytes, started_at, duration_ns, wait_ns;
};

struct gpufleet_collectives {
    uint64_t in_flight_taken, in_flight_left_out, communicators_taken, communicators_left_out;
    uint64_t started, done, collecting, nccl_version, profiler_interface;
    uint64_t given_up, reports_late, durations_refused, reserved[4];
    struct gpufleet_in_flight in_flight[GPUFLEET_IN_FLIGHT];
    struct gpufleet_communicator communicators[GPUFLEET_COMMUNICATORS];
    struct gpufleet_collective recent[GPUFLEET_COLLECTIVES];
};

struct gpufleet_step_record {
    uint64_t state, step, ended_at, wall_ns, busy_ns, data_wait_ns, comm_wait_ns, checkpoint_ns;
    uint64_t evaluation_ns, tokens, samples, model_flops;
};

struct gpufleet_region {
    struct gpufleet_header header;
    struct gpufleet_identity identity;
    struct gpufleet_plan plan;
    struct gpufleet_totals totals;
    struct gpufleet_learning learning;
    struct gpufleet_occasion checkpoint_saved, checkpoint_restored, evaluation;
    struct gpufleet_phases phases;
    struct gpufleet_memory memory;
    struct gpufleet_probe probe;
    struct gpufleet_end end;
    struct gpufleet_exception exception;
    struct gpufleet_fingerprint fingerprint;
    struct gpufleet_tags tags;
    struct gpufleet_collectives collectives;
    struct gpufleet_step_record steps[GPUFLEET_STEPS];
    uint64_t probe_reason[32];
    struct gpufleet_profile profile;
    struct gpufleet_readings losses, gradient_norms;
    uint64_t reserved[552];
};

_Static_assert(sizeof(struct gpufleet_region) == GPUFLEET_SIZE_BYTES, "one fixed size");
_Static_assert(sizeof(struct gpufleet_header) == 256, "header");
_Static_assert(sizeof(struct gpufleet_identity) == 1024, "identity");
_Static_assert(sizeof(struct gpufleet_plan) == 256, "plan");
_Static_assert(sizeof(struct gpufleet_totals) == 256, "totals");
_Static_assert(sizeof(struct gpufleet_learning) == 256, "learning");
_Static_assert(sizeof(struct gpufleet_occasion) == 64, "occasion");
_Static_assert(sizeof(struct gpufleet_phases) == 512, "phases");
_Static_assert(sizeof(struct gpufleet_in_flight) == 64, "in_flight");
_Static_assert(sizeof(struct gpufleet_communicator) == 512, "communicator");
_Static_assert(sizeof(struct gpufleet_collective) == 64, "collective");
_Static_assert(sizeof(struct gpufleet_step_record) == 96, "step record");
_Static_assert(offsetof(struct gpufleet_region, collectives.recent) % 64 == 0, "whole lines");

/* One step; 0 where nothing is known. */
struct gpufleet_step {
    uint64_t step;
    int64_t ended_at;
    uint64_t wall_ns, busy_ns, data_wait_ns, comm_wait_ns, checkpoint_ns, evaluation_ns;
    uint64_t tokens, samples;
    double model_flops;
};

static inline void gpufleet_set(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static inline void gpufleet_add(uint64_t *word, uint64_t value) {
    __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}

static inline uint64_t gpufleet_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline void gpufleet_add_double(uint64_t *word, double value) {
    uint64_t before = __atomic_load_n(word, __ATOMIC_RELAXED), after;
    do {
        double sum;
        memcpy(&sum, &before, sizeof sum);
        after = gpufleet_bits(sum + value);
    } while (!__atomic_compare_exchange_n(word, &before, after, 1, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
}

/* Unix nanoseconds; no system call. */
static inline int64_t gpufleet_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Takes the section behind `sequence`: the number to give to gpufleet_wrote, or 0 when another
 * thread does not let go of it; then leave it. */
static inline uint64_t gpufleet_writing(struct gpufleet_region *region, uint64_t *sequence) {
    for (int tries = 0; tries < GPUFLEET_WRITE_TRIES; tries++) {
        uint64_t even = __atomic_load_n(sequence, __ATOMIC_RELAXED);
        if (even % 2 == 0 &&
            __atomic_compare_exchange_n(sequence, &even, even + 1, 0, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED)) {
            __atomic_thread_fence(__ATOMIC_RELEASE);
            return even + 1;
        }
    }
    gpufleet_add(&region->header.contended, 1);
    return 0;
}

static inline void gpufleet_wrote(uint64_t *sequence, uint64_t odd) {
    __atomic_store_n(sequence, odd + 1, __ATOMIC_RELEASE);
}

/* Writes a text; cut it at a whole character yourself when it may be longer than `words`. */
static inline void gpufleet_set_text(uint64_t *words, size_t count, const char *text) {
    size_t length = strlen(text);
    for (size_t at = 0; at < count; at++) {
        uint64_t word = 0;
        size_t from = at * sizeof word;
        if (from < length) {
            size_t left = length - from;
            memcpy(&word, text + from, left < sizeof word ? left : sizeof word);
        }
        gpufleet_set(&words[at], word);
    }
}

/* A step ended. */
static inline void gpufleet_step(struct gpufleet_region *region, const struct gpufleet_step *step) {
    if (!region) return;
    struct gpufleet_totals *totals = &region->totals;
    uint64_t number = __atomic_fetch_add(&totals->started, 1, __ATOMIC_RELAXED) + 1;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    gpufleet_add(&totals->wall_ns, step->wall_ns);
    gpufleet_add(&totals->busy_ns, step->busy_ns);
    gpufleet_add(&totals->data_wait_ns, step->data_wait_ns);
    gpufleet_add(&totals->comm_wait_ns, step->comm_wait_ns);
    gpufleet_add(&totals->checkpoint_ns, step->checkpoint_ns);
    gpufleet_add(&totals->evaluation_ns, step->evaluation_ns);
    gpufleet_add(&totals->tokens, step->tokens);
    gpufleet_add(&totals->samples, step->samples);
    gpufleet_add_double(&totals->model_flops, step->model_flops);
    gpufleet_set(&totals->last_step, step->step);
    gpufleet_set(&totals->last_ended_at, (uint64_t)step->ended_at);
    struct gpufleet_step_record *record = &region->steps[number % GPUFLEET_STEPS];
    gpufleet_set(&record->state, 2 * number + 1);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    gpufleet_set(&record->step, step->step);
    gpufleet_set(&record->ended_at, (uint64_t)step->ended_at);
    gpufleet_set(&record->wall_ns, step->wall_ns);
    gpufleet_set(&record->busy_ns, step->busy_ns);
    gpufleet_set(&record->data_wait_ns, step->data_wait_ns);
    gpufleet_set(&record->comm_wait_ns, step->comm_wait_ns);
    gpufleet_set(&record->checkpoint_ns, step->checkpoint_ns);
    gpufleet_set(&record->evaluation_ns, step->evaluation_ns);
    gpufleet_set(&record->tokens, step->tokens);
    gpufleet_set(&record->samples, step->samples);
    gpufleet_set(&record->model_flops, gpufleet_bits(step->model_flops));
    __atomic_store_n(&record->state, 2 * number, __ATOMIC_RELEASE);
    __atomic_fetch_add(&totals->done, 1, __ATOMIC_RELEASE);
}

/* The process is in `phase` since `at`; 0 for none. Returns the word to go back with. */
static inline uint64_t gpufleet_enter(struct gpufleet_region *region, enum gpufleet_phase phase,
                                      int64_t at) {
    if (!region) return 0;
    uint64_t now = ((uint64_t)at & ~(uint64_t)63) | (uint64_t)phase;
    return __atomic_exchange_n(&region->phases.now, now, __ATOMIC_RELAXED);
}

/* The process is back where it was before gpufleet_enter. */
static inline void gpufleet_back_in(struct gpufleet_region *region, uint64_t before) {
    if (region) gpufleet_set(&region->phases.now, before);
}

/* The process spent `duration_ns` in `phase`, once. */
static inline void gpufleet_spent(struct gpufleet_region *region, enum gpufleet_phase phase,
                                  uint64_t duration_ns) {
    if (!region) return;
    gpufleet_add(&region->phases.totals[phase].total_ns, duration_ns);
    gpufleet_add(&region->phases.totals[phase].count, 1);
}

/* The process ends. */
static inline void gpufleet_ended(struct gpufleet_region *region, enum gpufleet_end_kind kind,
                                  int64_t at, int64_t exit_status, uint64_t step) {
    if (!region) return;
    uint64_t odd = gpufleet_writing(region, &region->end.sequence);
    if (!odd) return;
    gpufleet_set(&region->end.kind, kind);
    gpufleet_set(&region->end.at, (uint64_t)at);
    gpufleet_set(&region->end.exit_status, (uint64_t)exit_status);
    gpufleet_set(&region->end.step, step);
    gpufleet_wrote(&region->end.sequence, odd);
}

/* Start of this process in clock ticks since boot; 0 when /proc is not there. */
static inline uint64_t gpufleet_start_ticks(void) {
    char text[1024];
    FILE *file = fopen("/proc/self/stat", "re");
    if (!file) return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    char *rest = strrchr(text, ')');
    unsigned long long ticks = 0;
    if (!rest || sscanf(rest + 1, " %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s"
                                  " %*s %*s %*s %llu", &ticks) != 1)
        return 0;
    return ticks;
}

/* A new region of this process and its file; NULL when the kernel gives none. */
static inline struct gpufleet_region *gpufleet_create(int *file) {
    *file = memfd_create("gpufleet-hooks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*file < 0) return NULL;
    void *memory = MAP_FAILED;
    if (ftruncate(*file, GPUFLEET_SIZE_BYTES) == 0 &&
        fcntl(*file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        memory = mmap(NULL, GPUFLEET_SIZE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                      *file, 0);
    uint64_t session[2];
    if (memory == MAP_FAILED || madvise(memory, GPUFLEET_SIZE_BYTES, MADV_DONTFORK) != 0 ||
        getrandom(session, sizeof session, 0) != (ssize_t)sizeof session) {
        if (memory != MAP_FAILED) munmap(memory, GPUFLEET_SIZE_BYTES);
        close(*file);
        *file = -1;
        return NULL;
    }
    struct gpufleet_region *region = memory;
    struct gpufleet_header *header = &region->header;
    gpufleet_set(&header->version, GPUFLEET_VERSION);
    gpufleet_set(&header->size, GPUFLEET_SIZE_BYTES);
    gpufleet_set(&header->writer, GPUFLEET_C);
    gpufleet_set(&header->pid, (uint64_t)getpid());
    gpufleet_set(&header->start_ticks, gpufleet_start_ticks());
    gpufleet_set(&header->session_high, session[0]);
    gpufleet_set(&header->session_low, session[1]);
    gpufleet_set(&header->created_at, (uint64_t)gpufleet_now());
    gpufleet_set(&header->heartbeat_at, (uint64_t)gpufleet_now());
    __atomic_store_n(&header->magic, GPUFLEET_MAGIC, __ATOMIC_RELEASE);
    return region;
}

/* Hands the region's file to the agent at `path`: the socket, to be kept open as long as the process
 * lives, or -1 (no agent, or it refuses; errno is EPERM then). Waits for the agent's answer. */
static inline int gpufleet_connect(const char *path, int file) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return errno = ENAMETOOLONG, -1;
    strcpy(address.sun_path, path);
    int agent = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (agent < 0) return -1;
    uint64_t hello[4] = {GPUFLEET_HELLO, 1, GPUFLEET_VERSION, GPUFLEET_SIZE_BYTES}, reply[4];
    struct iovec text = {.iov_base = hello, .iov_len = sizeof hello};
    _Alignas(struct cmsghdr) char space[CMSG_SPACE(sizeof file)] = {0};
    struct msghdr message = {.msg_iov = &text, .msg_iovlen = 1, .msg_control = space,
                             .msg_controllen = sizeof space};
    struct cmsghdr *files = CMSG_FIRSTHDR(&message);
    files->cmsg_level = SOL_SOCKET;
    files->cmsg_type = SCM_RIGHTS;
    files->cmsg_len = CMSG_LEN(sizeof file);
    memcpy(CMSG_DATA(files), &file, sizeof file);
    if (connect(agent, (struct sockaddr *)&address, sizeof address) != 0 ||
        sendmsg(agent, &message, MSG_NOSIGNAL) != (ssize_t)sizeof hello ||
        recv(agent, reply, sizeof reply, 0) != (ssize_t)sizeof reply ||
        reply[0] != GPUFLEET_REPLY || reply[2] != 0) {
        close(agent);
        return errno = EPERM, -1;
    }
    return agent;
}

#endif
