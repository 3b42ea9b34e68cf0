/* A training process in C that tells the gpufleet agent what it does.
 *
 *     gcc -O2 -Iinclude example.c -o example && ./example [SOCKET]
 *
 * A real client connects again from a thread of its own when the agent was away, and raises
 * header.heartbeats there once a second. */
#define _GNU_SOURCE
#include "gpufleet_hooks.h"

#include <pthread.h>

static struct gpufleet_region *region;

/* Forked workers must not write: in them every writer does nothing. */
static void in_child(void) { region = NULL; }

static void say_who_we_are(void) {
    struct gpufleet_identity *identity = &region->identity;
    uint64_t odd = gpufleet_writing(region, &identity->sequence);
    if (!odd) return;
    const uint64_t unknown = (uint64_t)-1;
    gpufleet_set(&identity->attempt, 0);
    gpufleet_set(&identity->rank, 3);
    gpufleet_set(&identity->world, 8);
    gpufleet_set(&identity->local_rank, unknown);
    gpufleet_set(&identity->local_world, unknown);
    gpufleet_set(&identity->cuda_device, unknown);
    gpufleet_set(&identity->host_pid, unknown);
    struct gpufleet_axis *axes[] = {&identity->dp, &identity->pp, &identity->tp, &identity->cp,
                                    &identity->ep};
    for (size_t at = 0; at < sizeof axes / sizeof *axes; at++)
        gpufleet_set(&axes[at]->coordinate, unknown);
    gpufleet_set_text(identity->job_name, GPUFLEET_NAME_WORDS, "example");
    gpufleet_set_text(identity->framework, GPUFLEET_NAME_WORDS, "plain C");
    gpufleet_wrote(&identity->sequence, odd);
}

int main(int count, char **arguments) {
    const char *path = count > 1 ? arguments[1] : GPUFLEET_SOCKET;
    int file, agent;
    region = gpufleet_create(&file);
    if (!region) return perror("no region"), 1;
    pthread_atfork(NULL, NULL, in_child);
    say_who_we_are();
    agent = gpufleet_connect(path, file);
    if (agent < 0) return perror("no agent"), 2;
    for (uint64_t number = 1; number <= 5; number++) {
        int64_t begin = gpufleet_now();
        uint64_t before = gpufleet_enter(region, GPUFLEET_FORWARD, begin);
        /* Here the work is done. */
        gpufleet_back_in(region, before);
        gpufleet_spent(region, GPUFLEET_FORWARD, 600);
        struct gpufleet_step step = {.step = number, .ended_at = gpufleet_now(), .wall_ns = 1000,
                                     .busy_ns = 600, .data_wait_ns = 400, .tokens = 8192,
                                     .samples = 4, .model_flops = 1e12};
        gpufleet_step(region, &step);
    }
    gpufleet_enter(region, GPUFLEET_CHECKPOINT_SAVE, gpufleet_now());
    gpufleet_ended(region, GPUFLEET_FINISHED, gpufleet_now(), 0, 5);
    return 0;
}
