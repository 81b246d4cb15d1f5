/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/jobs.h"

#include "base/err.h"
#include "base/util.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>

/* More than CPUs, as they mostly wait for keepers; few enough to cost nothing. */
#define WORKERS 8
/* libcay keeps a path or two and a frame of output on the stack. */
#define STACK (512u << 10)

struct queue {
    struct job *first, **last;
};

struct jobs {
    struct loop *loop;
    pthread_t threads[WORKERS];
    int n_threads, n_idle;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct queue todo, finished;
    int n_todo;    /* jobs that no worker has taken yet */
    uint64_t turn; /* of the job that was taken last */
    bool stop, over;
    struct watch watch;
    int fd; /* an eventfd that tells the loop */
};

static void put(struct queue *queue, struct job *job)
{
    job->next = NULL;
    *queue->last = job;
    queue->last = &job->next;
}

static struct job *take(struct queue *queue)
{
    struct job *job = queue->first;
    if (!job)
        return NULL;
    queue->first = job->next;
    if (!queue->first)
        queue->last = &queue->first;
    return job;
}

/* A tenant's job comes a turn after its last one that waits; within a turn the first comes first.
 */
static void put_in_turn(struct jobs *jobs, struct job *job)
{
    struct queue *queue = &jobs->todo;
    struct job **at = &queue->first;
    job->turn = jobs->turn;
    for (const struct job *j = queue->first; j; j = j->next)
        if (strcmp(j->tenant, job->tenant) == 0)
            job->turn = j->turn + 1;
    while (*at && (*at)->turn <= job->turn)
        at = &(*at)->next;
    job->next = *at;
    *at = job;
    if (!job->next)
        queue->last = &job->next;
}

static struct job *take_todo(struct jobs *jobs)
{
    struct job *job = take(&jobs->todo);
    if (job) {
        jobs->turn = job->turn;
        jobs->n_todo--;
    }
    return job;
}

static void *worker(void *data)
{
    struct jobs *jobs = data;
    pthread_mutex_lock(&jobs->lock);
    for (;;) {
        struct job *job;
        jobs->n_idle++;
        while (!(job = take_todo(jobs)) && !jobs->stop)
            pthread_cond_wait(&jobs->more, &jobs->lock);
        jobs->n_idle--;
        if (!job)
            break;
        pthread_mutex_unlock(&jobs->lock);
        job->work(job);
        pthread_mutex_lock(&jobs->lock);
        put(&jobs->finished, job);
        /* For each job: were only the first of several told of, one that is lost would be all. */
        eventfd_write(jobs->fd, 1);
    }
    pthread_mutex_unlock(&jobs->lock);
    return NULL;
}

static void on_finished(struct watch *watch, uint32_t events)
{
    struct jobs *jobs = container_of(watch, struct jobs, watch);
    eventfd_t n;
    (void)events;
    eventfd_read(watch->fd, &n);
    for (;;) {
        pthread_mutex_lock(&jobs->lock);
        struct job *job = take(&jobs->finished);
        pthread_mutex_unlock(&jobs->lock);
        if (!job)
            return;
        job->done(job);
    }
}

int jobs_new(struct loop *loop, struct jobs **out, struct cay_error *err)
{
    struct jobs *jobs = calloc(1, sizeof(*jobs));
    autofd int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!jobs || fd < 0) {
        free(jobs);
        return cay_fail(err, CAY_E_NO_SPACE, "cannot make the workers' queue");
    }
    jobs->loop = loop;
    pthread_mutex_init(&jobs->lock, NULL);
    pthread_cond_init(&jobs->more, NULL);
    jobs->todo.last = &jobs->todo.first;
    jobs->finished.last = &jobs->finished.first;
    jobs->watch = (struct watch){.fd = -1, .ready = on_finished};
    jobs->fd = steal_fd(&fd);
    loop_watch(loop, &jobs->watch, jobs->fd, EPOLLIN);
    *out = jobs;
    return 0;
}

/* Signals are the loop's: workers block them all. */
static void add_worker(struct jobs *jobs)
{
    pthread_attr_t attr;
    sigset_t all, old;
    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&jobs->threads[jobs->n_threads], &attr, worker, jobs) == 0)
        jobs->n_threads++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
}

void jobs_add(struct jobs *jobs, struct job *job)
{
    pthread_mutex_lock(&jobs->lock);
    put_in_turn(jobs, job);
    /* A worker that was woken counts as idle until it runs: what waits is what tells. */
    jobs->n_todo++;
    bool more = jobs->n_todo > jobs->n_idle && jobs->n_threads < WORKERS;
    pthread_cond_signal(&jobs->more);
    pthread_mutex_unlock(&jobs->lock);
    if (more)
        add_worker(jobs);
    if (jobs->n_threads > 0 && !jobs->over)
        return;
    /* No thread to be had at all: better here than never. */
    pthread_mutex_lock(&jobs->lock);
    job = take_todo(jobs);
    pthread_mutex_unlock(&jobs->lock);
    job->work(job);
    job->done(job);
}

void jobs_free(struct jobs *jobs)
{
    if (!jobs)
        return;
    pthread_mutex_lock(&jobs->lock);
    jobs->stop = true;
    pthread_cond_broadcast(&jobs->more);
    pthread_mutex_unlock(&jobs->lock);
    for (int i = 0; i < jobs->n_threads; i++)
        pthread_join(jobs->threads[i], NULL);
    jobs->n_threads = WORKERS; /* no more: what is added from now on is done at once */
    jobs->over = true;
    for (struct job *job; (job = take(&jobs->finished));)
        job->done(job);
    int fd = jobs->fd;
    loop_forget(jobs->loop, &jobs->watch);
    close_fd(&fd);
    pthread_cond_destroy(&jobs->more);
    pthread_mutex_destroy(&jobs->lock);
    free(jobs);
}
