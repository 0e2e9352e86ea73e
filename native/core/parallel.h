// Tasks on all cores: parallel_for(threads, tasks, fn) calls fn(task) once for every task below `tasks`.
//
// The caller works too; up to threads - 1 workers of one pool help it. Which thread takes which task is open, so a task
// must write only what is its own: then results never depend on the number of threads. Calls may come from several
// threads at once and from within a task (the caller of a call always finishes it, with or without help). Idle threads
// sleep. Of tasks that throw, the one with the lowest number decides what the caller sees; later ones may have run.
#pragma once
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <list>
#include <mutex>
#include <thread>

#include "core/cores.h"

namespace cb {

class WorkerPool {
 public:
  static constexpr size_t kMostWorkers = 255;

  // A forked child has none of its parent's threads: it gets a pool of its own, the parent's is left alone.
  static WorkerPool& shared() {
    static std::atomic<WorkerPool*> pool{nullptr};
    WorkerPool* p = pool.load(std::memory_order_acquire);
    while (!p || p->process_ != getpid()) {
      auto* fresh = new WorkerPool;
      if (pool.compare_exchange_strong(p, fresh, std::memory_order_acq_rel)) return *fresh;
      delete fresh;
    }
    return *p;
  }

  template <class F>
  void run(size_t helpers, size_t tasks, F& fn) {
    Job job;
    job.call = [](void* f, size_t task) { (*static_cast<F*>(f))(task); };
    job.fn = &fn;
    job.tasks = tasks;
    const size_t wanted = std::min({helpers, tasks - 1, kMostWorkers});
    job.wanted = wanted;
    std::list<Job*>::iterator place;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      while (workers_ < wanted) {
        std::thread([this] { work(); }).detach();
        ++workers_;
      }
      place = jobs_.insert(jobs_.end(), &job);
    }
    for (size_t k = 0; k < wanted; ++k) wake_.notify_one();
    job.drain(mutex_);
    std::unique_lock<std::mutex> hold(mutex_);
    jobs_.erase(place);
    done_.wait(hold, [&] { return job.active == 0; });
    if (job.error) std::rethrow_exception(job.error);
  }

 private:
  struct Job {
    void (*call)(void*, size_t) = nullptr;
    void* fn = nullptr;
    size_t tasks = 0;
    std::atomic<size_t> next{0};
    size_t wanted = 0, active = 0;  // helpers still welcome, helpers at work; under the pool's lock
    std::exception_ptr error;       // of task `failed`; under the pool's lock
    size_t failed = 0;

    void drain(std::mutex& mutex) {
      for (size_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
        try {
          call(fn, task);
        } catch (...) {
          std::lock_guard<std::mutex> hold(mutex);
          if (!error || task < failed) {
            error = std::current_exception();
            failed = task;
          }
        }
      }
    }
  };

  void work() {
    std::unique_lock<std::mutex> hold(mutex_);
    for (;;) {
      auto job = std::find_if(jobs_.begin(), jobs_.end(), [](Job* j) { return j->wanted > 0; });
      if (job == jobs_.end()) {
        wake_.wait(hold);
        continue;
      }
      Job* j = *job;
      --j->wanted;
      ++j->active;
      hold.unlock();
      j->drain(mutex_);
      hold.lock();
      if (--j->active == 0) done_.notify_all();
    }
  }

  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::list<Job*> jobs_;
  size_t workers_ = 0;
};

template <class F>
void parallel_for(size_t threads, size_t tasks, F&& fn) {
  if (threads <= 1 || tasks <= 1) {
    for (size_t task = 0; task < tasks; ++task) fn(task);
    return;
  }
  WorkerPool::shared().run(threads - 1, tasks, fn);
}

}  // namespace cb
